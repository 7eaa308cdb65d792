"""The rows of fingerprints, on both databases: what determined each trial's numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from graft.stored.fingerprints import read_fingerprints
from spaces.records import Checkpoint
from storage import open_reader, open_store
from tests.support.databases import OBJECTIVE, controlled, held, make_fingerprint, make_report, make_trial, raw

pytestmark = pytest.mark.fast

ROWS = "SELECT number, previous, torch, step_kind FROM fingerprints ORDER BY number"
OF_TRIALS = "SELECT number, fingerprint FROM trials ORDER BY number"


def test_trials_of_one_fingerprint_share_a_row_which_learns_their_plug_ins(url: str) -> None:
    with controlled(url) as study:
        study.start([make_trial(n) for n in range(4)], "w")
        other = make_fingerprint(sources=(("optimizer adamw", "aa"), ("scorer ssa", "bb")))
        traced = make_fingerprint(step_kind="traced AVX2", compiler="")
        prints = [make_fingerprint(), other, traced, None]
        study.record([replace(make_report(n, 10), fingerprint=fingerprint) for n, fingerprint in enumerate(prints)])
        study.record([replace(make_report(n, 20), fingerprint=fingerprint) for n, fingerprint in enumerate(prints)])
    assert raw(url, ROWS) == [(0, None, "2.9.0", "native AVX2"), (1, None, "2.9.0", "traced AVX2")]
    assert raw(url, OF_TRIALS) == [(0, 0), (1, 0), (2, 1), (3, None)]
    with open_reader(url) as reader:
        first, _ = read_fingerprints(reader, "study")
    assert first.sources == {"optimizer adamw": "aa", "scorer ssa": "bb"}


def test_another_source_of_a_plug_in_is_another_fingerprint(url: str) -> None:
    with controlled(url) as study:
        study.start([make_trial(0), make_trial(1)], "w")
        changed = make_fingerprint(sources=(("optimizer adamw", "a2"),))
        study.record([replace(make_report(0, 10), fingerprint=make_fingerprint())])
        study.record([replace(make_report(1, 10), fingerprint=changed)])
    assert raw(url, OF_TRIALS) == [(0, 0), (1, 1)]


def test_a_trial_that_resumes_under_another_fingerprint_has_a_row_that_names_the_one_before(url: str) -> None:
    before, after = make_fingerprint(), make_fingerprint(torch="2.10.0")
    with controlled(url) as study:
        study.start([make_trial(0), make_trial(1)], "w")
        saved = Checkpoint(number=0, fence=1, step=10, path="p", row=0, sha256="0")
        study.record([replace(make_report(n, 10), fingerprint=before) for n in (0, 1)], saved=[saved])
        study_id = study.id
    with open_store(url) as store:
        study = store.take_control(study_id, policy="full", objective=OBJECTIVE)
        study.rescue(held(0, 1))
        study.start([replace(make_trial(0), checkpoints=(saved,)), make_trial(1), make_trial(2)], "v")
        assert raw(url, OF_TRIALS) == [(0, 0), (1, None), (2, None)], "what starts from nothing has none"
        for step in (20, 30):
            study.record([replace(make_report(n, step, fence=2 - n // 2), fingerprint=after) for n in (0, 1, 2)])
    assert raw(url, OF_TRIALS) == [(0, 1), (1, 2), (2, 2)]
    assert raw(url, ROWS) == [
        (0, None, "2.9.0", "native AVX2"),
        (1, 0, "2.10.0", "native AVX2"),
        (2, None, "2.10.0", "native AVX2"),
    ]


def test_a_transaction_that_is_made_twice_writes_one_fingerprint(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with controlled(url) as study:
        study.start([make_trial(0)], "w")
        transact = study.session.transact

        def twice(act: Callable[..., object]) -> object:
            transact(act)
            return transact(act)

        monkeypatch.setattr(study.session, "transact", twice)
        study.record([replace(make_report(0, 10), fingerprint=make_fingerprint())])
        monkeypatch.undo()
        study.record([replace(make_report(0, 20), fingerprint=make_fingerprint())])
    assert (raw(url, OF_TRIALS), len(raw(url, ROWS))) == ([(0, 0)], 1)
