"""What each scorer costs next to softmax: weights and their gradient, as the engine computes them.

    python -m benchmarks.scorers [--keys 64,1024] [--seconds 1]

Two lanes of four heads, as many queries as keys, 16 channels, causal, float32, one thread; stacked with vmap, recorded
and replayed. Prints processor time relative to softmax, forward alone and forward with backward, and one JSON line.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap

from spaces import plugins
from workers.engine.machine.process import prepare
from workers.networks.scorers import Scorer
from workers.numerics.tracing import Traced

LANES, HEADS, CHANNELS = 2, 4, 16


def main() -> None:
    """Time every member of the family at each number of keys."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", default="64,1024")
    parser.add_argument("--seconds", type=float, default=1.0, help="least time spent on each")
    arguments = parser.parse_args()
    prepare()
    found: dict[str, dict[str, list[float]]] = {}
    for keys in map(int, arguments.keys.split(",")):
        times = {name: seconds_of(name, keys, arguments.seconds) for name in plugins.names(Scorer)}
        base = times["softmax"]
        print(f"\n{keys} keys: softmax {base[0] * 1e3:.2f} ms forward, {base[1] * 1e3:.2f} ms with backward; relative:")
        for name, (forward, both) in sorted(times.items(), key=lambda item: item[1][1]):
            print(f"  {name:24} {forward / base[0]:6.2f} {both / base[1]:6.2f}")
            found.setdefault(name, {})[str(keys)] = [round(forward / base[0], 2), round(both / base[1], 2)]
    print(json.dumps({"benchmark": "scorers", "relative": found}))


def seconds_of(name: str, keys: int, seconds: float) -> tuple[float, float]:
    """Processor time of the weights alone, and of the weights with their gradient."""
    scorer = plugins.build(Scorer, {"name": name})
    visible = torch.ones(keys, keys, dtype=torch.bool).tril()
    starts = {
        n: p.start.values(torch.rand(1, p.shape[0]).double())[0].float() for n, p in scorer.parameters(HEADS).items()
    }

    def weights(query: Tensor, key: Tensor, learned: dict[str, Tensor]) -> Tensor:
        return scorer.weights(query, key, visible, learned)

    def gradient(query: Tensor, key: Tensor, learned: dict[str, Tensor]) -> Any:
        return grad(lambda *parts: weights(*parts).square().sum(), argnums=(0, 1, 2))(query, key, learned)

    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, LANES, HEADS, keys, CHANNELS, generator=generator)
    learned = {n: value.expand(LANES, *value.shape).contiguous() for n, value in starts.items()}
    functions = [Traced((name, keys, index), vmap(function)) for index, function in enumerate((weights, gradient))]
    forward, both = (fastest(lambda f=f: f(query, key, learned), seconds) for f in functions)
    return forward, both


def fastest(call: Callable[[], object], seconds: float, clock: Callable[[], float] = time.thread_time) -> float:
    """The least time of one call, over as many as fit, at least three; by default of this thread's processor."""
    call()
    best, end, calls = float("inf"), time.monotonic() + seconds, 0
    while time.monotonic() < end or calls < 3:
        start = clock()
        call()
        best, calls = min(best, clock() - start), calls + 1
    return best


if __name__ == "__main__":
    main()
