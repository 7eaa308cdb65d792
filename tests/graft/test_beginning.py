"""Studies that cannot begin: another process changes the space meanwhile, or the controller refuses it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from graft.launching.changes import settle_changes
from graft.launching.checkpoints import Checkpoints
from graft.launching.enrolling import begin_controller, enrol, find_study, new_study
from graft.launching.placement import Placement
from graft.launching.planning.reading import read_space
from graft.serving.service import Service
from graft.serving.submitting import submit
from spaces.errors import ChangedError, StudyError
from spaces.space import Space
from storage import open_store
from tests.support.databases import raw
from tests.support.launches import SPACE
from tests.support.serve import queue


def space_of(trials: int) -> Space:
    return read_space(SPACE, {"search.trials": str(trials), "search.group": "2"})


def test_control_is_given_back_where_the_space_was_changed_meanwhile(url: str):
    enrol(url, "tiny", space_of(2))
    row = find_study(url, "tiny")
    enrol(url, "tiny", space_of(4))
    with open_store(url) as store:
        with pytest.raises(ChangedError, match="the space of study 'tiny' was changed as it was about to run"):
            begin_controller(store, row, None, None, None, keep_open=True)
        assert find_study(url, "tiny")["state"] == "stopped"
        begin_controller(store, find_study(url, "tiny"), None, None, None, keep_open=True).close()


def test_a_service_trains_the_space_that_the_study_has_when_it_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    url, said, changed = f"sqlite:///{tmp_path}/graft.db", list[str](), space_of(4)

    def change_and_settle(*arguments: Any, **settings: Any) -> list[str]:
        text = changed.text.replace("'", "''")
        raw(url, f"UPDATE studies SET space = '{text}', space_hash = '{changed.hash}', trials = 4")
        return settle_changes(*arguments, **settings)

    monkeypatch.setattr("graft.serving.running.settle_changes", change_and_settle)
    submit(url, space_of(2), study="a")
    placement = Placement(executor="inline", device="cpu", workers=1, width=2)
    with Service(url, placement=placement, checkpoints=Checkpoints(url="none", seconds=60), say=said.append) as service:
        service.run(until_empty=True)
    assert said[1] == "a: waits, as the space of study 'a' was changed as it was about to run; run it again"
    assert queue(url)["a"].state == "done"
    assert raw(url, "SELECT state, count(*) FROM trials GROUP BY state") == [("finished", 4)]


def test_a_study_that_the_controller_refuses_has_not_run(url: str):
    with open_store(url) as store:
        store.create_study(
            new_study("tiny", read_space(SPACE, {"search.stopping": "median", "search.history": "last"}))
        )
        with pytest.raises(StudyError, match="'last' forgets what stopping policies compare with"):
            begin_controller(store, find_study(url, "tiny"), None, None, None, keep_open=True)
    assert find_study(url, "tiny")["state"] == "stopped"
