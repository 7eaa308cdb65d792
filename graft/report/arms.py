"""The report that compares the arms of one or several experiments."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from graft.files import OutputError, writing
from graft.report.data import StudyData
from graft.report.rendering.document import Block, Document, Paragraph
from graft.report.study import WRITERS, collect_sections, lay_out, number_figures, read
from search.analysis.arms.experiment import read_arms
from spaces.bounds import MOST_TRIALS
from spaces.errors import StudyError
from spaces.experiment import ARM
from spaces.messages import no_such
from storage.frames import Reader


def compare(reader: Reader, studies: Sequence[str], baseline: str | None, path: Path) -> None:
    """Write the comparison of the studies' arms to `path`, .html or .md; the baseline is the first arm unless named.

    The arms of several studies are called `study: arm`. Raises StudyError for a study that is no experiment, studies
    that cannot be compared, or an unknown baseline; OutputError for another ending.
    """
    if path.suffix not in WRITERS:
        raise OutputError(f"{path}: the ending must be one of {', '.join(WRITERS)}")
    separate = [read(reader, study) for study in dict.fromkeys(studies)]
    whole = _join(separate) if len(separate) > 1 else separate[0]
    data = replace(whole, baseline=baseline)
    _check(data)
    page = document(data)
    with writing(path):
        WRITERS[path.suffix](page, path)


def document(data: StudyData) -> Document:
    """The report in no format yet."""
    sections = [section for section in collect_sections(data) if section.subject == "arms" and section.applies]
    numbers = number_figures(sections)
    findings = [sentence for section in sections for sentence in section.findings()]
    experiment = data.require_experiment()
    opening = (
        f"The arms of {data.study['name']}, by {data.study['objective']} ({data.study['direction']}), against "
        f"{experiment.baseline}, over {experiment.seeds} seeds."
    )
    blocks: list[Block] = [Paragraph(text=text) for text in (opening, *findings)]
    return Document(title=f"Arms of {data.study['name']}", blocks=[*blocks, *lay_out(sections, numbers)])


def _join(data: Sequence[StudyData]) -> StudyData:
    """The studies as one; raises StudyError for studies whose trials are no pairs."""
    rows = [one.study for one in data]
    for key, what in (("objective", "objective"), ("direction", "direction"), ("seed", "search.seed")):
        values = [row[key] for row in rows]
        if len(set(values)) > 1:
            named = ", ".join(f"{row['name']} {value}" for row, value in zip(rows, values, strict=True))
            raise StudyError(f"studies to compare need one {what}, but these have {named}")
    tasks = {one.study["name"]: sorted(one.trials["task"].unique()) for one in data}
    if len({tuple(found) for found in tasks.values()}) > 1:
        named = ", ".join(f"{name} {' and '.join(found)}" for name, found in tasks.items())
        raise StudyError(f"studies to compare need the same tasks, but these have {named}")
    return StudyData(
        study={**rows[0], "name": ", ".join(str(row["name"]) for row in rows)},
        load_trials=lambda: pl.concat([_rename_arms(one, index) for index, one in enumerate(data)], how="diagonal"),
        load_metrics=lambda: [_renumber(one.metrics, index) for index, one in enumerate(data)],
        load_step_counts=lambda: (0, 0),
    )


def _renumber(frame: pl.DataFrame, study: int) -> pl.DataFrame:
    """The frame with numbers of trials and groups that no other study has."""
    numbers = [pl.col(name).cast(pl.Int64) for name in ("number", "group_number") if name in frame.columns]
    return frame.with_columns(number + study * MOST_TRIALS for number in numbers)


def _rename_arms(data: StudyData, study: int) -> pl.DataFrame:
    """The study's trials, each arm named after its study too."""
    name = data.study["name"]
    renamed = [_rename_arm(params, name) for params in data.trials["params"]]
    return _renumber(data.trials.with_columns(params=pl.Series(renamed, dtype=pl.String)), study)


def _rename_arm(params: str, study: str) -> str:
    found: dict[str, Any] = json.loads(params)
    arm = found.get(ARM)
    # The only arm of a study that names none has the study's own name.
    return params if arm in (None, study) else json.dumps(found | {ARM: f"{study}: {arm}"})


def _check(data: StudyData) -> None:
    """Raise StudyError if there is nothing to compare."""
    name = data.study["name"]
    arms: list[str] = read_arms(data.trials)["arm"].unique(maintain_order=True).to_list()
    if not arms:
        raise StudyError(f"{name}: no trial belongs to an arm; a space with arms: or seeds: makes such studies")
    if data.baseline is not None and data.baseline not in arms:
        raise StudyError(f"--baseline: {no_such('arm', data.baseline, arms)}")
    if data.experiment is None:
        raise StudyError(f"{name}: arm {data.baseline or arms[0]!r} has no result yet, so there is no baseline")
