"""The report that compares the arms of one or several experiments."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from graft.files import check_ending
from graft.report.data import StudyData
from graft.report.rendering.document import Block, Document, Paragraph
from graft.report.sections import Section
from graft.report.study import WRITERS, collect_sections, lay_out, number_figures, read, write_document
from search.analysis.arms.experiment import choose_trials, read_arms
from spaces.bounds import MOST_TRIALS
from spaces.errors import StudyError
from spaces.experiment import ARM
from spaces.messages import no_such
from spaces.plugins import canonical_json
from storage.frames import Reader

_SHOWN = ("arm", "finished", "mean", "difference", "difference_low", "difference_high", "pairs", "q", "verdict")
"""Columns of the table of arms that a terminal gets."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ArmsReport:
    """The arms of one or several studies compared with a baseline: a page, a frame, or JSON."""

    studies: Sequence[str]
    data: StudyData

    def write(self, path: Path) -> None:
        """Write the report to `path`, .html or .md; raises OutputError for another ending."""
        check_ending(path, WRITERS)
        write_document(self.document(), path)

    def document(self) -> Document:
        """Return the report in no format yet."""
        blocks: list[Block] = [Paragraph(text=text) for text in self.sentences()]
        blocks += lay_out(self._sections, number_figures(self._sections))
        return Document(title=f"Arms of {self.data.study['name']}", blocks=blocks)

    def sentences(self) -> list[str]:
        """Return the sentences that say what is compared and what was found."""
        study, experiment = self.data.study, self.data.require_experiment()
        opening = (
            f"The arms of {study['name']}, by {study['objective']} ({study['direction']}), against "
            f"{experiment.baseline}, over {experiment.seeds} seeds."
        )
        return [opening, *self._findings()]

    def differences(self, *, every: bool = False) -> pl.DataFrame:
        """Return each arm's mean and difference by the objective; `every`: with all columns."""
        experiment = self.data.require_experiment()
        rows = experiment.comparison.table.filter(pl.col("condition") == experiment.condition)
        return rows if every else rows.select(_SHOWN)

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as JSON values (docs/schemas/report-compare.json)."""
        study, experiment = self.data.study, self.data.require_experiment()
        return {
            "format": 1,
            "studies": [*self.studies],
            "objective": study["objective"],
            "direction": study["direction"],
            "baseline": experiment.comparison.baseline,
            "confidence": experiment.comparison.confidence,
            "correction": experiment.comparison.correction,
            "seeds": experiment.seeds,
            "findings": [*self._findings()],
            "arms": experiment.comparison.table.to_dicts(),
        }

    @cached_property
    def _sections(self) -> Sequence[Section]:
        return [section for section in collect_sections(self.data) if section.subject == "arms" and section.applies]

    def _findings(self) -> Iterator[str]:
        for section in self._sections:
            yield from section.findings()


def read_comparison(reader: Reader, studies: Sequence[str], baseline: str | None) -> ArmsReport:
    """Compare the arms of studies; the baseline is the first arm unless named.

    The arms of several studies are called `study: arm`. Raises StudyError for a study that is no
    experiment, studies that cannot be compared, or an unknown baseline.
    """
    names = [*dict.fromkeys(studies)]
    data = replace(_read_whole(reader, names), baseline=baseline)
    arms = _list_arms(data)
    if data.baseline is not None and data.baseline not in arms:
        raise StudyError(f"--baseline: {no_such('arm', data.baseline, arms)}")
    if data.experiment is None:
        name = data.baseline or arms[0]
        raise StudyError(f"{data.study['name']}: arm {name!r} has no result yet, so there is no baseline")
    return ArmsReport(studies=names, data=data)


def _read_whole(reader: Reader, studies: Sequence[str]) -> StudyData:
    """Return experiments as one study; raises StudyError for another study, and for no pairs."""
    separate = [read(reader, study) for study in studies]
    return _join(separate) if len(separate) > 1 else separate[0]


def _list_arms(data: StudyData) -> list[str]:
    """Return the study's arms, in order; raises StudyError if there is none."""
    arms: list[str] = read_arms(data.trials)["arm"].unique(maintain_order=True).to_list()
    if not arms:
        name = data.study["name"]
        raise StudyError(f"{name}: no trial belongs to an arm; a space with arms: or seeds: makes such studies")
    return arms


def _list_scored_arms(data: StudyData) -> list[str]:
    """Return the arms of which a trial that stands for them has finished, in order."""
    trials = choose_trials(read_arms(data.trials), data.study["direction"]).trials
    scored = trials.filter(pl.col("state") == "finished").drop_nulls("objective")
    return scored["arm"].unique(maintain_order=True).to_list()


def compare_two(reader: Reader, first: str, other: str) -> dict[str, Any]:
    """Compare two arms, each written STUDY:ARM, or STUDY where that has one arm.

    Returns a row of ArmComparison.table with `objective`, `direction` and `against`, the mean of
    the other arm. All arms of the studies are one family, over which q is corrected. Raises
    StudyError for an arm that a study does not have, and for one without a result.
    """
    sides = [side.partition(":") for side in (first, other)]
    studies = [*dict.fromkeys(study for study, _, _ in sides)]
    whole = _read_whole(reader, studies)
    known = _list_arms(whole)
    names: list[str] = []
    for study, _, arm in sides:
        name = arm or study  # the only arm of a study that names none has the study's own name
        names.append(f"{study}: {name}" if len(studies) > 1 and name != study else name)
        if names[-1] not in known:
            raise StudyError(f"{study}: {no_such('arm', names[-1], known)}")
    if names[0] == names[1]:
        raise StudyError(f"{first} is compared with itself: name two arms, STUDY:ARM each")
    data = replace(whole, baseline=names[1])
    if data.experiment is None or names[0] not in data.experiment.compared.trials["arm"]:
        raise StudyError(f"{first} and {other}: one of them has no result yet")
    table = ArmsReport(studies=studies, data=data).differences(every=True)
    rows, against = (table.filter(pl.col("arm") == name) for name in names)
    facts = {name: whole.study[name] for name in ("objective", "direction")}
    return {**facts, **rows.row(0, named=True), "against": against["mean"][0]}


