"""Maps of a trained trial's attention: which weights they show, and the report."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from graft.files import OutputError
from graft.report.papers.attention import sort_sets, write_maps
from spaces.errors import StudyError
from tests.support.trials import config, trial
from workers.engine.trained_model import AttentionMaps, TrainedModel
from workers.training.recipe import Recipe, layout_of

pytestmark = pytest.mark.fast
MODEL = {"name": "attention_pooling", "width": 8}
TASK = {"name": "max_retrieval", "largest": 64}


def untrained(task: dict[str, object], model: dict[str, object]) -> TrainedModel:
    """Return a model as it starts, with its weights grown so that it attends to something."""
    new_trial = trial(0, {**config(), "task": task, "model": model})
    layout = layout_of(Recipe.of(new_trial.config))
    start = layout.initial(torch.tensor([3]), 0)[0]
    return TrainedModel(new_trial, {name: 3 * tensor for name, tensor in layout.split(start).items()})


def made(queries: int) -> AttentionMaps:
    """Two layers of one and two heads over 20 keys of two features, on three sequences of several lengths."""
    random = np.random.default_rng(1)
    given = np.arange(20) < np.array([[20], [18], [17]])
    layers = [random.random((3, heads, queries, 20)) for heads in (1, 2)]
    return AttentionMaps(layers=layers, inputs=random.normal(size=(3, 20, 2)), given=given)


def test_sets_are_sorted_by_their_first_number_and_the_largest_is_last() -> None:
    maps = made(queries=1)
    shown = sort_sets(maps)
    assert shown.shape == (3, 16)
    for row, length in enumerate((20, 18, 17)):
        order = sorted(range(length), key=lambda at: maps.inputs[row, at, 0])[-16:]
        assert shown[row].tolist() == [maps.layers[0][row, 0, 0, at] for at in order]


def test_attention_is_that_of_the_scorer_and_the_set_that_a_condition_names() -> None:
    model = untrained(TASK, MODEL)
    maps = {name: model.attention(name, count=5) for name in ("", "items=64", "items=64 scorer=trained")}
    assert [attention.layers[0].shape for attention in maps.values()] == [(5, 1, 1, 16), (5, 1, 1, 64), (5, 1, 1, 64)]
    for attention in maps.values():
        assert np.allclose(attention.layers[0].sum(-1), 1, atol=1e-5)
    adapted, trained = (maps[name].layers[0] for name in ("items=64", "items=64 scorer=trained"))
    assert (maps["items=64"].inputs == maps["items=64 scorer=trained"].inputs).all()
    entropies = [-(weights * np.log(weights)).sum(-1) for weights in (adapted, trained)]
    assert (entropies[0] < entropies[1]).all()  # a temperature below 1
    with pytest.raises(StudyError, match="items=3"):
        model.attention("items=3")


def test_a_model_that_shows_no_attention_is_refused_in_one_line() -> None:
    model = untrained({"name": "linear_regression", "dimension": 2, "pairs": 4}, {"name": "linearised_attention"})
    with pytest.raises(StudyError, match=r"^model\.name: 'linearised_attention' has no weights of attention"):
        model.attention()


@pytest.mark.long
def test_the_page_has_all_sets_in_one_figure_and_other_conditions_in_one_each(tmp_path: Path) -> None:
    pages = {"sets": {"": made(1), "items=9": made(1)}, "prompts": {"": made(20)}}
    for name, maps in pages.items():
        write_maps("study", 4, maps, 2, tmp_path / f"{name}.html")
        assert (tmp_path / f"{name}.html").read_text().count("<svg") == 1
    with pytest.raises(StudyError, match="--sequence 3: it must be 0 to 2"):
        write_maps("study", 4, pages["prompts"], 3, tmp_path / "prompts.html")
    with pytest.raises(OutputError, match="the ending must be one of"):
        write_maps("study", 4, pages["sets"], 0, tmp_path / "sets.png")
