"""`--steps` on any space: one trains for so many steps, a transfer in proportion."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graft.families import families
from graft.launching.cutting import cut_steps
from spaces import load
from spaces.reading import catalogue
from spaces.reading.transfer_section import is_transfer_text
from spaces.transfer import TransferSpace
from tests.inside import called
from tests.launches import SPACE

TRANSFERS = [name for name in catalogue.packaged() if is_transfer_text(catalogue.read_text(name))]


def counts(space: TransferSpace) -> dict[tuple[str, str], Any]:
    """Task and stage -> what counts steps there."""
    found: dict[tuple[str, str], Any] = {}
    for domain in space.domains:
        for stage, own in (("two", domain.baseline), ("one", domain.searched)):
            if own:
                config = own.sample(0, lambda _: 0.5).config
                life = config["learning"].get("life", 0)
                found[domain.name, stage] = config["training"]["steps"], config["training"]["validate_every"], life
    return found


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", TRANSFERS)
def test_a_transfer_is_cut_in_proportion(name: str):
    """Halved: every count is half of what it was, to the next whole number, in both stages."""
    whole = load(name, families())
    assert isinstance(whole, TransferSpace)
    before = counts(whole)
    longest = max(steps for (_, stage), (steps, *_) in before.items() if stage == "two")
    cut = load(name, families(), cut_steps(name, longest // 2, {}))
    assert isinstance(cut, TransferSpace)
    cut.check(5)
    after = counts(cut)
    for where, values in before.items():
        for value, half in zip(values, after[where], strict=True):
            assert half == (max(1, round(value * (longest // 2) / longest)) if value > 1 else value), where


def test_another_space_trains_for_so_many_steps():
    assert cut_steps(SPACE, 7, {}) == {"training.steps": "7"}
    assert cut_steps("quick/set_complement", 0, {}) == {"training.steps": "0"}


def test_a_transfer_is_launched_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """What is set by its own path counts more."""
    monkeypatch.chdir(tmp_path)
    run: Callable[..., tuple[int, str, str]] = lambda *words: called(monkeypatch, capsys, *words)  # noqa: E731
    own = "--set=transfer.tasks.add.set.training.validate_every=5"
    status, out, error = run("launch", "quick/transfer", "--steps=20", own, "--dry-run", "--device=cpu", "--pack=2")
    assert status == 0, error
    found = re.search(r"steps +(\d+) to (\d+) a trial", out)
    assert found
    assert (int(found[1]), int(found[2]) <= 80) == (10, True), "300 in stage two, 1,200 in stage one before"
    status, out, error = run("launch", "quick/transfer", "--steps=0", "--dry-run")
    assert (status, out, error.count("\n")) == (2, "", 1)
