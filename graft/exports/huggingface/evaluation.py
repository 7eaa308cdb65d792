"""Language models scored by lm-evaluation-harness: trained trials, and pretrained models."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import polars as pl

from graft.exports.interchange.extras import require_extra
from spaces.errors import StudyError

_MODELS = "lm_eval.models.huggingface"
_COLUMNS = {
    "task": pl.String(),
    "metric": pl.String(),
    "filter": pl.String(),
    "value": pl.Float64(),
    "standard_error": pl.Float64(),
    "samples": pl.Int64(),
}


@dataclass(frozen=True, kw_only=True)
class Harness:
    """The questions that are asked of a model, and how."""

    tasks: Sequence[str]
    """Names of tasks of the harness, or of `include`."""
    include: Path | None = None
    """A folder with tasks of one's own, as YAML files."""
    limit: int | None = None
    """Examples of each task; all if None."""
    examples: int | None = None
    """Examples shown before each question; as many as the task has if None."""
    batch: int = 8
    device: str = "cpu"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A harness with its tasks found."""

    harness: Harness
    manager: Any
    """The harness' own index of tasks."""


def find_tasks(harness: Harness) -> Asked:
    """Find the tasks, before anything is trained.

    The harness' own tasks, thousands of files, are searched only for names that `include` lacks.
    Raises StudyError if the harness, or its part that reads models of Hugging Face, is not
    installed, or if it has no task of such a name.
    """
    require_extra("lm_eval", "evaluate")
    with _quiet():
        try:
            import_module(_MODELS)
        except ModuleNotFoundError as error:
            raise StudyError(
                f"lm_eval is installed without {error.name}, which reads models of Hugging Face: "
                "pip install 'graft-search[evaluate]'"
            ) from None
        unknown, manager = [*harness.tasks], None
        for defaults in (False, True):
            if unknown and (defaults or harness.include):
                include = None if harness.include is None else str(harness.include)
                tasks = import_module("lm_eval.tasks")
                manager = tasks.TaskManager(include_path=include, include_defaults=defaults)
                unknown = [name for name in harness.tasks if not manager.match_tasks([name])]
    if unknown:
        raise StudyError(f"--tasks: lm-evaluation-harness has no task {unknown[0]!r}; `lm-eval ls tasks` lists its own")
    return Asked(harness=harness, manager=manager)


def evaluate_folder(folder: Path, asked: Asked) -> pl.DataFrame:
    """Score a model that `search export --to huggingface` wrote: a row per task, metric and filter.

    `standard_error` is over the task's examples, as the harness has it; null where it has none.
    """
    if not (folder / "tokenizer.json").is_file():
        raise StudyError(f"{folder}: the model has no tokenizer, so that it cannot be asked in text")
    if json.loads((folder / "config.json").read_text(encoding="utf-8")).get("counts_all_keys"):
        asked = _one_by_one(asked)
    return _score({"pretrained": str(folder), "trust_remote_code": True}, asked)


def evaluate_pretrained(folder: Path, scorer: Mapping[str, Any] | None, dtype: str, asked: Asked) -> pl.DataFrame:
    """Score a pretrained Llama or Gemma in the same way, with `scorer` in place of its softmax."""
    from workers.networks.pretrained import build_scorer, load_pretrained

    if scorer is not None and build_scorer(scorer).counts_all_keys:
        asked = _one_by_one(asked)
    model = load_pretrained(folder, scorer, dtype).to(asked.harness.device)
    return _score({"pretrained": model, "tokenizer": str(folder)}, asked)


def _one_by_one(asked: Asked) -> Asked:
    """Return the same with batches of one: the harness fills batches up and passes no mask."""
    return replace(asked, harness=replace(asked.harness, batch=1))


def _score(model: Mapping[str, Any], asked: Asked) -> pl.DataFrame:
    harness = asked.harness
    with _quiet():
        wrap = import_module(_MODELS).HFLM
        wrapped = wrap(**model, batch_size=harness.batch, device=harness.device)
        output: Any = import_module("lm_eval").simple_evaluate(
            model=wrapped,
            tasks=[*harness.tasks],
            task_manager=asked.manager,
            limit=harness.limit,
            num_fewshot=harness.examples,
            log_samples=False,
        )
    return to_frame(output)


def to_frame(output: Mapping[str, Any]) -> pl.DataFrame:
    """Return the harness' `{"results": {task: {"acc,none": ..}}, "n-samples": ..}` as rows."""
    rows = list[tuple[Any, ...]]()
    for task, numbers in output["results"].items():
        samples = output.get("n-samples", {}).get(task, {}).get("effective")
        for key, value in numbers.items():
            metric, comma, rule = key.partition(",")
            if not comma or metric.endswith("_stderr") or not isinstance(value, int | float):
                continue
            error = numbers.get(f"{metric}_stderr,{rule}")
            known = error if isinstance(error, float) else None
            rows.append((task, metric, rule, value, known, samples))
    return pl.DataFrame(rows, schema=_COLUMNS, orient="row")


def write_results(frame: pl.DataFrame, path: Path, about: Mapping[str, Any]) -> None:
    """Write a JSON file with the scores and the description of the model that they belong to."""
    text = json.dumps({**about, "results": frame.to_dicts()}, indent=2)
    path.write_text(text + "\n", encoding="utf-8")


@contextmanager
def _quiet() -> Generator[None]:
    """Silence the harness' libraries, which warn of one another, and its notes on tasks."""
    logger = logging.getLogger("lm_eval")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
