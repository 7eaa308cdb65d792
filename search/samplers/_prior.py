"""The prior of the sampler `learned`: trials of many tasks as rows, and a portfolio of configurations."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search.samplers._features import Encoder, Features, Floats, fit_forest, to_quantiles
from spaces.errors import PluginError

PACKAGED = Path(__file__).with_name("learned_prior.npz")
MOST_ROWS = 8000
"""Rows that a prior keeps: fitting its forest takes a second or two of every launch."""
PORTFOLIO = 16
"""Configurations in a portfolio."""
_TREES = 50
"""Trees of the forest of one task, which predicts the quantiles of other tasks' best trials."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """The trials of one task that a prior is learnt from."""

    task: str
    configs: Sequence[Features]
    costs: Floats
    """The objective of each trial, lower is better; infinite where it diverged."""


@dataclass(frozen=True, kw_only=True)
class LearnedPrior:
    """A prior, as it is kept in a file."""

    encoder: Encoder
    rows: NDArray[np.float32]
    """The trials of all tasks, [trials, columns]."""
    quantiles: Floats
    """The quantile of each trial's cost among those of its task, in (0, 1)."""
    portfolios: Mapping[str, NDArray[np.float32]]
    """Model -> configurations to try first, [configurations, columns]; the empty name stands for any model."""
    tasks: Sequence[str]

    def portfolio_of(self, model: str) -> NDArray[np.float32]:
        """Return the configurations to try first with this model."""
        return self.portfolios.get(model, self.portfolios[""])


def learn_prior(sources: Sequence[Source], seed: int = 0) -> LearnedPrior:
    """Learn a prior from trials of several tasks; PluginError if all are alike, or without scikit-learn."""
    encoder = Encoder.of([row for source in sources for row in source.configs])
    if not encoder.names:
        raise PluginError("the trials differ in no setting: there is nothing to learn")
    encoded = [encoder.encode(source.configs) for source in sources]
    quantiles = [to_quantiles(source.costs) for source in sources]
    forests = [fit_forest(rows, costs, _TREES, seed) for rows, costs in zip(encoded, quantiles, strict=True)]
    models = [np.array([str(row.get("model", "")) for row in source.configs]) for source in sources]
    portfolios: dict[str, NDArray[np.float32]] = {}
    for model in ["", *dict.fromkeys(np.concatenate(models).tolist())]:
        has_model = [(names == model) | (model == "") for names in models]
        of_model = [at for at, has in enumerate(has_model) if has.any()]
        # Candidates are the best twentieth of each task; their regret on a task is the quantile predicted there.
        best = [_choose_best(encoded[at][has_model[at]], quantiles[at][has_model[at]]) for at in of_model]
        candidates = np.concatenate(best)
        regrets = np.stack([forests[at].predict(candidates) for at in of_model])  # [tasks, candidates]
        portfolios[model] = candidates[choose_portfolio(regrets, PORTFOLIO)]
    # Every task has the same share of the rows that are kept.
    rng, share = np.random.default_rng(seed), MOST_ROWS // len(sources)
    kept = [np.sort(rng.permutation(len(rows))[:share]) for rows in encoded]
    return LearnedPrior(
        encoder=encoder,
        rows=np.concatenate([rows[at] for rows, at in zip(encoded, kept, strict=True)]),
        quantiles=np.concatenate([costs[at] for costs, at in zip(quantiles, kept, strict=True)]),
        portfolios=portfolios,
        tasks=[source.task for source in sources],
    )


def _choose_best(rows: NDArray[np.float32], costs: Floats) -> NDArray[np.float32]:
    """Return the best twentieth of some rows, at least one."""
    return rows[np.argsort(costs)[: max(1, len(rows) // 20)]]


def choose_portfolio(regrets: Floats, size: int) -> list[int]:
    """Return columns of regrets [tasks, candidates]: each lowers the mean of the tasks' lowest regrets most.

    Source: Xu, Hoos, Leyton-Brown, "Hydra", AAAI 2010; Salinas, Erickson, "TabRepo", AutoML 2024.
    """
    chosen: list[int] = []
    lowest = np.full(len(regrets), np.inf)
    while len(chosen) < min(size, regrets.shape[1]):
        means = np.minimum(lowest[:, None], regrets).mean(axis=0)
        means[chosen] = np.inf
        chosen.append(int(np.argmin(means)))
        lowest = np.minimum(lowest, regrets[:, chosen[-1]])
    return chosen


def write_prior(prior: LearnedPrior, path: Path) -> None:
    """Write a prior to a file."""
    about = {"format": 1, "numbers": prior.encoder.numbers, "options": prior.encoder.options, "tasks": prior.tasks}
    arrays: dict[str, Any] = {f"portfolio {model}": rows for model, rows in prior.portfolios.items()}
    with path.open("wb") as file:
        np.savez_compressed(
            file, about=json.dumps(about), rows=prior.rows, quantiles=prior.quantiles.astype(np.float32), **arrays
        )


def read_prior(path: Path) -> LearnedPrior:
    """Read a prior; raises PluginError, one line, for another kind of file."""
    try:
        with np.load(path, allow_pickle=False) as saved:
            about = json.loads(str(saved["about"]))
            options = tuple((name, value) for name, value in about["options"])
            return LearnedPrior(
                encoder=Encoder(numbers=tuple(about["numbers"]), options=options),
                rows=saved["rows"],
                quantiles=saved["quantiles"].astype(np.float64),
                portfolios={
                    name.removeprefix("portfolio ").strip(): saved[name] for name in saved if name.startswith("portf")
                },
                tasks=about["tasks"],
            )
    except (OSError, ValueError, KeyError) as error:
        raise PluginError(f"prior: {path} is no file of `search learn`: {' '.join(str(error).split())}") from None
