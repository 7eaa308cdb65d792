"""The studies of a database: their list, their states and their objectives."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from graft.plugins.families import families
from graft.plugins.stored import read_outside
from spaces import parse_stored
from spaces.errors import PluginError
from spaces.experiment import ARM
from spaces.plugins.active import using
from spaces.reading.claim_section import claims_of_text
from spaces.reading.transfer_section import has_one_objective, is_transfer_text, objectives_of_text
from spaces.records import TERMINAL
from spaces.settings import Objective
from spaces.transfer import TransferSpace
from storage.frames import Reader
from storage.frames.study import StudyReader

LISTED_STUDY = {
    "name": pl.String(),
    "state": pl.String(),
    "ended": pl.Int64(),
    "trials": pl.Int64(),
    "objective": pl.String(),
    "best": pl.Float64(),
    "best_number": pl.Int64(),
    "created_at": pl.Datetime("us", "UTC"),
    "tags": pl.String(),
    "note": pl.String(),
    "archived": pl.Boolean(),
}


def read_studies(reader: Reader, *, archived: bool = True, tag: str | None = None) -> pl.DataFrame:
    """Return a row per study with its progress and best objective, tags separated by spaces.

    `archived` includes the archive, and `tag` chooses the studies that have it.
    """
    rows: list[dict[str, Any]] = []
    for row in reader.studies().iter_rows(named=True):
        name: str = row["name"]
        tags: list[str] = json.loads(row["tags"])
        if (row["archived"] and not archived) or (tag is not None and tag not in tags):
            continue
        best, number = read_best(reader, row)
        ended = sum(count for state, count in reader.study(name).counts().items() if state in TERMINAL)
        cells = {"state": read_state(reader, row), "ended": ended, "best": best, "best_number": number}
        cells["tags"] = " ".join(tags)
        rows.append({key: cells.get(key, row.get(key)) for key in LISTED_STUDY})
    return pl.DataFrame(rows, schema=LISTED_STUDY)


def read_best(reader: Reader, row: Mapping[str, Any]) -> tuple[float, int] | tuple[None, None]:
    """Return the best objective of a row of `studies`, and the number of its trial.

    Both are None if trials have different objectives, and before the end of a study with a claim,
    whose results must not be seen.
    """
    is_told = row["state"] == "finished" or not claims_of_text(row["space"])
    return (is_told and has_one_objective(row["space"]) and reader.study(row["name"]).best()) or (None, None)


def describe_objective(row: Mapping[str, Any]) -> str:
    """Return the first objective of a row of `studies` with its direction; those of the tasks if they differ."""
    of_tasks = objectives_of_text(row.get("space") or "")
    if len(set(of_tasks.values())) < 2:
        return f"{row['direction']} {row['objective']}"
    return ", ".join(f"{objective.direction} {objective} on {task}" for task, objective in of_tasks.items())


def name_objective(row: Mapping[str, Any], params: Mapping[str, Any]) -> str:
    """Return the objective of a trial with these `params`: in a transfer that of its task.

    `row` is the study's row of `studies`, of whose space only the text is read.
    """
    task = params.get("transfer.target", params.get("transfer.task"))
    return str(objectives_of_text(row["space"]).get(task, row["objective"]))


def read_state(reader: Reader, row: Mapping[str, Any]) -> str:
    """Return a study row's state; `interrupted` if it says running and no process holds it."""
    return "interrupted" if row["state"] == "running" and not reader.study(row["name"]).holder() else row["state"]


@dataclass(frozen=True, kw_only=True)
class TransferTask:
    """A task of a transfer."""

    objective: Objective
    """The objective of the task's trials of stage two."""
    config: Mapping[str, Any]
    """The configuration of the task's baseline, each draw at the middle of its distribution."""
    is_target: bool


def has_arms(study: StudyReader) -> bool:
    """Return True if the study is an experiment, by its first trial."""
    first = study.trials(sort="number", top=1, columns=("params",))["params"]
    return bool(first.str.json_path_match(f'$["{ARM}"]').count())


def read_at(content: Any) -> str:
    """Return `best` or `last`: the validation whose objective counts, by `content_of` a space."""
    search = content.get("search") if isinstance(content, Mapping) else None
    goal = search.get("objective") if isinstance(search, Mapping) else None
    if isinstance(goal, list):  # of two objectives, which are of one validation
        goal = goal[0]
    return goal.get("at", "best") if isinstance(goal, Mapping) else "best"


def read_transfer_space(reader: Reader, row: Mapping[str, Any], *, runs_code: bool = True) -> TransferSpace | None:
    """Return the space of a transfer, given its row; None for any other study.

    To read it runs the plug-ins that are stored with the study. Without `runs_code`, raises
    PluginError for a study that has any.
    """
    if not is_transfer_text(row["space"]):
        return None
    outside = read_outside(reader, row["name"])
    if outside.bundles and not runs_code:
        raise PluginError(f"study {row['name']} has plug-ins of its own, whose code does not run here")
    with using(outside):
        space = parse_stored(row, families())
    assert isinstance(space, TransferSpace), "that is what its text says"
    return space


def read_transfer_tasks(reader: Reader, row: Mapping[str, Any]) -> dict[str, TransferTask]:
    """Return the tasks of a transfer, given its row, in their order; none for any other study."""
    space = read_transfer_space(reader, row)
    if space is None:
        return {}
    return {
        domain.name: TransferTask(
            objective=domain.baseline.search.objective,
            config=domain.baseline.sample(0, lambda _: 0.5).config,
            is_target=domain.is_target,
        )
        for domain in space.domains
    }


def read_target_objectives(reader: Reader, row: Mapping[str, Any]) -> dict[str, Objective]:
    """Map each target task of a transfer, given its row, to its objective."""
    return {name: task.objective for name, task in read_transfer_tasks(reader, row).items()}
