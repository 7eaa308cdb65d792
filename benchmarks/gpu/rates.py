"""How fast a device trains: Graft's steps beside what one writes in plain PyTorch and under torch.compile.

Needs torch, numpy and PyYAML alone; JAX is measured where it is installed.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, stack_module_state, vmap

from benchmarks.compiled import jax_seconds, start_of
from benchmarks.engine import KNOBS, SHAPES, seconds_of_calls
from benchmarks.peers.plain import PlainTrial
from benchmarks.peers.set_complement import SetComplement
from spaces.records import Trial
from tests.support.trials import config, trial
from workers.engine import fused
from workers.engine.fused.device import limits_of
from workers.engine.fused.step import find_tile_obstacle
from workers.engine.machine.memory import Shortage, attempt
from workers.engine.machine.process import use_device
from workers.engine.pack import CHECK_STEPS, Pack
from workers.engine.speed.timing import WARM_UP_STEPS, MakeStep, make_pack_of_copies, step_rate
from workers.engine.step import USUAL_LANES, TracedStep, step_of
from workers.training.recipe import Recipe

Measure = Callable[[], dict[str, Any]]
FOREVER = 10**9
BESIDE = 64
"""Lanes of each of two packs that train side by side."""
SMALL = ("set complement", "modular addition, width 16, 1 layer")
"""The cases of which two packs are to leave much of a GPU idle."""
LANES = {"cpu": (8, 32), "cuda": (32, 256, 1024, 4096)}
SECONDS = 2.0
SHAPE: SetComplement = SHAPES["large"]
GPT = {"name": "transformer", "heads": 4}
CASES: dict[str, dict[str, Any]] = {
    "set complement": {"task": SHAPE.fixed()["task"], "model": SHAPE.fixed()["model"], "batch": 128},
    "set complement, both dropouts": {
        "task": SHAPE.fixed()["task"],
        "model": {**SHAPE.fixed()["model"], "embedding_dropout": 0.1, "residual_dropout": 0.1},
        "batch": 128,
    },
    "set complement, SSA": {
        "task": SHAPE.fixed()["task"],
        "model": {**SHAPE.fixed()["model"], "scorer": {"name": "ssa"}},
        "batch": 128,
    },
    "modular addition, width 16, 1 layer": {
        "task": {"name": "add_mod", "modulus": 13},
        "model": {**GPT, "width": 16, "depth": 1},
        "batch": 64,
    },
    "copying, width 32, 2 layers": {
        "task": {"name": "copying", "length": 16, "validation_length": 16, "test_length": 32},
        "model": {**GPT, "width": 32, "depth": 2},
        "batch": 32,
    },
    "modular addition, width 64": {
        "task": {"name": "add_mod", "modulus": 53},
        "model": {**GPT, "width": 64, "depth": 2},
        "batch": 64,
    },
    "copying, width 128, 4 layers": {
        "task": {"name": "copying", "length": 32, "validation_length": 32, "test_length": 64},
        "model": {**GPT, "width": 128, "depth": 4},
        "batch": 32,
    },
}
"""What is trained; the widths of the papers' smaller models."""


def measurements(device: str) -> Iterator[tuple[str, Measure]]:
    """Yield the name of each measurement and the measurement; the peers of a case come before its packs."""
    where = torch.device(device)
    yield "ceilings", lambda: ceilings(where)
    yield "set complement: plain PyTorch, one model", lambda: {"model-steps/s": plain_rate(device)}
    for lanes in LANES[where.type]:
        name = f"set complement: torch.func vmap + torch.compile, {lanes} lanes"
        yield name, lambda lanes=lanes: {"model-steps/s": compiled_rate(where, lanes)}
    if importlib.util.find_spec("jax"):
        for lanes in LANES[where.type]:
            name = f"set complement: JAX vmap + scan, {lanes} lanes"
            yield name, lambda lanes=lanes: {"model-steps/s": jax_rate(where, lanes)}
    for case, settings in CASES.items():
        template = trial_of(settings)
        for step, make in steps_of(template, where).items():
            for lanes in LANES[where.type]:
                rate = partial(step_rate, template, width=lanes, device=device, make=make, seconds=SECONDS)
                yield f"{case}: {step}, {lanes} lanes", partial(rate_or_shortage, rate, device)
        if case in SMALL:
            yield f"{case}: two packs of {BESIDE} lanes", partial(rates_side_by_side, template, device)


def rates_side_by_side(template: Trial, device: str) -> dict[str, Any]:
    """Return model-steps per second of two packs of copies, in threads of their own: one after the other, and both at
    once. On a GPU each has a stream of its own.
    """

    def begin(slot: int) -> Pack:
        use_device(torch.device(device), slot)
        pack = make_pack_of_copies(template, BESIDE, device)
        pack.train(WARM_UP_STEPS + 1)  # records the step, and captures it
        return pack

    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
        both = [(thread, thread.submit(begin, slot).result()) for slot, thread in enumerate((first, second))]
        alone = [thread.submit(_rate, pack).result() for thread, pack in both]
        beside = sum(rate.result() for rate in [thread.submit(_rate, pack) for thread, pack in both])
    one_after_other = 2 / sum(1 / rate for rate in alone)
    return {"one after the other": one_after_other, "side by side": beside, "ratio": round(beside / one_after_other, 2)}


def _rate(pack: Pack) -> float:
    start, steps = time.perf_counter(), 0
    while (spent := time.perf_counter() - start) < SECONDS or not steps:
        pack.train(CHECK_STEPS)
        steps += CHECK_STEPS
    return BESIDE * steps / spent


