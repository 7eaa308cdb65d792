"""Lanes of the native minimal step, alone and together."""

from __future__ import annotations

from typing import Any

from spaces.records import Trial
from tests.support.trials import config
from workers.engine.pack import Pack
from workers.training.recipe import Recipe


def recipe_of(shape: tuple[int, ...], dropout: tuple[float, float], dtype: str = "float64", **model: Any) -> Recipe:
    tokens, length, width, key_width, value_width, batch = shape
    settings = config(steps=9, every=9, dtype=dtype)
    settings["task"] = {"name": "set_complement", "length": length, "vocabulary": tokens}
    settings["model"] = {
        "name": "minimal",
        "width": width,
        "key_width": key_width,
        "value_width": value_width,
        "embedding_dropout": dropout[0],
        "residual_dropout": dropout[1],
        **model,
    }
    settings["training"]["batch"] = batch
    return Recipe.of(settings)


def lanes_alone_and_together(trials: list[Trial]) -> tuple[list[Any], list[Any]]:
    together = Pack(trials[0], width=len(trials))
    together.fill(trials)
    in_pack = sorted((report.number, report.step, report.metrics) for _ in range(2) for report in together.train(100))
    alone: list[Any] = []
    for trial in trials:
        pack = Pack(trial, width=2)
        pack.fill([trial])
        alone += [(report.number, report.step, report.metrics) for _ in range(2) for report in pack.train(100)]
    return in_pack, sorted(alone)