def rank_arms(reader: Reader, task: str) -> pl.DataFrame:
    """Return the arms of all experiments on a task, the best first, compared with the best.

    Only studies whose arms were evaluated on equal data, by one objective and from one
    `search.seed`, share a `board`; boards on which no arm has a result are left out. Raises
    StudyError if no experiment has a result on the task.
    """
    boards: dict[Any, list[str]] = {}
    tasks: set[str] = set()
    for row in reader.studies().iter_rows(named=True):
        if not any(section in row["space"] for section in ("arms:", "seeds:")):
            continue
        stored = reader.study(row["name"])
        trials = stored.trials(where="objective IS NOT NULL", columns=("params", "config"))
        of_arms = trials.filter(pl.col("params").str.json_path_match(f'$["{ARM}"]').is_not_null())
        settings: set[str] = set()  # the task and the size of its validation set, as JSON
        for config in map(json.loads, of_arms["config"]):
            size = config["training"].get("validation_batch")
            settings.add(canonical_json([config["task"], size]))
        tasks |= {json.loads(setting)[0]["name"] for setting in settings}
        if len(settings) == 1 and json.loads(min(settings))[0]["name"] == task:
            key = (min(settings), row["objective"], row["direction"], row["seed"])
            boards.setdefault(key, []).append(row["name"])
    if not boards:
        raise StudyError(f"no experiment has a result on it: {no_such('task of an experiment', task, sorted(tasks))}")
    ranked: list[pl.DataFrame] = []
    for (_, objective, *_), studies in boards.items():
        whole = _read_whole(reader, studies)
        if scored := _list_scored_arms(whole):
            rows = _rank(ArmsReport(studies=studies, data=replace(whole, baseline=scored[0])))
            board = pl.lit(len(ranked) + 1).alias("board")
            ranked.append(rows.select(board, pl.lit(objective).alias("objective"), pl.all()))
    if not ranked:
        raise StudyError(f"no arm of an experiment on {task} has a result yet")
    return pl.concat(ranked)


def _rank(whole: ArmsReport) -> pl.DataFrame:
    """Return the arms of a board by their means, compared with the best one."""
    rises = whole.data.study["direction"] == "maximize"
    means = whole.differences().drop_nulls("mean")
    first = means.sort("mean", descending=rises, maintain_order=True)["arm"][0]
    best = replace(whole, data=replace(whole.data, baseline=first)).differences()
    ranked = best.sort("mean", descending=rises, maintain_order=True, nulls_last=True)
    study = whole.studies[0]
    if len(whole.studies) > 1 or study in ranked["arm"]:  # the arms are named after their studies
        return ranked
    return ranked.with_columns(arm=pl.lit(f"{study}: ") + pl.col("arm"))


def _join(data: Sequence[StudyData]) -> StudyData:
    """Return the studies as one; raises StudyError for studies whose trials are no pairs."""
    rows = [part.study for part in data]
    for key, what in (("objective", "objective"), ("direction", "direction"), ("seed", "search.seed")):
        if len({row[key] for row in rows}) > 1:
            named = ", ".join(f"{row['name']} {row[key]}" for row in rows)
            raise StudyError(f"studies to compare need one {what}, but these have {named}")
    tasks = {part.study["name"]: sorted(part.trials["task"].unique()) for part in data}
    if len({tuple(task_names) for task_names in tasks.values()}) > 1:
        named = ", ".join(f"{name} {' and '.join(task_names)}" for name, task_names in tasks.items())
        raise StudyError(f"studies to compare need the same tasks, but these have {named}")
    return StudyData(
        study={**rows[0], "name": ", ".join(str(row["name"]) for row in rows)},
        load_trials=lambda: pl.concat([_rename_arms(part, index) for index, part in enumerate(data)], how="diagonal"),
        load_metrics=lambda: [_renumber(part.metrics, index) for index, part in enumerate(data)],
        load_step_counts=lambda: (0, 0),
    )


def _renumber(frame: pl.DataFrame, study: int) -> pl.DataFrame:
    """Return the frame with numbers of trials and groups that no other study has."""
    numbers = [pl.col(name).cast(pl.Int64) for name in ("number", "group_number") if name in frame.columns]
    return frame.with_columns(number + study * MOST_TRIALS for number in numbers)


def _rename_arms(data: StudyData, study: int) -> pl.DataFrame:
    """Return the study's trials, each arm named after its study too."""
    name = data.study["name"]
    texts: list[str] = []
    for params in data.trials["params"]:
        values: dict[str, Any] = json.loads(params)
        arm = values.get(ARM)
        # The only arm of a study that names none has the study's own name.
        texts.append(params if arm in (None, name) else json.dumps(values | {ARM: f"{name}: {arm}"}))
    return _renumber(data.trials.with_columns(params=pl.Series(texts, dtype=pl.String)), study)