def rate_or_shortage(rate: Callable[[], float], device: str) -> dict[str, Any]:
    """Return a rate, or that there is no memory for so many lanes."""
    outcome = attempt(rate, device)
    return {"memory": "not enough"} if isinstance(outcome, Shortage) else {"model-steps/s": outcome}


def trial_of(settings: dict[str, Any]) -> Trial:
    """Return a trial that never validates."""
    whole = config(steps=FOREVER, every=FOREVER, batch=settings["batch"], dtype="float32")
    return trial(0, {**whole, "task": settings["task"], "model": settings["model"]})


def steps_of(template: Trial, device: torch.device) -> dict[str, MakeStep]:
    """Return the ways in which a device can make a trial's step; on a GPU the fused one also where it is slower."""
    steps: dict[str, MakeStep] = {"traced step": TracedStep}
    recipe = Recipe.of(template.config).pad()
    if device.type == "cpu":
        return (
            {"native step": step_of, **steps}
            if type(step_of(recipe, template.structure, device)) is not TracedStep
            else steps
        )
    reason = fused.find_obstacle(recipe, device, USUAL_LANES)
    if reason is None or "traced step's speed" in reason:
        steps["fused step"] = lambda recipe, _, where: fused.make_step(recipe, where)
    if find_tile_obstacle(recipe, limits_of(device)) is None:
        steps["fused step in TF32"] = lambda recipe, _, where: fused.make_step(recipe, where, tf32=True)
    return steps


def ceilings(device: torch.device) -> dict[str, Any]:
    """Measure products and a triad of random numbers: ones would spare a GPU power, and raise its clock."""
    size, length = (256, 1 << 22) if device.type == "cpu" else (8192, 1 << 28)

    def product(dtype: torch.dtype) -> float:
        left = torch.randn(size, size, device=device).to(dtype)
        return 2 * size**3 / min(seconds_of_calls(lambda: left @ left, str(device), SECONDS / 2))

    a, b, c = torch.randn(3, length, device=device)
    triad = min(seconds_of_calls(lambda: torch.add(b, c, alpha=2, out=a), str(device), SECONDS / 2))
    names = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    rates = {f"{name} GFLOP/s": round(product(dtype) / 1e9, 1) for name, dtype in names.items()}
    return {**rates, "GB/s": round(12 * length / triad / 1e9, 1)}


def plain_rate(device: str) -> float:
    """Return steps per second of one model in plain PyTorch."""
    model = PlainTrial(SHAPE, KNOBS, seed=0, steps=FOREVER, device=device)
    return 10 / min(seconds_of_calls(lambda: model.train(10), device, SECONDS))


def jax_rate(device: torch.device, lanes: int) -> float:
    """Return model-steps per second of stacked models in JAX, on batches that it need not draw."""
    recipe = Recipe.of(trial_of(CASES["set complement"]).config)
    platform = "gpu" if device.type == "cuda" else "cpu"
    flat, batch = start_of(recipe, lanes)
    return lanes / jax_seconds(recipe, flat, batch, "softmax", over="vmap", platform=platform, seconds=SECONDS)


def compiled_rate(device: torch.device, lanes: int) -> float:
    """Return model-steps per second of stacked models under vmap and torch.compile, with CUDA graphs on a GPU.

    Each step draws data, clips, and moves the parameters by AdamW, as plain PyTorch's does; no average is kept.
    """
    torch.manual_seed(0)
    models = [SHAPE.model(KNOBS).to(device) for _ in range(lanes)]
    template = models[0]
    parameters, _ = stack_module_state(models)
    parameters = {name: tensor.detach() for name, tensor in parameters.items()}
    buffers = dict(template.named_buffers())
    first = {name: torch.zeros_like(tensor) for name, tensor in parameters.items()}
    second = {name: torch.zeros_like(tensor) for name, tensor in parameters.items()}

    def loss_of(weights: dict[str, Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
        logits = functional_call(template, {**weights, **buffers}, (inputs,))
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    gradient_of = vmap(grad_and_value(loss_of))
    rate, beta1, beta2 = (KNOBS[f"optimizer.{name}"] for name in ("learning_rate", "beta1", "beta2"))

    def step(count: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        gradient, loss = gradient_of(parameters, inputs, targets)
        norms = torch.stack([g.flatten(1).square().sum(1) for g in gradient.values()]).sum(0).sqrt()
        scale = (KNOBS["optimizer.clip_norm"] / (norms + 1e-6)).clamp(max=1)
        for name, moved in gradient.items():
            clipped = moved * scale.view(-1, *[1] * (moved.dim() - 1))
            first[name].lerp_(clipped, 1 - beta1)
            second[name].lerp_(clipped.square(), 1 - beta2)
            mean, square = first[name] / (1 - beta1**count), second[name] / (1 - beta2**count)
            parameters[name].mul_(1 - rate * KNOBS["optimizer.weight_decay"])
            parameters[name].sub_(rate * mean / (square.sqrt() + KNOBS["optimizer.epsilon"]))
        return loss.mean()

    for tensor in (*parameters.values(), *first.values(), *second.values()):
        torch._dynamo.mark_static_address(tensor)  # else what is written in place keeps the step out of a CUDA graph
    run = torch.compile(step, mode="reduce-overhead" if device.type == "cuda" else "default")
    count = torch.zeros((), device=device)

    def train() -> None:
        count.add_(1)
        drawn = torch.rand(lanes, SHAPE.batch, SHAPE.vocabulary, device=device).argsort(-1)[..., : SHAPE.length + 1]
        run(count, drawn[..., :-1], drawn[..., 1:])

    ends = time.monotonic() + 3 * SECONDS
    for _ in range(5):  # compiles, and records graphs
        train()
        if time.monotonic() > ends:
            break
    return lanes / min(seconds_of_calls(train, str(device), SECONDS))
