"""What a study's report says of its prior."""

from __future__ import annotations

from pathlib import Path

import pytest

import graft
from graft.report.study import read
from storage.frames import open_reader
from tests.support import studies
from tests.support.databases import raw

SPACE = """
study: {name}
task: {{name: set_complement, length: 4, vocabulary: 9}}
model: {{name: minimal, width: 12, key_width: 4, value_width: 8}}
optimizer: {{name: adamw, learning_rate: 10 ** uniform(-4, -1)}}
averaging: none
training: {{steps: 20, validate_every: 10}}
search: {{trials: {trials}, sampler: learned, seed: 3, objective: {{minimize: tvd/raw, at: last}}}}
"""


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = f"sqlite:///{tmp_path_factory.mktemp('prior')}/graft.db"
    run = graft.Run(device="cpu", workers=1, checkpoints="none")
    for name, trials in (("several", 40), ("one", 1)):
        graft.launch(graft.Space(SPACE.format(name=name, trials=trials)), database=url, run=run)
    with studies.running(url):
        return url


@pytest.mark.long
def test_a_report_says_what_the_prior_did(database: str, tmp_path: Path) -> None:
    graft.open(database)["several"].report(tmp_path / "page.md")
    page = " ".join((tmp_path / "page.md").read_text().split())
    assert "## What the prior did" in page
    assert "The prior was learnt from 20 tasks; it chose at most 12 trials before it was judged." in page
    assert "Its ranks of the trials correlate with the real ones by" in page
    assert "Random search needs" in page
    assert "A proposed trial is better than an unrestricted one with a probability of" in page
    assert "(2006, method 5)" in page


def test_copies_of_a_population_are_of_no_origin(database: str, tmp_path: Path) -> None:
    copy = f"sqlite:///{tmp_path}/graft.db"
    raw(database, f"VACUUM INTO '{tmp_path}/graft.db'")
    raw(copy, "UPDATE trials SET parent = 0, parent_step = 10 WHERE number >= 30")
    with open_reader(copy) as reader:
        prior = read(reader, "several").prior
    assert prior is not None
    assert sum(origin.trials for origin in prior.origins) == 30


def test_a_report_of_one_trial_says_that_it_cannot_be_known(database: str, tmp_path: Path) -> None:
    graft.open(database)["one"].report(tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    assert "What a cold search would have cost cannot be known: 0 unrestricted trials have ended" in page
    assert "Proposed and unrestricted trials are too few to be compared." in page


def test_a_study_whose_space_cannot_be_read_or_has_no_prior_has_no_such_section(database: str) -> None:
    with open_reader(database) as reader:
        assert read(reader, "demo").prior is None
        broken = read(reader, "demo")
        broken.study["space"] += "# learned"  # pyright: ignore[reportIndexIssue]
        assert broken.prior is None
