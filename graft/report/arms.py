"""The report that compares the arms of one or several experiments."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from graft.files import check_ending
from graft.plugins.families import family_of
from graft.report.data import StudyData
from graft.report.rendering.document import Block, Document, Paragraph
from graft.report.sections import Section
from graft.report.study import WRITERS, collect_sections, lay_out, number_figures, read, write_document
from graft.stored.studies import has_arms, read_at
from search.analysis.arms.experiment import choose_trials, read_arms
from spaces.bounds import MOST_TRIALS
from spaces.errors import PluginError, StudyError
from spaces.experiment import ARM
from spaces.messages import no_such
from spaces.plugins import build, canonical_json, step_counts
from spaces.reading import content_of
from spaces.settings import list_leaves
from storage.frames import Reader
from storage.frames.study import StudyReader

_SHOWN = ("arm", "finished", "mean", "difference", "difference_low", "difference_high", "pairs", "q", "verdict")
"""Columns of the table of arms that a terminal gets."""
_MISSING = "none"
"""The value of a fact that a task does not have, in messages."""


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

    The arms of several studies are called `study: arm`, and a study's only arm `study`. Raises
    StudyError for a study that is no experiment, studies that cannot be compared, or an unknown
    baseline.
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
    if len(separate) == 1:
        return separate[0]
    for part in separate:
        _list_arms(part)
    _check_pairs({study: _read_terms(reader.study(study)) for study in studies})
    return _join(separate)


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
    names: list[str] = []
    for study, _, arm in sides:
        arms = _list_arms(read(reader, study))
        name = arm or (arms[0] if len(arms) == 1 else study)
        if name not in arms:
            raise StudyError(f"{study}: {no_such('arm', name, arms)}")
        names.append(_name_among_studies(study, arms, name) if len(studies) > 1 else name)
    if names[0] == names[1]:
        raise StudyError(f"{first} is compared with itself: name two arms, STUDY:ARM each")
    whole = _read_whole(reader, studies)
    data = replace(whole, baseline=names[1])
    if data.experiment is None or names[0] not in data.experiment.compared.trials["arm"]:
        raise StudyError(f"{first} and {other}: one of them has no result yet")
    table = ArmsReport(studies=studies, data=data).differences(every=True)
    rows, against = (table.filter(pl.col("arm") == name) for name in names)
    facts = {name: whole.study[name] for name in ("objective", "direction")}
    return {**facts, **rows.row(0, named=True), "against": against["mean"][0]}


def rank_arms(reader: Reader, task: str) -> tuple[pl.DataFrame, list[str]]:
    """Rank the arms of all experiments on a task, each compared with the best; return the studies, too.

    Only studies whose arms were evaluated on equal data, by one objective and from one
    `search.seed`, share a `board`; boards on which no arm has a result are left out. Raises
    StudyError if no experiment has a result on the task.
    """
    boards: dict[str, list[str]] = {}
    tasks: set[str] = set()
    for name in reader.studies()["name"]:
        stored = reader.study(name)
        if not has_arms(stored) or stored.trials("objective IS NOT NULL", top=1, columns=("number",)).is_empty():
            continue
        terms = _read_terms(stored)
        tasks.update(terms["task.name"])
        if terms["task.name"] == [task] and all(len(values) == 1 for values in terms.values()):
            boards.setdefault(canonical_json(terms), []).append(name)
    if not boards:
        raise StudyError(f"no experiment has a result on it: {no_such('task of an experiment', task, sorted(tasks))}")
    ranked: list[pl.DataFrame] = []
    included: list[str] = []
    for studies in boards.values():
        whole = _join([read(reader, study) for study in studies])
        if scored := _list_scored_arms(whole):
            rows = _rank(ArmsReport(studies=studies, data=replace(whole, baseline=scored[0])))
            board = pl.lit(len(ranked) + 1).alias("board")
            ranked.append(rows.select(board, pl.lit(whole.study["objective"]).alias("objective"), pl.all()))
            included += studies
    if not ranked:
        raise StudyError(f"no arm of an experiment on {task} has a result yet")
    return pl.concat(ranked), included


def _rank(whole: ArmsReport) -> pl.DataFrame:
    """Return the arms of a board by their means, compared with the best one."""
    rises = whole.data.study["direction"] == "maximize"
    means = whole.differences().drop_nulls("mean")
    first = means.sort("mean", descending=rises, maintain_order=True)["arm"][0]
    best = replace(whole, data=replace(whole.data, baseline=first)).differences()
    return best.sort("mean", descending=rises, maintain_order=True, nulls_last=True)


def _read_terms(study: StudyReader) -> dict[str, list[str]]:
    """Return the facts that must be equal for trials of two experiments to be pairs, by their names.

    A fact has several values if arms or configurations set it. The validation set follows from the
    task, its size and `search.seed`; the task's step counts, as of a curriculum, bear on training alone.
    """
    row = study.row
    at = read_at(content_of(row["space"], row["name"]))
    terms = {"objective": [row["objective"]], "direction": [row["direction"]], "search.objective.at": [at]}
    terms["search.seed"] = [str(row["seed"])]
    configs = map(json.loads, study.trials(columns=("config",))["config"].unique())
    # Few of them differ in what is evaluated.
    settings = {canonical_json([config["task"], config["training"].get("validation_batch")]) for config in configs}
    evaluated: list[dict[str, Any]] = []
    for task, batch in map(json.loads, settings):
        leaves = dict(list_leaves({"task": task, "training": {"validation_batch": batch}}))
        evaluated.append({path: leaves[path] for path in leaves.keys() - _list_step_counts(task)})
    for path in sorted({path for leaves in evaluated for path in leaves}):
        terms[path] = sorted({str(leaves.get(path, _MISSING)) for leaves in evaluated})
    return terms


def _list_step_counts(task: Mapping[str, Any]) -> set[str]:
    """Return the paths of a task's fields that count steps; none of a task whose plug-in is not in use."""
    with suppress(PluginError):
        return {path for path, *_ in step_counts(build(family_of("task"), task), "task")}
    return set()


