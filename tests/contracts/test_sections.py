"""The contract of a section of a study's report, which every file in its folder passes, and that a file is enough."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from graft.plugins.collecting import plugins_asked_for
from graft.report.data import StudyData
from graft.report.rendering.document import Document, Heading, Paragraph, Picture
from graft.report.sections import FigureNumbers, Part, Section
from graft.report.study import collect_sections, document, order_sections, reserved_metrics
from spaces import plugins
from spaces.errors import PluginError
from spaces.plugins.active import using
from tests.support.synthetic_studies import (
    metrics_frame,
    set_complement_study,
    study_data,
    study_row,
    trial_row,
    trials_frame,
)

NAMES = plugins.names(Section)

NEW = '''
from graft.report.rendering.document import Paragraph
from graft.report.sections import Part, Section
from search.analysis.study.scores import Reserved

class Loudness(Section):
    """How loud the trials were."""
    part, after, reserved = Part.RESULTS, "best_trials", Reserved(names=["loudness"])
    title = "How loud"

    def blocks(self, figures):
        values = self.data.scores.of_reserved(self.reserved).height
        yield Paragraph(text=f"{values} values, Figure {figures.sections['distribution']}.")
'''


def studies() -> dict[str, StudyData]:
    frame = trials_frame([trial_row(0, 0, "finished", 0.5)])
    tried = [
        ({"arm": arm, "configuration": configuration, "seed": seed}, 1.0 + configuration * len(arm) + 0.1 * seed)
        for configuration in range(2)
        for arm in ("base", "other")
        for seed in range(3)
    ]
    arms = [trial_row(at, 0, "finished", value, params=params) for at, (params, value) in enumerate(tried)]
    curves = [
        (at, step, "mse", "raw", condition, value + 1 / step)
        for at, (_, value) in enumerate(tried)
        for step in (1, 2)
        for condition in ("", "length=8")
    ]
    return {
        "arms": study_data(study_row(objective="mse/raw"), trials_frame(arms), metrics_frame(curves)),
        "groups": study_data(study_row(), *set_complement_study(groups=4, members=20)),
        "one trial": study_data(study_row(), frame, metrics_frame([(0, 1, "tvd", "raw", "", 0.5)])),
        "no metrics": study_data(study_row(), frame, metrics_frame([])),
        "another task": study_data(study_row("accuracy/raw"), frame, metrics_frame([(0, 1, "loss", "raw", "", 0.5)])),
    }


def pictures(page: Document) -> dict[int, str]:
    return {block.number: block.caption for block in page.blocks if isinstance(block, Picture)}


@pytest.mark.sampled(10)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("study", studies())
def test_a_section_that_applies_has_blocks_and_numbers_its_figures_from_its_own_on(name: str, study: str) -> None:
    section = plugins.load(Section, name)(data=studies()[study])
    assert section.part in Part
    if not section.fits or not section.applies:
        return
    numbers = FigureNumbers(own=7, sections=dict.fromkeys(NAMES, 1))
    blocks = list(section.blocks(numbers))
    assert blocks
    figures = [block.number for block in blocks if isinstance(block, Picture)]
    assert figures == list(range(7, 7 + len(figures)))
    assert len(figures) <= section.figure_count
    assert not any(isinstance(block, Heading) for block in blocks)


def test_the_report_of_an_experiment_pools_no_arms() -> None:
    page = document(studies()["arms"])
    titles = [block.text for block in page.blocks if isinstance(block, Heading)]
    assert titles == ["Arms", "Figures", "How these numbers are made"]
    assert list(pictures(page)) == [6, 7, 8]


def test_the_report_names_no_section_and_no_field_of_a_task_or_model() -> None:
    generic = (
        "graft.report.study",
        "graft.report.data",
        "search.analysis.study.scores",
        "search.analysis.study.groups",
    )
    fields = ("generalisation_gap", "vocabulary", "key_width", "scorer", "dropout")
    for module in generic:
        text = inspect.getsource(importlib.import_module(module))
        assert not [name for name in NAMES if f'"{name}"' in text]
        assert not [field for field in fields if field in text]


@pytest.mark.long
def test_figures_keep_their_numbers_when_others_are_left_out() -> None:
    data = studies()
    assert list(pictures(document(data["groups"]))) == [1, 2, 3, 4]
    assert list(pictures(document(data["one trial"]))) == [4]


def test_sections_stand_in_this_order() -> None:
    order = """
        arms diverged constraints best_trials pareto_front prior averaged_parameters transfer_scores trained_scorer
        diagnostics best_per_group dropout distribution averaging_grid arm_differences learning_curves best_of_k
        condition_maps condition_lines arm_conditions boundary_values temperature_curves attention_entropy logit_spread
        gap_curves transfer_curves transfer_sizes transfer_lines answers optimal_temperature groups fingerprints
    """
    assert [plugins.name_of(section) for section in collect_sections(studies()["groups"])] == order.split()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mine": "dropuot"}, "section mine: after: 'dropuot' is no section, did you mean 'dropout'?"),
        ({"mine": "other", "other": "mine"}, "sections that follow each other in a circle: mine, other"),
    ],
)
def test_a_section_without_a_place_is_refused_in_one_line(changes: dict[str, str], words: str) -> None:
    after = {name: plugins.load(Section, name).after for name in NAMES}
    with pytest.raises(PluginError) as refused:
        order_sections(after | changes)
    assert str(refused.value).startswith(words)
    assert "\n" not in str(refused.value)


def test_sections_from_outside_stand_behind_the_one_they_name_or_else_last() -> None:
    after = {name: plugins.load(Section, name).after for name in NAMES}
    order = order_sections(after | {"my_dropout": "dropout", "a_part_of_it": "my_dropout", "old": "", "ancient": ""})
    start = order.index("dropout")
    assert order[start : start + 4] == ["dropout", "my_dropout", "a_part_of_it", "distribution"]
    assert order[-3:] == ["fingerprints", "ancient", "old"]


@pytest.fixture
def loudness(tmp_path: Path) -> Iterator[None]:
    """Yield a section of somebody's own."""
    (tmp_path / "loudness.py").write_text(NEW)
    with using(plugins_asked_for([str(tmp_path / "loudness.py")])):
        yield


