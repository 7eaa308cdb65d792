"""Scores by lm-evaluation-harness, arm by arm over seeds (paper 000, Tables 2 and 4)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from graft.files import check_ending
from graft.report.rendering.document import Document, Paragraph, Table
from graft.report.rendering.formatting import MISSING, with_margin
from graft.report.study import WRITERS, write_document
from spaces.errors import StudyError

_SCHEMA = {
    "model": pl.String,
    "label": pl.String,
    "task": pl.String,
    "metric": pl.String,
    "filter": pl.String,
    "value": pl.Float64,
    "standard_error": pl.Float64,
}
_KEY = ("task", "metric", "filter")


def read_evaluations(paths: Iterable[Path]) -> pl.DataFrame:
    """Return a row per model and number in files of `search evaluate -o`, with columns _SCHEMA.

    `label`: the arm of a trial that has one, else the model itself. Raises StudyError for a file of
    another kind, and for two of one model.
    """
    rows, seen = list[dict[str, Any]](), dict[str, Path]()
    for path in paths:
        try:
            text: Any = json.loads(path.read_text(encoding="utf-8"))
            if "pretrained" in text:
                name, scorer = Path(text["pretrained"]).name, (text["scorer"] or {}).get("name")
                model = label = f"{name} with {scorer}" if scorer else name
            else:
                model = f"trial {text['trial']} of {text['study']}"
                label = f"{text['arm']} of {text['study']}" if text.get("arm") else model
            numbers: Sequence[dict[str, Any]] = text["results"]
            if any(missing := set(_SCHEMA) - {"model", "label"} - row.keys() for row in numbers):
                raise KeyError(min(missing))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise StudyError(
                f"{path} is no file of scores; `search evaluate STUDY N --tasks TASK -o FILE.json` makes one"
            ) from error
        if model in seen:
            raise StudyError(f"{path}: {seen[model]} has scores of {model}, too; name one of them")
        seen[model] = path
        named = {"model": model, "label": label}
        rows += [{**named, **{name: row[name] for name in list(_SCHEMA)[2:]}} for row in numbers]
    return pl.DataFrame(rows, schema=_SCHEMA)


def summarize_evaluations(scores: pl.DataFrame) -> pl.DataFrame:
    """Return label, task, metric, filter, models, mean and its standard error over the models.

    For a single model `error` is the harness' own, over the examples of a task, or null.
    """
    over_examples = pl.col("standard_error").first()
    over_models = pl.col("value").std() / pl.len().sqrt()
    error = pl.when(pl.len() > 1).then(over_models).otherwise(over_examples)
    groups = scores.group_by("label", *_KEY, maintain_order=True)
    return groups.agg(models=pl.len(), mean=pl.col("value").mean(), error=error)


def write_evaluations(scores: pl.DataFrame, path: Path) -> None:
    """Write the table to `path`, .html or .md; raises OutputError for another ending."""
    check_ending(path, WRITERS)
    summary = summarize_evaluations(scores)
    labels: list[str] = summary["label"].unique(maintain_order=True).to_list()
    counts: dict[str, int] = dict(scores.group_by("label").agg(pl.col("model").n_unique()).iter_rows())
    cells = {(label, tuple(key)): with_margin(mean, error) for label, *key, _, mean, error in summary.iter_rows()}
    rows: list[list[str]] = []
    for key in summary.select(_KEY).unique(maintain_order=True).iter_rows():
        name = " ".join(part for part in key if part != "none")
        rows.append([name, *(cells.get((label, key), MISSING) for label in labels)])
    names = (f"{label} ({counts[label]})" if counts[label] > 1 else label for label in labels)
    note = (
        "Scores of lm-evaluation-harness. Of several models, their number in brackets: the mean and the standard error "
        "of this mean over them. Of one model: the standard error over the examples of the task."
    )
    table = Table(caption="Scores", header=["Task and metric", *names], rows=rows)
    blocks = [Paragraph(text=note), table]
    write_document(Document(title="Scores of language models", blocks=blocks), path)
