"""Graft's minimal transformer, transformer and regressor in JAX, from parameters of the same names, and a pack's steps.

Lanes by vmap or by lax.map, steps by scan under jit. Needs `pip install jax`. What is covered: the fields that
benchmarks.compilers' cases have; its losses are held against Graft's before anything is timed.

Legend: N sequences, s positions, d width, h heads, c = d / h channels of a head.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else three quarters of a GPU's memory are JAX's

import jax
import jax.numpy as jnp
from jax import lax

jax.config.update("jax_default_matmul_precision", "highest")  # float32 as ours, not TF32
STEPS = 20
"""Steps of a call: what starting one costs is shared by them."""
RATE, BETA1, BETA2, EPSILON, DECAY, CLIP = 1e-4, 0.9, 0.999, 1e-8, 0.01, 1.0
"""The constants of AdamW and of gradient clipping."""

Arrays = Mapping[str, Any]
Weigh = Callable[[Any, Any, Arrays], Any]
"""From logits [N, h, s, s], what is visible [s, s], and what a layer has learned, to weights [N, h, s, s]."""


def softmax(logits: Any, visible: Any, learned: Arrays) -> Any:
    """Return what the visible logits' softmax is."""
    return jax.nn.softmax(jnp.where(visible, logits, -jnp.inf), -1)


def entmax15(logits: Any, visible: Any, learned: Arrays) -> Any:
    """Return the 1.5-entmax, by bisection (Peters et al. 2019, algorithm 1), which is faster here than by sorting."""
    halves = jnp.where(visible, logits, -1e30)
    halves = (halves - lax.stop_gradient(halves.max(-1, keepdims=True))) / 2
    return _entmax15(halves)


@jax.custom_vjp
def _entmax15(halves: Any) -> Any:
    def halve(_: int, ends: tuple[Any, Any]) -> tuple[Any, Any]:
        low, high = ends
        middle = (low + high) / 2
        is_low = (jnp.maximum(halves - middle, 0) ** 2).sum(-1, keepdims=True) >= 1
        return jnp.where(is_low, middle, low), jnp.where(is_low, high, middle)

    start = jnp.full_like(halves[..., :1], -1.0)
    low, _ = lax.fori_loop(0, 24, halve, (start, jnp.zeros_like(start)))
    weights = jnp.maximum(halves - low, 0) ** 2
    return weights / weights.sum(-1, keepdims=True)


def _forward(halves: Any) -> tuple[Any, Any]:
    weights = _entmax15(halves)
    return weights, weights


def _backward(weights: Any, gradient: Any) -> tuple[Any]:
    root = jnp.sqrt(weights)
    product = gradient * root
    return (2 * (product - root * product.sum(-1, keepdims=True) / root.sum(-1, keepdims=True)),)


_entmax15.defvjp(_forward, _backward)


def bent(logits: Any, visible: Any, learned: Arrays) -> Any:
    """Return the weights of the scorer `bent` (tests/support/outside_parts.py)."""
    size = jnp.log(jnp.abs(logits) + jnp.sqrt(logits**2 + 1))
    return softmax(learned["w"][:, None, None] * size * jnp.sign(logits) / 0.8, visible, learned)


WEIGH: Mapping[str, Weigh] = {"softmax": softmax, "entmax": entmax15, "bent": bent}


def minimal(model: Any, weigh: Weigh, parameters: Arrays, inputs: Any) -> Any:
    """Return the minimal transformer's logits [N, s, v] of tokens [N, s]."""
    stream = parameters["embedding"][inputs]
    scale = lax.rsqrt(jnp.square(stream).mean(-1, keepdims=True) + model.norm_epsilon)
    unit = stream * scale * parameters["norm"]
    maps = jnp.concatenate([parameters["query"], parameters["key"], parameters["value"]], -1)
    query, key, value = jnp.split(unit @ maps, [model.key_width, 2 * model.key_width], -1)
    logits = jnp.einsum("nqc,nkc->nqk", query, key)[:, None] * model.key_width**-0.5
    learned = {name.removeprefix("scorer."): array for name, array in parameters.items()}
    weights = weigh(logits, jnp.tril(jnp.ones(logits.shape[-2:], bool)), learned)[:, 0]
    return (stream + weights @ (value @ parameters["output"])) @ parameters["unembedding"]


def transformer(model: Any, weigh: Weigh, parameters: Arrays, inputs: Any) -> Any:
    """Return a transformer's or a regressor's outputs [N, s, v] of tokens [N, s] or vectors [N, s, f]."""
    stream = (
        parameters["embedding"][inputs]
        if "embedding" in parameters
        else inputs @ parameters["read_in"] + parameters["read_in_bias"]
    )
    if "position.table" in parameters:
        stream = stream + parameters["position.table"][: stream.shape[1]]
    for number in range(model.depth):
        first = f"layers.{number}."
        layer = {name.removeprefix(first): array for name, array in parameters.items() if name.startswith(first)}
        for name, part in (("attention", _attend), ("mlp", _mlp)):
            if name == "mlp" and "mlp_in" not in layer:
                continue
            given = _norm(stream, layer, f"{name}_norm") if model.pre_norm else stream
            stream = stream + part(model, weigh, layer, given)
            stream = stream if model.pre_norm else _norm(stream, layer, f"{name}_norm")
    stream = _norm(stream, parameters, "norm") if "norm" in parameters else stream
    if "read_out" in parameters:
        return stream @ parameters["read_out"] + parameters["read_out_bias"]
    return stream @ (parameters["unembedding"] if "unembedding" in parameters else parameters["embedding"].T)


