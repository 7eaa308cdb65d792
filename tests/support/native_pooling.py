"""Recipes of the native pooling step."""

from __future__ import annotations

from typing import Any

from tests.support.trials import config
from workers.training.recipe import Recipe


def recipe_of(task: dict[str, Any], model: dict[str, Any], batch: int = 5, dtype: str = "float64") -> Recipe:
    settings = config(steps=9, every=9, dtype=dtype)
    settings["task"], settings["model"], settings["training"]["batch"] = task, model, batch
    return Recipe.of(settings)
