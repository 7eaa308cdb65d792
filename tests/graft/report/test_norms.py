"""Norms of token embeddings: which numbers they are, the page, and what the command refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from graft.files import OutputError
from graft.report.papers.norms import norms_of, write_norms
from spaces.errors import StudyError
from tests.support.inside import called
from tests.support.trials import config, trial
from workers.engine.trained_model import TrainedModel
from workers.training.recipe import Recipe, layout_of

pytestmark = pytest.mark.fast
TOKENS = {"name": "add_mod", "modulus": 7}


def untrained(task: dict[str, object], model: dict[str, object]) -> TrainedModel:
    """Return a model as it starts."""
    new_trial = trial(0, {**config(), "task": task, "model": {"width": 6, **model}})
    layout = layout_of(Recipe.of(new_trial.config))
    return TrainedModel(new_trial, layout.split(layout.initial(torch.tensor([3]), 0)[0]))


@pytest.mark.parametrize("tied", [True, False])
def test_norms_are_those_of_each_tokens_vector(tied: bool) -> None:
    model = untrained(TOKENS, {"name": "transformer", "tied": tied})
    matrices = {name: tensor.detach().double().numpy() for name, tensor in model.named_parameters()}
    norms = norms_of(model)
    assert list(norms) == ["embedding"] if tied else ["embedding", "unembedding"]
    for token in range(len(matrices["embedding"])):
        assert norms["embedding"][token] == pytest.approx(np.sqrt((matrices["embedding"][token] ** 2).sum()))
        if not tied:
            column = matrices["unembedding"][:, token]
            assert norms["unembedding"][token] == pytest.approx(np.sqrt((column**2).sum()))


def test_a_model_that_reads_no_tokens_is_refused_in_one_line() -> None:
    model = untrained({"name": "linear_regression", "dimension": 2, "pairs": 4}, {"name": "regressor"})
    with pytest.raises(StudyError, match=r"^this model reads no tokens"):
        norms_of(model)


def test_the_page_has_the_numbers_and_the_figure(tmp_path: Path) -> None:
    write_norms("Norms", {"embedding": np.array([3.0, 4.0, 5.0]), "unembedding": np.ones(3)}, tmp_path / "norms.html")
    page = (tmp_path / "norms.html").read_text()
    assert page.count("<svg") == 1
    assert "3 tokens" in page
    with pytest.raises(OutputError, match="the ending must be one of"):
        write_norms("Norms", {"embedding": np.ones(3)}, tmp_path / "norms.png")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["a-study", "0"], "the ending must be one of"),
        (["-o", "norms.html"], "norms needs a trial"),
        (["a-study", "0", "--pretrained", "folder", "-o", "norms.html"], "norms needs a trial"),
        (["--pretrained", "folder", "-o", "norms.html"], "there is no config.json"),
    ],
)
def test_what_cannot_be_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[Any],
    tmp_path: Path,
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, error = called(monkeypatch, capsys, "report", "norms", *arguments)
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert words in error
    assert not list(tmp_path.iterdir())
