"""How often claims are confirmed, refuted and left undecided, on made trials: `python -m benchmarks.claims`.

Legend: the gain of interest is one standard deviation of the paired difference of the two arms. Where there is no gain
a claim should be refuted, where there is that of interest confirmed, both with the power of the seeds.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Mapping
from math import sqrt

import numpy as np
import polars as pl
from numpy.typing import NDArray

from search.analysis.arms.claims import ClaimResult, decide_claims
from search.analysis.statistics.power import find_power
from search.analysis.statistics.verdicts import SURE
from spaces.experiment import Claim

Numbers = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int, float], Numbers]
"""Values of two arms, [2, seeds]; the mean of the second one is larger by so many times the gain of interest."""
SEEDS = (4, 5, 6, 8, 12, 16)


def _normal(random: np.random.Generator, seeds: int, gains: float) -> Numbers:
    draws = random.normal(size=(2, seeds)) / sqrt(2) + random.normal(size=seeds)
    return draws + np.array([[0.0], [gains]])


def _trick(random: np.random.Generator, seeds: int, gains: float) -> Numbers:
    """Half of all models find a trick."""
    draws = 2.0 * (random.random((2, seeds)) < 0.5) + random.normal(size=(2, seeds)) / 10
    return draws + np.array([[0.0], [gains * sqrt(2.02)]])


def _accuracy(answers: int, right: float) -> tuple[Draw, float]:
    """Shares of so many right answers; and the gain of interest."""
    gain = sqrt(2 * right * (1 - right) / answers)

    def draw(random: np.random.Generator, seeds: int, gains: float) -> Numbers:
        chance = right - gain * np.array([[gains], [0.0]])
        return random.binomial(answers, chance, size=(2, seeds)) / answers

    return draw, gain


KINDS: Mapping[str, tuple[str, Draw, float]] = {
    "normal": ("mse/raw", _normal, 1.0),
    "a trick found or not": ("mse/raw", _trick, sqrt(2.02)),
    "accuracy of 16": ("accuracy/raw", *_accuracy(16, 0.7)),
    "accuracy of 32": ("accuracy/raw", *_accuracy(32, 0.7)),
    "accuracy of 256": ("accuracy/raw", *_accuracy(256, 0.7)),
    "accuracy of 32, 97 % right": ("accuracy/raw", *_accuracy(32, 0.97)),
}
"""Kind of metric -> its name, its values, and the gain of interest."""


def decide_made_claims(kind: str, seeds: int, gains: float, claims: int, seed: int = 0) -> list[ClaimResult]:
    """Decide so many claims, each about two arms of its own."""
    metric, draw, gain = KINDS[kind]
    random = np.random.default_rng([seed, seeds, round(1000 * gains), *kind.encode()])
    claim = Claim(
        arm="b",
        than="a",
        direction="maximize",
        metric=metric,
        at="last",
        difference=gain,
        seeds=seeds,
        fresh=False,
    )
    names = {"condition": [""] * 2 * seeds, "arm": ["a"] * seeds + ["b"] * seeds, "seed": [*range(seeds)] * 2}
    frame = pl.DataFrame({**names, "state": ["finished"] * 2 * seeds})
    made = (frame.with_columns(value=draw(random, seeds, gains).ravel()) for _ in range(claims))
    return [decide_claims([claim], [results])[0] for results in made]


def count_verdicts(results: list[ClaimResult]) -> dict[str, float]:
    """Verdict -> its share."""
    counts = Counter(result.verdict for result in results)
    return {verdict: counts[verdict] / len(results) for verdict in ("confirmed", "refuted", "undecided")}


def main() -> None:
    """Print the shares of verdicts, and the power that was said."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--claims", type=int, default=1_000, help="of each row and case")
    claims = parser.parse_args().claims
    columns = ("metric", "seeds", "none: confirmed", "none: refuted", "gain: confirmed", "gain: refuted", "power said")
    print(f"| {' | '.join(columns)} |")
    print("|---|---|---|---|---|---|---|")
    for kind in KINDS:
        for seeds in SEEDS:
            none, gain = (decide_made_claims(kind, seeds, gains, claims) for gains in (0.0, 1.0))
            said = float(np.nanmean([result.power for result in gain]))
            shares = [count_verdicts(none)[name] for name in ("confirmed", "refuted")]
            shares += [*list(count_verdicts(gain).values())[:2], said]
            print(f"| {kind} | {seeds} | {' | '.join(f'{100 * share:.1f}' for share in shares)} |", flush=True)
    exact = ", ".join(f"{100 * find_power(seeds, 1.0, 1.0, SURE):.1f} % of {seeds}" for seeds in SEEDS)
    print(f"\nPower of the t-test, had the spread been known: {exact} seeds.")


if __name__ == "__main__":
    main()
