"""Each sentence of every section of a report, held against studies without any effect, and against one of one trial."""

from __future__ import annotations

import re
from math import sqrt

import numpy as np
import polars as pl
import pytest

from graft.report.data import StudyData
from graft.report.rendering.document import Paragraph, Picture, Table
from graft.report.sections import Section
from graft.report.sections.averaged_parameters import AveragedParameters
from graft.report.sections.averaging_grid import AveragingGrid
from graft.report.sections.temperature_curves import TemperatureCurves
from graft.report.sections.trained_scorer import TrainedScorer
from graft.report.study import document
from search.analysis.statistics.verdicts import BETTER, SURE, UNDECIDED, WORSE
from search.analysis.study.temperatures import compare_temperatures
from search.analysis.transfer.affinity import best_sources
from search.analysis.transfer.compatibility_matrix import compute_matrix
from spaces import plugins
from spaces.records import TRAINED
from tests.support.synthetic_studies import metrics_frame, study_data, study_row, trial_row, trials_frame

KNOWN = (
    r"The best trial is \d+, with \S+ = \S+\.",
    r"(BEMA|EMA) changes .* against the raw parameters by ([+−]\S+ ± \S+ % \(best[^)]*\)(, )?)+\.",
    r".* is (better than|worse than|not told apart from) .*: .* differs by \S+ \(.*paired seeds, adjusted p .*\)\.",
    r".* have too few seeds (for a verdict: .*|in common to be compared)\.",
    r"Of \S+ trials of .* (diverged|failed).*",
    r"\S+ of \S+ trials with a result are feasible; .*",
    r".* on the Pareto front of .*",
    r"Not all trials were computed alike: .*",
)
"""The sentences at the beginning of a report. One that claims a difference has its interval in it."""
_CLAIMS = re.compile(r"changes|differs|better than|worse than")
_INTERVAL = re.compile(r"±|\(\S+ to \S+,|no interval")
MEASURED = (
    ("raw", ""),
    ("bema", ""),
    ("raw", TRAINED),
    ("raw", "temperature=0.5"),
    ("raw", "temperature=2"),
    *(("bema", f"kappa={kappa} eta={eta}") for kappa in (0.2, 0.5, 0.8) for eta in (0.3, 0.6)),
)
"""Variants and conditions."""


def search_without_effect(random: np.random.Generator, trials: int = 60) -> StudyData:
    """Return a search in which neither averages, nor a scorer, nor a temperature changes anything but by chance."""
    level = np.exp(random.normal(size=trials))
    values = level[:, None] * np.exp(0.1 * random.normal(size=(trials, len(MEASURED))))
    rows = [
        trial_row(number, 0, "finished", row[0], params={"rate": row[0]}) for number, row in enumerate(values.tolist())
    ]
    metrics = [
        (number, 1, "mse", variant, condition, value)
        for number, row in enumerate(values.tolist())
        for (variant, condition), value in zip(MEASURED, row, strict=True)
    ]
    return study_data(study_row(objective="mse/raw"), trials_frame(rows), metrics_frame(metrics))


def findings_of(data: StudyData) -> list[str]:
    """Return the sentences at the beginning of its report."""
    sections = [plugins.load(Section, name)(data=data) for name in plugins.names(Section)]
    return [text for section in sections if section.fits and section.applies for text in section.findings()]


def excludes_zero(text: str) -> bool:
    """Whether an interval in the text, a ± b, excludes 0."""
    ends = re.findall(r"([+−]?[\d.]+) ± ([\d.]+)", text)
    return any(abs(float(value.replace("−", "-"))) > float(margin) for value, margin in ends)


def count_claims(studies: int) -> dict[str, int]:
    """In how many studies without effect each section says that something differs."""
    counts = dict.fromkeys(("best tenth", "grid", "scorer", "temperature"), 0)
    for seed in range(studies):
        data = search_without_effect(np.random.default_rng(seed))
        text = " ".join(AveragedParameters(data=data).findings())
        assert "(best 10 %)" in text
        counts["best tenth"] += excludes_zero(text)
        counts["grid"] += excludes_zero(AveragingGrid(data=data).caption)
        counts["scorer"] += bool((TrainedScorer(data=data).comparison["q"] < SURE).any())
        counts["temperature"] += bool((compare_temperatures(data.scores.of("mse"))["q"] < SURE).any())
    return counts