def _norm(stream: Any, parameters: Arrays, name: str) -> Any:
    centred = stream - stream.mean(-1, keepdims=True)
    return (
        centred * lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5) * parameters[name]
        + parameters[f"{name}_bias"]
    )


def _mlp(model: Any, weigh: Weigh, layer: Arrays, stream: Any) -> Any:
    hidden = jax.nn.gelu(stream @ layer["mlp_in"] + layer["mlp_in_bias"], approximate=False)
    return hidden @ layer["mlp_out"] + layer["mlp_out_bias"]


def _attend(model: Any, weigh: Weigh, layer: Arrays, stream: Any) -> Any:
    packed = stream @ layer["query_key_value"] + layer["query_key_value_bias"]
    parts = packed.reshape(*stream.shape[:2], 3, model.heads, -1).transpose(2, 0, 3, 1, 4)  # [3, N, h, s, c]
    query, key, value = parts
    if type(model.position).__name__ == "Rotary":
        query, key = _turn(query), _turn(key)
    logits = query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5
    learned = {name.removeprefix("scorer."): array for name, array in layer.items()}
    weights = weigh(logits, jnp.tril(jnp.ones(logits.shape[-2:], bool)), learned)
    mixed = (weights @ value).swapaxes(1, 2).reshape(stream.shape)
    return mixed @ layer["output"] + layer["output_bias"]


def _turn(vectors: Any) -> Any:
    length, channels = vectors.shape[-2:]
    angles = jnp.arange(length)[:, None] * 10000.0 ** (-jnp.arange(0, channels, 2) / channels)
    first, second = jnp.split(vectors, 2, -1)
    cosine, sine = jnp.cos(angles), jnp.sin(angles)
    return jnp.concatenate([first * cosine - second * sine, first * sine + second * cosine], -1)


def make_loss(model: Any, scorer: str, kind: str | None, last_alone: bool) -> Callable[[Arrays, Arrays], Any]:
    """Return the loss of parameters and a batch: inputs, and targets and weights of positions [N, s].

    `kind`: as `Task.position_loss`; None: cross-entropy. `last_alone`: no other position counts.
    """
    compute = minimal if type(model).__name__ == "Minimal" else transformer

    def loss(parameters: Arrays, batch: Arrays) -> Any:
        outputs = compute(model, WEIGH[scorer], parameters, batch["inputs"])
        targets, weights = batch["targets"], batch["weights"]
        if last_alone:
            outputs, targets, weights = outputs[:, -1:], targets[:, -1:], weights[:, -1:]
        if kind == "margin":
            return (jax.nn.softplus(-outputs[..., 0] * targets) * weights).sum()
        if kind == "squared":
            return (jnp.square(outputs[..., 0] - targets) * weights).sum()
        picked = jnp.take_along_axis(jax.nn.log_softmax(outputs), targets[..., None], -1)[..., 0]
        return -(picked * weights).sum()

    return loss


def _advance(loss: Callable[[Arrays, Arrays], Any], state: Any, batch: Arrays) -> tuple[Any, Any]:
    """Make one AdamW step with clipping; the state is parameters, both moments and the count."""
    parameters, first, second, count = state
    value, gradient = jax.value_and_grad(loss)(parameters, batch)
    norm = jnp.sqrt(sum(jnp.square(g).sum() for g in jax.tree.leaves(gradient)))
    scale = jnp.minimum(1.0, CLIP / (norm + 1e-6))
    count = count + 1
    first = jax.tree.map(lambda m, g: BETA1 * m + (1 - BETA1) * g * scale, first, gradient)
    second = jax.tree.map(lambda m, g: BETA2 * m + (1 - BETA2) * jnp.square(g * scale), second, gradient)

    def move(p: Any, m: Any, s: Any) -> Any:
        step = m / (1 - BETA1**count) / (jnp.sqrt(s / (1 - BETA2**count)) + EPSILON)
        return p * (1 - RATE * DECAY) - RATE * step

    return (jax.tree.map(move, parameters, first, second), first, second, count), value


def seconds_of_step(
    loss: Callable[[Arrays, Arrays], Any],
    parameters: Arrays,
    batch: Arrays,
    *,
    over: str,
    platform: str = "cpu",
    seconds: float = 2.0,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Return the seconds of a step of all lanes, of the fastest of several calls, none of them compiling.

    `parameters`, `batch`: with lanes first. `over`: how lanes are gone over, `vmap` or `map`. `clock`: what is read.
    """
    with jax.default_device(jax.devices(platform)[0]):
        weights = {name: jnp.asarray(array) for name, array in parameters.items()}
        given = {name: jnp.asarray(array) for name, array in batch.items()}
        lanes = len(next(iter(weights.values())))
        zeros = jax.tree.map(jnp.zeros_like, weights)
        state = weights, zeros, zeros, jnp.zeros(lanes)

        def several(state: Any, _: Any) -> tuple[Any, Any]:
            if over == "vmap":
                return jax.vmap(lambda lane, data: _advance(loss, lane, data))(state, given)
            return lax.map(lambda both: _advance(loss, *both), (state, given))

        train = jax.jit(lambda state: lax.scan(several, state, length=STEPS))
        state, losses = jax.block_until_ready(train(state))
        taken: list[float] = []
        ends = time.perf_counter() + seconds
        while not taken or time.perf_counter() < ends:
            start = clock()
            state, losses = jax.block_until_ready(train(state))
            taken.append(clock() - start)
    assert bool(jnp.isfinite(losses).all()), "the loss is not finite"
    return min(taken) / STEPS
