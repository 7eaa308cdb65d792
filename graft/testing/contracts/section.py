"""The contract of sections of a study's report."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import polars as pl

from graft.plugins.families import family_of
from graft.report.data import StudyData
from graft.report.rendering.document import Heading, Picture
from graft.report.sections import FigureNumbers, Part, Section
from graft.report.study import order_sections
from graft.testing.common import Configuration
from spaces import plugins
from storage.frames.columns import METRICS, TRIALS

_MADE = datetime(2026, 1, 2, tzinfo=UTC)


def _study(trials: int) -> StudyData:
    """Return a made-up study: one metric at two steps, of so many trials in groups of four."""
    rows = [
        {
            "number": number, "group_number": number // 4, "state": "finished",
            "task": "set_complement", "model": "minimal", "scorer": "softmax", "seed": number,
            "steps": 20, "objective": 1 / (number + 1), "worker": "worker-1", "config": "{}",
            "created_at": _MADE, "started_at": _MADE, "finished_at": _MADE,
            "params": f'{{"optimizer.learning_rate": {0.001 * (number + 1)}}}',
        }
        for number in range(trials)
    ]  # fmt: skip
    metrics = [
        (number, step, name, variant, "", factor / (number + 1))
        for number in range(trials)
        for step in (10, 20)
        for name in ("tvd", "loss")
        for variant, factor in (("raw", 1.0), ("bema", 0.9))
    ]
    row: dict[str, Any] = {
        "id": 1, "name": "contract", "objective": "tvd/raw", "direction": "minimize",
        "state": "finished", "trials": trials, "created_at": _MADE,
    }  # fmt: skip
    schema = {name: kind for name, kind in TRIALS.items() if name != "draws"}
    return StudyData(
        study=row,
        load_trials=lambda: pl.DataFrame(rows, schema=schema),
        load_metrics=lambda: [pl.DataFrame(metrics, schema=METRICS, orient="row")],
        load_step_counts=lambda: (20 * trials, 20 * trials),
    )


def check_blocks(configuration: Configuration) -> None:
    """Assert that it has blocks where it applies, no headings, and its figures in order."""
    family = family_of("section")
    names = plugins.names(family)
    for trials in (1, 12):
        section: Section = plugins.load(family, configuration["name"])(data=_study(trials))
        assert section.part in Part, f"part is {section.part!r}"
        if not (section.fits and section.applies):
            continue
        blocks = list(section.blocks(FigureNumbers(own=7, sections=dict.fromkeys(names, 1))))
        assert blocks, f"it applies to a study of {trials} trials, but has nothing to show"
        numbers = [block.number for block in blocks if isinstance(block, Picture)]
        assert numbers == list(range(7, 7 + len(numbers))), f"its figures are numbered {numbers}, not from 7 on"
        assert len(numbers) <= section.figure_count, f"it draws {len(numbers)} figures, figure_count says less"
        assert not any(isinstance(block, Heading) for block in blocks), "headings are the report's: give a title"


def check_place(configuration: Configuration) -> None:
    """Follow, in the order of the report, a section that exists."""
    family = family_of("section")
    after = {name: plugins.load(family, name).after for name in plugins.names(family)}
    assert order_sections(after).count(configuration["name"]) == 1
