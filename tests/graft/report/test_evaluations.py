"""Scores of several models in one table: arms, standard errors over seeds, and what the command refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graft.report.papers.evaluations import read_evaluations, summarize_evaluations
from spaces.errors import StudyError
from tests.support.inside import called

pytestmark = pytest.mark.fast


def write(path: Path, value: float, **about: Any) -> Path:
    row = {"task": "dogs", "metric": "acc", "filter": "none", "value": value, "standard_error": 0.25, "samples": 4}
    path.write_text(json.dumps({**about, "results": [row]}))
    return path


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Two arms, one of three seeds and one of one, and a pretrained model under a scorer."""
    values = {("softmax", 0): 0.5, ("softmax", 1): 0.75, ("softmax", 2): 0.625, ("ssa", 0): 0.875}
    paths = [
        write(tmp_path / f"{arm}{seed}.json", value, study="web", trial=4 * seed + len(arm), arm=arm, seed=seed)
        for (arm, seed), value in values.items()
    ]
    return [*paths, write(tmp_path / "llama.json", 0.125, pretrained="/models/llama", scorer={"name": "ssa"})]


def test_an_arm_has_the_standard_error_over_its_seeds_and_one_model_the_harness_own(files: list[Path]) -> None:
    rows = summarize_evaluations(read_evaluations(files)).rows()
    error = np.std([0.5, 0.75, 0.625], ddof=1) / 3**0.5
    assert rows == [
        ("softmax of web", "dogs", "acc", "none", 3, 0.625, pytest.approx(error)),
        ("ssa of web", "dogs", "acc", "none", 1, 0.875, 0.25),
        ("llama with ssa", "dogs", "acc", "none", 1, 0.125, 0.25),
    ]


def test_trials_without_arms_are_models_of_their_own(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{n}.json", n / 4, study="web", trial=n) for n in (0, 1)]
    assert read_evaluations(paths)["label"].to_list() == ["trial 0 of web", "trial 1 of web"]


def test_two_files_of_one_model_are_refused(files: list[Path], tmp_path: Path) -> None:
    again = write(tmp_path / "again.json", 0.5, study="web", trial=7, arm="softmax")
    with pytest.raises(StudyError, match=r"again.json: .*softmax0.json has scores of trial 7 of web, too"):
        read_evaluations([*files, again])


def test_the_command_writes_the_table_and_refuses_other_files_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[Any], files: list[Path], tmp_path: Path
) -> None:
    page = tmp_path / "scores.md"
    assert called(monkeypatch, capsys, "report", "evaluations", *files, "-o", page)[0] == 0
    text = page.read_text()
    assert "softmax of web (3)" in text
    assert "0.625 ± 0.072" in text
    other = tmp_path / "other.json"
    for content in ("{", "[]", "{}", '{"study": "a", "trial": 1, "results": [{"task": "b"}]}', None):
        other.unlink(missing_ok=True) if content is None else other.write_text(content)
        status, out, error = called(monkeypatch, capsys, "report", "evaluations", other, "-o", tmp_path / "no.html")
        assert (status, out, error.count("\n")) == (2, "", 1)
        assert "other.json is no file of scores" in error
    status, _, error = called(monkeypatch, capsys, "report", "evaluations", *files, "-o", "scores.png")
    assert (status, error.count("\n")) == (2, 1)
