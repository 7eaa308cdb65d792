"""The contract of activations."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import grad, vmap

from graft.testing.common import Configuration, build, equal, random
from spaces import plugins
from workers.networks.activations import Activation
from workers.numerics.parameters import Parameters
from workers.numerics.tracing import Traced


def learned_by(activation: Activation, seed: int = 0) -> dict[str, Tensor]:
    """Return random values of what the activation learns."""
    return {name: random(*parameter.shape, seed=seed) for name, parameter in activation.parameters().items()}


def values_for(activation: Activation, *shape: int, seed: int = 1) -> Tensor:
    """Return random inputs for four channels."""
    return 3 * random(*shape, 4 * activation.inputs, seed=seed)


def check_gradients(configuration: Configuration) -> None:
    """Assert that its gradients are those of finite differences, for inputs and learned values."""
    activation: Activation = build("activation", configuration)
    values, learned = values_for(activation, 3), learned_by(activation)

    def apply(values: Tensor, *pieces: Tensor) -> Tensor:
        return activation.apply(values, dict(zip(learned, pieces, strict=True)))

    inputs = [tensor.requires_grad_() for tensor in (values, *learned.values())]
    right = torch.autograd.gradcheck(apply, inputs, raise_exception=False)
    assert right, "its gradients are not those of finite differences"


def check_channels(configuration: Configuration) -> None:
    """Assert that each channel is computed by itself, and as many come out as `inputs` says."""
    activation: Activation = build("activation", configuration)
    values, learned = values_for(activation, 2, 3), learned_by(activation)
    whole = activation.apply(values, learned)
    assert whole.shape == (2, 3, 4), f"of 4 * {activation.inputs} channels come {whole.shape[-1]}, not 4"
    second = activation.apply(values[..., 1::4], learned)
    equal(whole[..., 1:2], second, "a channel depends on its neighbours")


def check_bits(configuration: Configuration) -> None:
    """Assert that an entry's bits do not depend on its place in a tensor, which packs change."""
    activation: Activation = build("activation", configuration)
    learned = {name: tensor.float() for name, tensor in learned_by(activation).items()}
    slopes = vmap(grad(lambda v: activation.apply(v, learned).square().sum()))
    for channels in (6, 32):
        values = 3 * random(41, 3, channels * activation.inputs, dtype=torch.float32)
        whole = activation.apply(values, learned), slopes(values)
        for first in range(0, 39, 3):
            for width in (2, 3, 7):
                part = slice(first, first + width)
                lanes = values[part].clone()
                same = torch.equal(activation.apply(lanes, learned), whole[0][part])
                assert same, "values differ in the last bits with their place in a tensor"
                same = torch.equal(slopes(lanes), whole[1][part])
                assert same, "gradients differ in the last bits with their place in a tensor"


def check_lanes(configuration: Configuration) -> None:
    """Assert that lanes with knobs of their own, stacked and recorded, equal each to the bit."""
    activation: Activation = build("activation", configuration)
    scales = torch.tensor([0.5, 1.0, 1.25], dtype=torch.float64)
    knobs = {path: value * scales for path, value in plugins.knobs(activation)}
    values = torch.stack([values_for(activation, 3, seed=lane).float() for lane in range(3)])
    drawn = [learned_by(activation, lane) for lane in range(3)]
    learned = [{name: tensor.float() for name, tensor in tensors.items()} for tensors in drawn]
    stacked = {name: torch.stack([tensors[name] for tensors in learned]) for name in learned[0]}

    def gradients(values: Tensor, learned: Parameters, knobs: Parameters) -> tuple[Tensor, Parameters]:
        bound = plugins.bind(activation, knobs)
        return grad(lambda v, p: bound.apply(v, p).square().sum(), argnums=(0, 1))(values, learned)

    key = plugins.canonical_json([plugins.structure_of(activation), *sorted(knobs)])
    together = Traced(("activation", key), vmap(gradients))
    slopes = together(values, stacked, knobs)
    kind = slopes[0].dtype
    assert kind == torch.float32, f"float32 inputs give {kind}: bring knobs to the inputs' precision"
    for lane in range(3):
        twice = torch.tensor([lane, lane])
        arguments = ({n: t[twice] for n, t in parts.items()} for parts in (stacked, knobs))
        alone = together(values[twice], *arguments)
        assert torch.equal(slopes[0][lane], alone[0][0]), "a lane's gradients depend on its neighbours"
        for part, tensor in slopes[1].items():
            same = torch.equal(tensor[lane], alone[1][part][0])
            assert same, f"a lane's gradient of {part} depends on its neighbours"


def check_large_inputs(configuration: Configuration) -> None:
    """Assert that inputs up to 10,000 give finite values and gradients, in float32 and bfloat16."""
    activation: Activation = build("activation", configuration)
    learned = learned_by(activation)
    for dtype in (torch.float32, torch.bfloat16):
        numbers = [-1e4, -50.0, 0.0, 0.0, 1e4, 50.0, 3.0, -2.0]
        values = torch.tensor(numbers, dtype=dtype, requires_grad=True)
        tensors = {name: tensor.to(dtype) for name, tensor in learned.items()}
        result = activation.apply(values, tensors)
        assert result.dtype == dtype, f"{dtype} inputs give {result.dtype}"
        result.sum().backward()
        assert bool(result.isfinite().all()), f"{dtype}: {result.tolist()} of {values.tolist()}"
        assert values.grad is not None, "no gradient comes back"
        assert bool(values.grad.isfinite().all()), f"{dtype}: a gradient is not finite"
