"""What is compared step by step: a task of each family at the size of its quick space and at its paper's size.

The four shapes at the end are those of EEmicroGPT, the fastest published trainer of one tiny GPT on one core: one
layer, 27 tokens, 16 positions, batch 16; it has Adam and no clipping (https://github.com/Entrpi/eemicrogpt).
"""

from __future__ import annotations

import random
import string
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.trials import config

_FOREVER = 10**9


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is trained."""

    task: Mapping[str, Any]
    model: Mapping[str, Any]
    batch: int
    lanes: int | None = None
    """Of the pack, where a paper's model takes much memory; None: as asked for."""
    averaging: str = "none"
    """Of the pack: what the plain loop has."""

    def config(self) -> dict[str, Any]:
        """Return a trial's configuration, in float32, that never ends and never validates."""
        task = dict(self.task)
        if task.get("corpus") == "letters":
            task["corpus"] = {"name": "file", "path": letters_file()}
        settings = config(steps=_FOREVER, every=_FOREVER, dtype="float32", averaging={"name": self.averaging})
        settings["training"]["batch"] = self.batch
        return {**settings, "task": task, "model": dict(self.model)}


@cache
def letters_file() -> str:
    """Return a file of 26 letters, which with the end of a text are 27 tokens."""
    path = Path(tempfile.mkdtemp(prefix="letters-")) / "letters.txt"
    path.write_text("".join(random.Random(0).choices(string.ascii_lowercase, k=100_000)))
    return str(path)


def _gpt(width: int, **fields: Any) -> dict[str, Any]:
    return {"name": "transformer", "width": width, **fields}


def _micro(width: int) -> Case:
    task = {"name": "language", "corpus": "letters", "tokenizer": {"name": "character"}, "length": 16}
    return Case(task=task, model=_gpt(width, depth=1, heads=4), batch=16)


_ADD_MOD = {"name": "add_mod", "modulus": 97}
_POST = _gpt(32, pre_norm=False)
_TABLE_1 = {"name": "minimal", "width": 32, "key_width": 16, "value_width": 24}
_COMPLEMENT = {"name": "set_complement", "length": 8, "vocabulary": 17}

CASES: Mapping[str, Case] = {
    "quick/add_mod": Case(task={"name": "add_mod", "modulus": 31}, model=_POST, batch=128),
    "add_mod, paper 002": Case(task=_ADD_MOD, model=_POST, batch=512),
    "add_mod, width 128": Case(task=_ADD_MOD, model={**_POST, "width": 128}, batch=512),
    "memorize, paper 002": Case(task={"name": "memorize"}, model=_POST, batch=512),
    "copying, width 128": Case(task={"name": "copying"}, model={**_POST, "width": 128}, batch=64),
    "quick/clrs_text": Case(
        task={"name": "clrs_text", "algorithm": "minimum", "largest": 4, "farthest": 6, "stride": 1},
        model=_gpt(32, position={"name": "rotary"}),
        batch=32,
    ),
    "quick/clrs_text_adaptive": Case(
        task={"name": "clrs_text", "algorithm": "minimum", "largest": 4, "farthest": 6, "stride": 1},
        model=_gpt(32, position={"name": "rotary"}, scorer={"name": "adaptive_temperature", "phase": "always"}),
        batch=16,
    ),
    "quick/language": Case(
        task={"name": "language", "corpus": {"name": "stories", "words": 100_000}, "length": 64},
        model=_gpt(64, tied=True),
        batch=32,
    ),
    "quick/web": Case(
        task={
            "name": "language",
            "corpus": {"name": "stories", "words": 100_000},
            "tokenizer": {"name": "character"},
            "length": 64,
        },
        model=_gpt(32, tied=True),
        batch=32,
    ),
    "quick/othello": Case(
        task={"name": "othello", "length": 40},
        model=_gpt(64, heads=4, position={"name": "rotary"}),
        batch=32,
    ),
    "max_retrieval, paper 001": Case(
        task={"name": "max_retrieval"},
        model={"name": "attention_pooling", "scorer": {"name": "softmax"}},
        batch=128,
    ),
    "linear regression, transformer": Case(
        task={"name": "linear_regression", "dimension": 5, "pairs": 20},
        model={"name": "regressor", "width": 32},
        batch=64,
    ),
    "quick/linear_regression": Case(
        task={"name": "linear_regression", "dimension": 5, "pairs": 100},
        model={"name": "linearised_attention"},
        batch=64,
    ),
    "quick/affine": Case(
        task={"name": "affine", "points": 20}, model={"name": "regressor", "width": 32, "heads": 4}, batch=32
    ),
    "quick/every": Case(
        task={"name": "every", "points": 20, "curriculum_start": 20},
        model={"name": "regressor", "width": 32, "mlp_multiple": 0},
        batch=32,
    ),
    "quick/every with entmax": Case(
        task={"name": "every", "points": 20, "curriculum_start": 20},
        model={"name": "regressor", "width": 32, "mlp_multiple": 0, "scorer": {"name": "entmax"}},
        batch=32,
    ),
    "quick/haystack": Case(task={"name": "haystack", "pairs": 4, "markers": 16}, model=_POST, batch=64),
    "quick/add": Case(task={"name": "add", "digits": 2}, model={**_POST, "width": 64}, batch=128),
    "quick/masked_scorers": Case(
        task={
            "name": "masked_language",
            "corpus": {"name": "stories", "words": 100_000},
            "tokenizer": {"name": "character"},
            "length": 32,
            "lower_case": True,
        },
        model={"name": "encoder", "width": 32, "tied": True},
        batch=32,
    ),
    "mano, paper 002, no Canon, batch 64": Case(
        task={"name": "mano"}, model=_gpt(128, depth=4, heads=8, pre_norm=False, tied=True), batch=64, lanes=4
    ),
    "set complement, no dropout": Case(task=_COMPLEMENT, model=_TABLE_1, batch=128, averaging="bema"),
    "set complement, dropout of Table 1": Case(
        task=_COMPLEMENT,
        model={**_TABLE_1, "embedding_dropout": 0.1, "residual_dropout": 0.1},
        batch=128,
        averaging="bema",
    ),
    "clrs_text, its own size": Case(
        task={"name": "clrs_text", "algorithm": "insertion_sort", "largest": 8, "farthest": 16, "stride": 4},
        model=_gpt(128, depth=4, heads=4, position={"name": "rotary"}),
        batch=64,
        lanes=4,
    ),
    "stories, paper 002, no Canon, batch 8": Case(
        task={
            "name": "language",
            "corpus": {"name": "stories", "words": 1_000_000},
            "tokenizer": {"name": "bpe", "vocabulary": 1024},
            "length": 128,
        },
        model=_gpt(512, depth=4, heads=4, tied=True, pre_norm=False),
        batch=8,
        lanes=2,
    ),
    "othello, paper 003, batch 4": Case(
        task={"name": "othello"},
        model=_gpt(512, depth=8, heads=8, position={"name": "rotary"}),
        batch=4,
        lanes=2,
    ),
    "linear regression, paper 000, batch 16": Case(
        task={"name": "linear_regression", "dimension": 20, "pairs": 40},
        model={"name": "regressor", "width": 256, "depth": 12, "heads": 8},
        batch=16,
        lanes=2,
    ),
    "affine, its paper, batch 16": Case(
        task={"name": "affine", "points": 40},
        model={"name": "regressor", "width": 256, "depth": 12, "heads": 8},
        batch=16,
        lanes=2,
    ),
    **{f"EEmicroGPT, width {width}": _micro(width) for width in (16, 32, 64, 128)},
}