@pytest.mark.parametrize("studies", [12, pytest.param(300, marks=pytest.mark.long)])
def test_of_studies_without_effect_no_section_claims_more_than_one_in_twenty(studies: int) -> None:
    most = studies * (0.05 + 2 * sqrt(0.05 * 0.95 / studies))
    counts = count_claims(studies)
    assert {name: count for name, count in counts.items() if count > most} == {}


@pytest.mark.parametrize("studies", [12, pytest.param(300, marks=pytest.mark.long)])
@pytest.mark.parametrize("answers", [None, 32])
def test_of_matrices_without_effect_at_most_one_in_twenty_claims_anything(studies: int, answers: int | None) -> None:
    claimed = {"cells": 0, "diagonal": 0}
    for seed in range(studies):
        random = np.random.default_rng(seed)
        shape, pairs = (("baseline", "a", "b", "c"), ("a", "b", "c")), 3 + seed % 6
        rows = [(source, target, pair) for source in shape[0] for target in shape[1] for pair in range(pairs)]
        values = (
            random.normal(size=len(rows)) if answers is None else random.binomial(answers, 0.9, len(rows)) / answers
        )
        results = pl.DataFrame(rows, schema=["source", "target", "seed"], orient="row")
        matrix = compute_matrix(results.with_columns(value=pl.Series(values), direction=pl.lit("maximize")))
        claimed["cells"] += bool(matrix.cells["verdict"].is_in([BETTER, WORSE]).any())
        # Of a target's own source: better than every other one, or worse than one.
        claimed["diagonal"] += bool(best_sources(matrix)["own_against_rest"].is_in([BETTER, WORSE]).any())
        assert pairs > 3 or matrix.cells["verdict"].null_count() == matrix.cells.height
        assert set(matrix.cells["verdict"].drop_nulls()) <= {BETTER, WORSE, UNDECIDED}
    most = studies * (0.05 + 2 * sqrt(0.05 * 0.95 / studies))
    assert max(claimed.values()) <= most, claimed


@pytest.mark.parametrize("trials", [1, 4, 60])
def test_each_sentence_is_a_known_one_and_none_claims_a_difference_without_its_interval(trials: int) -> None:
    for text in findings_of(search_without_effect(np.random.default_rng(0), trials)):
        assert any(re.fullmatch(pattern, text) for pattern in KNOWN), text
        assert not _CLAIMS.search(text) or _INTERVAL.search(text), text


@pytest.mark.long
def test_a_study_of_one_trial_has_no_interval_no_p_and_no_change() -> None:
    data = search_without_effect(np.random.default_rng(0), 1)
    assert [text.partition(",")[0] for text in findings_of(data)] == ["The best trial is 0"]
    blocks = document(data).blocks
    made = [block for block in blocks if isinstance(block, Table)]
    cells = [cell for table in made for row in table.rows for cell in row]
    assert not [cell for cell in cells if "±" in cell or re.search(r"\S to \S", cell)]
    for table in made:
        for name in ("p", "Adjusted p", "95 % interval"):
            if name in table.header:
                assert {row[list(table.header).index(name)] for row in table.rows} == {"–"}
    captions = [block.caption for block in blocks if isinstance(block, Picture)]
    assert not [text for text in captions if "±" in text]
    # What cannot be drawn is said after all that can.
    places = [index for index, block in enumerate(blocks) if isinstance(block, Paragraph) and "Left out:" in block.text]
    assert all(
        index > max(index for index, block in enumerate(blocks) if isinstance(block, Picture)) for index in places
    )


def test_sections_of_pairs_apply_to_these_studies() -> None:
    data = search_without_effect(np.random.default_rng(0), 5)
    for section in (AveragedParameters, AveragingGrid, TemperatureCurves, TrainedScorer):
        assert section(data=data).applies, section
