"""Defaults that have changed: a study keeps those of its time, a space that is read anew has today's."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

import spaces
from graft.plugins.families import families
from tests.support.inside import called

BEMA = """
study: averages
arms:
  plain: {averaging: none}
  bare: {averaging: bema}
  half: {averaging: {bema: {kappa: 0.7}}}
  whole: {averaging: {name: bema, eta: 0.3}}
seeds: 1
task: {name: set_complement, length: 3, vocabulary: 6}
model: {name: minimal, width: 4, key_width: 2, value_width: 2}
optimizer: {name: adamw, learning_rate: 0.01}
training: {steps: 4, batch: 4, validate_every: 4, validation_batch: 8}
search: {objective: {minimize: tvd/raw}}
"""


@pytest.mark.parametrize(("numerics", "eta"), [(1, 0.2), (6, 0.2), (7, 0.6), (None, 0.6)])
def test_a_study_keeps_the_defaults_of_its_time(numerics: int | None, eta: float) -> None:
    """BEMA's eta was .2 up to version 6 of the numerics; what a space says stands in any case."""
    if numerics is None:
        space = spaces.parse(BEMA, "averages", families())
    else:
        space = spaces.parse_stored({"name": "averages", "space": BEMA, "numerics": numerics}, families())
    configs = [space.sample(number, lambda _: 0.5).config["averaging"] for number in range(4)]
    assert [config.get("eta") for config in configs] == [None, eta, eta, 0.3]
    assert [config.get("kappa") for config in configs] == [None, 0.5, 0.7, 0.5]


@pytest.mark.long
def test_a_stored_trial_is_restored_with_the_defaults_of_its_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A study made to look older than it is: what was stored differs from what its text then says."""
    monkeypatch.setenv("SEARCH_STORAGE", f"sqlite:///{tmp_path}/graft.db")
    (tmp_path / "averages.yaml").write_text(BEMA)
    options = ("--executor=inline", "--device=cpu", "--workers=1")
    assert called(monkeypatch, capfd, "launch", tmp_path / "averages.yaml", *options)[0] == 0
    assert called(monkeypatch, capfd, "replay", "averages", 1)[0] == 0
    with sqlite3.connect(tmp_path / "graft.db") as connection:
        connection.execute("UPDATE studies SET numerics = 6")
    status, _, error = called(monkeypatch, capfd, "replay", "averages", 1)
    assert status == 2
    assert "averaging.eta is stored as 0.6, but Graft" in error
    assert "reads 0.2" in error
