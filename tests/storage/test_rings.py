"""What a database tells those who wait ends a wait early; who is told nothing finds the same a little later."""

from __future__ import annotations

import select
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from graft.launching.checkpoints import Checkpoints
from graft.launching.placement import Placement
from graft.serving import service as serving_module
from graft.serving.service import Service
from graft.web.settings import Settings
from spaces.records import TrialResult
from storage import StoreRequest, Terms, open_reader, open_store, request_queue
from storage.control import controlled_study
from storage.databases.database import QUEUE_TOPIC, study_topic
from storage.databases.postgres import Postgres
from storage.databases.postgres_reading import driver_of
from tests.support.databases import Server, raw
from tests.support.launches import wait_until
from tests.support.queue import STUDY, submit
from tests.support.servers import serving
from tests.support.studies import write_study
from tests.support.web import events

PATIENCE, AGES = 240.0, 3600.0
PLACE = Placement(executor="inline", device="cpu", workers=1, width=2)


def ending(number: int) -> TrialResult:
    return TrialResult(number=number, fence=1, state="finished", objective=0.5)


def is_rung(bell: int | None, seconds: float) -> bool:
    assert bell is not None
    return bool(select.select([bell], [], [], seconds)[0])


def test_a_page_is_told_at_once(postgres: Server, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("graft.web.routes.events._SECONDS", AGES)
    monkeypatch.setattr(controlled_study, "_RING_SECONDS", 0.0)
    with postgres.database() as url, open_store(url) as store, serving(Settings(database=url)) as address:
        study = write_study(store)
        following = events(address)
        next(following)
        for number in (16, 17):
            study.end([ending(number)])
            assert [trial["number"] for trial in next(following)[1]["ended"]] == [number]
        following.close()


@pytest.mark.long
def test_a_stream_whose_database_goes_ends_and_another_goes_on(postgres: Server, caplog: pytest.LogCaptureFixture):
    with postgres.database() as url, open_store(url) as store, serving(Settings(database=url)) as address:
        study = write_study(store)
        others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        writing = [pid for (pid,) in raw(url, f"SELECT pid {others}")]
        following = events(address)
        cursor, _ = next(following)
        raw(url, f"SELECT pg_terminate_backend(pid) {others} AND pid <> ALL(ARRAY{writing})")
        assert list(following) == []
        study.end([ending(16)])
        assert [trial["number"] for trial in next(events(address, cursor))[1]["ended"]] == [16]
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.long
def test_what_is_not_told_arrives_by_looking(postgres: Server, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Postgres, "ring", lambda self, connection, topic: None)
    with postgres.database() as url, open_store(url) as store, serving(Settings(database=url)) as address:
        study = write_study(store)
        following = events(address)
        next(following)
        study.end([ending(16)])
        assert [trial["number"] for trial in next(following)[1]["ended"]] == [16]
        following.close()


def test_each_hears_of_its_own_topic_once_it_is_committed(postgres: Server):
    with postgres.database() as url, open_store(url) as store:
        study = write_study(store)
        with open_reader(url) as queue, open_reader(url) as trials:
            of_queue, of_trials = queue.listen(QUEUE_TOPIC), trials.listen(study_topic(study.id))
            submit(store, STUDY, Terms())
            assert is_rung(of_queue, PATIENCE)
            queue.hush()
            assert not is_rung(of_queue, 0)
            assert not is_rung(of_trials, 0)
            assert trials.study("demo").counts()["running"] == 4  # it reads as before


def test_a_study_tells_at_most_once_a_second(postgres: Server, monkeypatch: pytest.MonkeyPatch):
    rung: list[str] = []
    clock = SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr(controlled_study, "time", clock)
    monkeypatch.setattr(Postgres, "ring", lambda self, connection, topic: rung.append(topic))
    now = 100.0
    with postgres.database() as url, open_store(url) as store:
        study = write_study(store)
        for now in (100.5, 101.0, 101.5):
            study.end([ending(16 + int(2 * (now - 100.5)))])
        assert rung == [study_topic(study.id)] * 2


def test_a_service_is_told_at_once_and_goes_on_without(
    postgres: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(serving_module, "LOOK_SECONDS", AGES)
    with (
        postgres.database() as url,
        Service(url, placement=PLACE, checkpoints=Checkpoints(url="none", seconds=60)) as service,
    ):
        waiting = threading.Thread(target=service._wait)
        waiting.start()
        request_queue(url, StoreRequest.of_study(STUDY, Terms()))
        waiting.join(PATIENCE)
        assert not waiting.is_alive()
        monkeypatch.setattr(serving_module, "LOOK_SECONDS", 0.01)
        pid = driver_of(service._listener._answers.reading.connection).info.backend_pid
        raw(url, f"SELECT pg_terminate_backend({pid})")
        wait_until(lambda: not raw(url, f"SELECT 1 FROM pg_stat_activity WHERE pid = {pid}"))
        wait_until(lambda: service._wait() or service._bell is None)
        request_queue(url, StoreRequest(action="cancel", study=STUDY.name))
        service.run(until_empty=True)
    assert not caplog.messages, "a connection that was lost is closed without a word"


@pytest.mark.parametrize("topic", [QUEUE_TOPIC, study_topic(7)])
def test_a_file_tells_nothing(tmp_path: Path, topic: str):
    url = f"sqlite:///{tmp_path}/graft.db"
    open_store(url).close()
    with open_reader(url) as reader:
        assert reader.listen(topic) is None
        reader.hush()
