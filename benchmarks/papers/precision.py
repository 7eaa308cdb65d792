"""Theorem 4.2 of paper 003 measured on trained models of the set complement task.

    python -m benchmarks.papers.precision --database papers.db

Trains the plan's study `precision` where it is not in the database, and each of its trials again for its
weights. The answer of a minimal transformer depends on the set of its tokens and on the last token alone, as there
are no positions: all inputs are looked at. docs/experiments/paper-003.md has what was planned and what came out.

Legend: v tokens, d width, s tokens of an input, S sets of s tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import polars as pl
from numpy.typing import NDArray

import graft
from benchmarks.papers.trials import trained_study
from search.analysis.statistics.paired import mean_interval

Matrix = NDArray[np.float64]

STUDY = "precision"


@dataclass(frozen=True, kw_only=True)
class Tables:
    """A minimal transformer as three matrices [v, v] by token (paper 003, section 3.2)."""

    bias: Matrix
    """B: what the last token adds to the logits."""
    displacement: Matrix
    """D: what each token of the input adds, weighed by attention."""
    attention: Matrix
    """Weights before they are divided by their sum; the last token looks at the others."""

    @classmethod
    def of(cls, weights: Mapping[str, Matrix], *, epsilon: float, constant: bool) -> Tables:
        """Return the matrices of a model's weights by name; `constant`: each token has the same attention."""
        embedding, unembedding = weights["embedding"], weights["unembedding"]
        mean_squares = np.square(embedding).mean(1, keepdims=True)
        normed = embedding / np.sqrt(mean_squares + epsilon) * weights["norm"]
        query, key = normed @ weights["query"], normed @ weights["key"]
        return cls(
            bias=embedding @ unembedding,
            displacement=normed @ weights["value"] @ weights["output"] @ unembedding,
            attention=np.ones_like(query @ key.T) if constant else np.exp(query @ key.T / np.sqrt(key.shape[1])),
        )

    def logits(self, present: NDArray[np.bool_]) -> Matrix:
        """Return the logits [S, v, v] of sets [S, v] by the token that stands last (equation 3)."""
        weights = self.attention * present[:, None, :]
        return self.bias + weights / weights.sum(-1, keepdims=True) @ self.displacement


@dataclass(frozen=True, kw_only=True)
class Precision:
    """How precise a model is, in logits."""

    margins: Matrix
    """The smallest margin for each s = 1 ... v - 1: the least logit of an absent token less the largest logit of a
    token of the input, over all inputs of s tokens."""
    spreads: Matrix
    """The largest difference between the logits of two absent tokens for each s; it is 0 in the paper's definition."""
    balance: float
    """The largest difference between an absent token and the input, of inputs of one token (equation 6)."""

    @property
    def precision(self) -> float:
        """C: the precision at lengths 1 and 2; not positive where the model is not precise there."""
        return float(self.margins[:2].min())

    @property
    def is_balanced(self) -> bool:
        """Whether equation 6 holds, which part (c) of the theorem supposes."""
        return self.balance < 2 * self.precision

    @property
    def kept(self) -> Matrix:
        """The margin divided by 2 C / s for each s = 3 ... v - 1; the theorem says that it is at least 1."""
        lengths = np.arange(1, len(self.margins) + 1)
        return (self.margins * lengths / (2 * self.precision))[2:]


def measure(tables: Tables) -> Precision:
    """Measure a model on all inputs, of each number of tokens."""
    tokens = len(tables.bias)
    margins, spreads, balance = list[float](), list[float](), 0.0
    for size in range(1, tokens):
        sets = np.array([*combinations(range(tokens), size)])
        present = np.zeros((len(sets), tokens), bool)
        np.put_along_axis(present, sets, values=True, axis=1)
        logits = tables.logits(present)[present]  # [S s, v]: any of the set may stand last
        there = np.repeat(present, size, axis=0)
        seen, absent = np.where(there, logits, -np.inf).max(1), np.where(there, np.nan, logits)
        least, most = np.nanmin(absent, 1), np.nanmax(absent, 1)
        margins.append(float((least - seen).min()))
        spreads.append(float((most - least).max()))
        if size == 1:
            balance = float((most - seen).max())
    return Precision(margins=np.array(margins), spreads=np.array(spreads), balance=balance)


def measure_study(study: graft.Study) -> pl.DataFrame:
    """Train each trial again and measure it.

    Columns: scorer, width, value_width, seed; precision, spread (at lengths 1 and 2), balanced, kept (the least).
    """
    rows = list[dict[str, object]]()
    for trial in study.trials().sort("number").iter_rows(named=True):
        model = study.model(trial["number"])
        weights = {name: tensor.detach().double().numpy() for name, tensor in model.named_parameters()}
        config = study.show(trial["number"]).config["model"]
        figures = measure(
            Tables.of(weights, epsilon=config["norm_epsilon"], constant=config["scorer"]["name"] == "average")
        )
        rows.append(
            {
                "scorer": config["scorer"]["name"], "width": config["width"], "value_width": config["value_width"],
                "seed": trial["params.seed"], "precision": figures.precision,
                "spread": float(figures.spreads[:2].max()), "balanced": figures.is_balanced,
                "kept": float(figures.kept.min()),
            }
        )  # fmt: skip
        print(".", end="", flush=True)
    return pl.DataFrame(rows)


def describe(trials: pl.DataFrame) -> str:
    """Return the table: a row for each scorer and pair of widths, means with 95 % intervals over seeds."""
    lines = [
        "| attention | d, d_v | C > 0 | C | spread at lengths 1, 2 | balanced | margin s / (2 C), least | >= 1 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (scorer, *widths), rows in trials.group_by("scorer", "width", "value_width", maintain_order=True):
        precise = rows.filter(pl.col("precision") > 0)
        kept = precise["kept"].to_numpy()
        cells = [
            "constant" if scorer == "average" else scorer, ", ".join(map(str, widths)),
            f"{precise.height} of {rows.height}",
            _interval(rows["precision"]), _interval(rows["spread"]), f"{rows['balanced'].sum()} of {rows.height}",
            _interval(precise["kept"]) if len(kept) > 1 else "", f"{(kept >= 1).sum()} of {len(kept)}",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def _interval(values: pl.Series) -> str:
    numbers = values.to_numpy()
    low, high = mean_interval(numbers)
    return f"{numbers.mean():.3g} ({low:.3g} to {high:.3g})"


def main() -> None:
    """Print the table."""
    trials = measure_study(trained_study(STUDY, __doc__))
    print(f"\n{describe(trials)}")


if __name__ == "__main__":
    main()
