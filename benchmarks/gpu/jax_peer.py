"""The minimal transformer in JAX: lanes by vmap, steps by scan under jit. Needs `pip install jax`."""

from __future__ import annotations

import os
import time
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else three quarters of a GPU's memory are JAX's

import jax
import jax.numpy as jnp

from benchmarks.engine import KNOBS
from benchmarks.peers.set_complement import SetComplement

jax.config.update("jax_default_matmul_precision", "highest")  # float32 as ours, not TF32
STEPS = 20
"""Steps of a call: what starting one costs is shared by them."""


def initial(shape: SetComplement, key: Any) -> dict[str, Any]:
    """Return one model's parameters, matrices as in plain PyTorch: truncated normal, deviation .02."""
    v, d, k, r = shape.vocabulary, shape.width, shape.key_width, shape.value_width
    sizes = {"embedding": (v, d), "maps": (d, 2 * k + r), "output": (r, d), "unembedding": (d, v)}
    keys = jax.random.split(key, len(sizes))
    drawn = zip(sizes.items(), keys, strict=True)
    made = {name: 0.02 * jax.random.truncated_normal(one, -2, 2, size) for (name, size), one in drawn}
    return {**made, "gain": jnp.ones(d)}


def loss_of(parameters: dict[str, Any], shape: SetComplement, tokens: Any) -> Any:
    """Return the mean cross-entropy of the next token; tokens [N, s + 1]."""
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    stream = parameters["embedding"][inputs]
    unit = stream * jax.lax.rsqrt(jnp.square(stream).mean(-1, keepdims=True) + 1e-6) * parameters["gain"]
    k = shape.key_width
    mapped = unit @ parameters["maps"]
    query, key, value = mapped[..., :k], mapped[..., k : 2 * k], mapped[..., 2 * k :]
    logits = jnp.einsum("nqc,nkc->nqk", query, key) * k**-0.5
    causal = jnp.tril(jnp.ones(logits.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(causal, logits, -jnp.inf), -1)
    outputs = (stream + weights @ (value @ parameters["output"])) @ parameters["unembedding"]
    return -jnp.take_along_axis(jax.nn.log_softmax(outputs), targets[..., None], -1).mean()


def advance(shape: SetComplement, state: Any, key: Any) -> tuple[Any, Any]:
    """Make one AdamW step with clipping on data drawn for it; the state is parameters, both moments and the count."""
    parameters, first, second, count = state
    tokens = jnp.argsort(jax.random.uniform(key, (shape.batch, shape.vocabulary)), -1)[:, : shape.length + 1]
    loss, gradient = jax.value_and_grad(loss_of)(parameters, shape, tokens)
    norm = jnp.sqrt(sum(jnp.square(g).sum() for g in jax.tree.leaves(gradient)))
    scale = jnp.minimum(1.0, KNOBS["optimizer.clip_norm"] / (norm + 1e-6))
    rate, beta1, beta2 = (KNOBS[f"optimizer.{name}"] for name in ("learning_rate", "beta1", "beta2"))
    count = count + 1
    first = jax.tree.map(lambda m, g: beta1 * m + (1 - beta1) * g * scale, first, gradient)
    second = jax.tree.map(lambda m, g: beta2 * m + (1 - beta2) * jnp.square(g * scale), second, gradient)

    def move(p: Any, m: Any, s: Any) -> Any:
        step = m / (1 - beta1**count) / (jnp.sqrt(s / (1 - beta2**count)) + KNOBS["optimizer.epsilon"])
        return p * (1 - rate * KNOBS["optimizer.weight_decay"]) - rate * step

    return (jax.tree.map(move, parameters, first, second), first, second, count), loss


def jax_rate(shape: SetComplement, platform: str, lanes: int, seconds: float) -> float:
    """Return model-steps per second of so many stacked models; the fastest of several calls, none of them compiling."""
    device = jax.devices("gpu" if platform == "cuda" else "cpu")[0]
    with jax.default_device(device):
        parameters = jax.vmap(lambda key: initial(shape, key))(jax.random.split(jax.random.key(0), lanes))
        zeros = jax.tree.map(jnp.zeros_like, parameters)
        state = parameters, zeros, zeros, jnp.zeros(lanes)

        @jax.jit
        def train(state: Any, keys: Any) -> Any:
            several = jax.vmap(lambda one, key: advance(shape, one, key))
            return jax.lax.scan(several, state, keys)

        def keys_of(call: int) -> Any:
            return jax.random.split(jax.random.key(call), (STEPS, lanes))

        state, losses = jax.block_until_ready(train(state, keys_of(0)))
        taken: list[float] = []
        while sum(taken) < seconds:
            keys = jax.block_until_ready(keys_of(len(taken) + 1))
            start = time.perf_counter()
            state, losses = jax.block_until_ready(train(state, keys))
            taken.append(time.perf_counter() - start)
    assert bool(jnp.isfinite(losses).all()), "the loss is not finite"
    return lanes * STEPS / min(taken)
