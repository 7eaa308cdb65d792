"""Configurations as rows of numbers, and the forest that is fitted to such rows of trials."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spaces.errors import PluginError
from spaces.records import Scalar
from spaces.settings import list_leaves

ABSENT = -1e6
"""Stands for a number that a configuration lacks; trees only compare, so any value far away will do."""

Features = Mapping[str, Scalar]
"""Dotted path -> value: `model` -> "transformer", `optimizer.learning_rate` -> 0.003."""
Floats = NDArray[np.float64]


def flatten(config: Mapping[str, Any]) -> Features:
    """Return the values of a resolved configuration, without the task's; a plug-in's path has its name."""
    leaves = list_leaves({name: part for name, part in config.items() if name != "task"})
    return {path.removesuffix(".name"): value for path, value in leaves if isinstance(value, int | float | str)}


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """The columns of a row: one for each number, then one for each option of a text, 1 where it is taken."""

    numbers: tuple[str, ...]
    """Paths of numbers."""
    options: tuple[tuple[str, str], ...]
    """Paths of texts, each with one of its values."""

    @classmethod
    def of(cls, rows: Iterable[Features]) -> Encoder:
        """Return an encoder with the columns in which these configurations differ."""
        seen: dict[str, set[Scalar]] = {}
        rows = list(rows)
        for row in rows:
            for path, value in row.items():
                seen.setdefault(path, set()).add(value)
        common = {path for path in seen if all(path in row for row in rows)}
        varying = [path for path in sorted(seen) if len(seen[path]) > 1 or path not in common]
        texts = {path for path in varying if any(isinstance(value, str) for value in seen[path])}
        options = [(path, str(value)) for path in varying if path in texts for value in sorted(map(str, seen[path]))]
        return cls(numbers=tuple(path for path in varying if path not in texts), options=tuple(options))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns, in order."""
        return (*self.numbers, *(f"{path}={value}" for path, value in self.options))

    def encode(self, rows: Sequence[Features]) -> NDArray[np.float32]:
        """Return configurations as numbers, [rows, columns]."""
        return np.array(
            [
                [float(row.get(path, ABSENT)) for path in self.numbers]
                + [float(str(row.get(path, "")) == value) for path, value in self.options]
                for row in rows
            ],
            dtype=np.float32,
        ).reshape(len(rows), len(self.names))


def fit_forest(rows: NDArray[np.float32], targets: Floats, trees: int, seed: int, *, out_of_bag: bool = False) -> Any:
    """Fit extremely randomised trees; raises PluginError, one line, if scikit-learn is not installed.

    `out_of_bag`: fit each tree to a bootstrap sample; `oob_prediction_` then has the mean prediction of each
    row by the trees that were not fitted to it.

    Source: Geurts, Ernst, Wehenkel, "Extremely randomized trees", Machine Learning 2006.
    """
    try:
        from sklearn.ensemble import ExtraTreesRegressor
    except ModuleNotFoundError:
        raise PluginError("learning from trials needs scikit-learn: pip install 'graft-search[learn]'") from None
    forest = ExtraTreesRegressor(
        trees,
        min_samples_leaf=2,
        max_features=0.5,
        random_state=seed % 2**32,
        bootstrap=out_of_bag,
        oob_score=out_of_bag,
    )
    return forest.fit(rows, targets)


def predict_mean(trees: Sequence[Any], rows: NDArray[np.float32]) -> Floats:
    """Return the mean prediction of some trees of a forest (`tree_` of each estimator), [rows]."""
    return np.mean([tree.predict(rows)[:, 0] for tree in trees], axis=0)


def to_quantiles(values: NDArray[np.floating[Any]]) -> Floats:
    """Return the quantile of each value along the first axis, in (0, 1); equal values have the same."""
    from scipy.stats import rankdata

    return (rankdata(values, axis=0) - 0.5) / len(values)