def _check_pairs(terms: Mapping[str, Mapping[str, Sequence[str]]]) -> None:
    """Raise StudyError, given the terms of each study, if the trials of the studies are no pairs."""
    for fact in dict.fromkeys(fact for of_study in terms.values() for fact in of_study):
        values = {study: " and ".join(of_study.get(fact, [_MISSING])) for study, of_study in terms.items()}
        if len(set(values.values())) > 1:
            named = ", ".join(f"{study} {value}" for study, value in values.items())
            raise StudyError(f"studies to compare need one {fact}, but these have {named}")


def _join(data: Sequence[StudyData]) -> StudyData:
    """Return studies whose trials are pairs as one, each arm named after its study."""
    return StudyData(
        study={**data[0].study, "name": ", ".join(str(part.study["name"]) for part in data)},
        load_trials=lambda: pl.concat([_rename_arms(part, index) for index, part in enumerate(data)], how="diagonal"),
        load_metrics=lambda: [_renumber(part.metrics, index) for index, part in enumerate(data)],
        load_step_counts=lambda: (0, 0),
    )


def _renumber(frame: pl.DataFrame, study: int) -> pl.DataFrame:
    """Return the frame with numbers of trials and groups that no other study has."""
    numbers = [pl.col(name).cast(pl.Int64) for name in ("number", "group_number") if name in frame.columns]
    return frame.with_columns(number + study * MOST_TRIALS for number in numbers)


def _rename_arms(data: StudyData, study: int) -> pl.DataFrame:
    """Return the study's trials, each arm with its name among those of several studies."""
    name, arms = data.study["name"], _list_arms(data)
    texts: list[str] = []
    for params in data.trials["params"]:
        values: dict[str, Any] = json.loads(params)
        if ARM in values:
            values[ARM] = _name_among_studies(name, arms, values[ARM])
        texts.append(json.dumps(values))
    return _renumber(data.trials.with_columns(params=pl.Series(texts, dtype=pl.String)), study)


def _name_among_studies(study: str, arms: Sequence[str], arm: str) -> str:
    """Return an arm's name among the arms of several studies: the study's own for its only arm.

    A space without `arms:` calls its only arm after the study, which may get another name later.
    """
    return study if len(arms) == 1 else f"{study}: {arm}"