@pytest.mark.usefixtures("loudness")
def test_a_file_adds_a_section_and_takes_its_metrics_out_of_all_others() -> None:
    assert "loudness" in plugins.names(Section)
    rows = [trial_row(number, 0, "finished", 0.5) for number in range(3)]
    metrics = [(number, 1, name, "raw", "", 0.5) for number in range(3) for name in ("tvd", "loudness of heads")]
    data = study_data(study_row(), trials_frame(rows), metrics_frame(metrics))
    assert len(reserved_metrics()) == 3
    assert data.statistics["name"].unique().to_list() == ["tvd"]
    blocks = document(data).blocks
    titles = [block.text for block in blocks if isinstance(block, Heading)]
    assert titles[:3] == ["Best trials", "How loud", "Metrics"]
    assert Paragraph(text="3 values, Figure 4.") in blocks


def test_a_section_that_states_a_number_as_before_is_the_last_of_its_part(tmp_path: Path) -> None:
    (tmp_path / "loudness.py").write_text(NEW.replace("part, after,", "part, order,").replace('"best_trials"', "15"))
    rows = [trial_row(number, 0, "finished", 0.5) for number in range(3)]
    metrics = [(number, 1, name, "raw", "", 0.5) for number in range(3) for name in ("tvd", "loudness of heads")]
    with using(plugins_asked_for([str(tmp_path / "loudness.py")])):
        blocks = document(study_data(study_row(), trials_frame(rows), metrics_frame(metrics))).blocks
    titles = [block.text for block in blocks if isinstance(block, Heading)]
    assert titles[:4] == ["Best trials", "Metrics", "How loud", "Figures"]
