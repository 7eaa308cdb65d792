"""The queue in the database: what people ask of it, by whichever process may write."""

from __future__ import annotations

import json
import multiprocessing
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from cli.commands.serve import TermsOptions
from graft.launching.checkpoints import Checkpoints
from graft.launching.placement import Placement
from graft.serving.running import StudyRun
from graft.serving.service import Service
from spaces.errors import RowError, StorageError, StudyError
from storage import QueueEntry, StoreRequest, Terms, open_reader, open_store, request_queue
from storage import queue as storage_queue
from storage.databases.mailbox import Mailbox
from storage.queue_entries import StrangeEntry
from tests.support import queue as queue_support
from tests.support.databases import Server, raw
from tests.support.db_commands import unchecked
from tests.support.queue import STUDY, TERMS, taking, with_value

pytestmark = pytest.mark.fast


NO_ACTION = StoreRequest(action="pause", study="one").to_json().replace("pause", "drop")
Elsewhere = Callable[..., Any]


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Elsewhere]:
    """Call a function of this module with arguments in another process; gives its answer."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        yield lambda act, *arguments: pool.apply(act, arguments)


def submit(url: str, name: str = "one", terms: Terms = TERMS) -> None:
    request_queue(url, StoreRequest.of_study(replace(STUDY, name=name), terms))


def ask(url: str, action: str, study: str = "one") -> str:
    entry = request_queue(url, StoreRequest(action=action, study=study))  # pyright: ignore[reportArgumentType]
    assert entry
    return entry.state


def test_an_entry_that_was_edited_is_told_apart_from_the_others(url: str):
    submit(url)
    submit(url, "two")
    unchecked(url, "UPDATE submissions SET weight = -1, max_lanes = 0 WHERE study_id = 1")
    fault = "weight in the row of submissions with study_id 1 is -1.0; it must be a finite number above 0"
    with open_store(url) as store:
        sound, strange = store.queue.sound_entries()
        assert [(entry.study, entry.state, entry.submitted_at.utcoffset()) for entry in sound] == [
            ("two", "waiting", timedelta(0))
        ]
        assert strange == [StrangeEntry(1, "one", True, fault)]
        assert queue_support.ask(store, "reprioritise", "two", priority=5).priority == 5
        with pytest.raises(StudyError, match=f"study 'one': {fault}"):
            queue_support.ask(store, "reprioritise", "one", priority=5)
        with (
            open_reader(url) as reader,
            pytest.raises(RowError, match=f"a row is not what Graft writes: {fault}"),
        ):
            reader.queue()


def test_a_submission_is_a_study_and_an_entry(url: str):
    submit(url)
    with open_reader(url) as reader:
        [entry] = reader.queue()
        study = reader.study("one")
        assert study.row["space"] == STUDY.space
        assert study.row["state"] == "stopped"
        assert study.bundles() == STUDY.bundles
    assert (entry.study, entry.state, entry.trials, entry.seed) == ("one", "waiting", 8, 3)
    assert (entry.owner, entry.priority, entry.weight, entry.max_lanes) == ("ann", 2, 0.5, 7)
    assert entry.submitted_at.tzinfo
    assert not entry.started_at


def test_the_order_is_that_of_classes_and_of_submission(url: str):
    for name, priority in (("a", 0), ("b", 5), ("c", 0), ("d", -1)):
        submit(url, name, Terms(priority=priority))
    ask(url, "cancel", "c")
    with open_reader(url) as reader:
        assert [entry.study for entry in reader.queue()] == ["b", "a", "d", "c"]
    request_queue(url, StoreRequest(action="reprioritise", study="d", terms=Terms(priority=9)))
    with open_reader(url) as reader:
        assert [entry.study for entry in reader.queue()] == ["d", "b", "a", "c"]


def test_pause_resume_and_cancel(url: str):
    submit(url)
    assert [ask(url, action) for action in ("pause", "pause", "resume", "cancel", "resume")] == [
        "paused",
        "paused",
        "waiting",
        "cancelled",
        "waiting",
    ]
    ask(url, "cancel")
    submit(url)  # the same space goes on
    with open_reader(url) as reader:
        assert [entry.state for entry in reader.queue()] == ["waiting"]


REFUSED: list[tuple[Callable[[str], object], str]] = [
    (
        lambda url: submit(url, terms=replace(TERMS, owner="bo")),
        "study 'one' is in the queue already (waiting), of ann; submit another name",
    ),
    (lambda url: submit(url, "a b"), "a study's name: 'a b' must be a word of letters, digits, '.', '_' and '-'"),
    (lambda url: ask(url, "pause", "two"), "study 'two' is not in the queue; there are one"),
    (
        lambda url: request_queue(url, StoreRequest.of_study(replace(STUDY, name="old", space_hash="other"), TERMS)),
        "study 'old' exists already with another space; submit this one under another name (--name)",
    ),
    (lambda url: ask(url, "cancel", "done"), "study 'done' is done: there is nothing to cancel"),
]


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("act", "line"), REFUSED, ids=[line for _, line in REFUSED])
def test_what_cannot_be_done_is_one_line_and_changes_nothing(url: str, act: Callable[[str], object], line: str):
    submit(url, "done")
    with open_store(url) as store:
        store.queue.note_end(store.queue.sound_entries()[0][0].study_id, "done")
        store.create_study(replace(STUDY, name="old"))
    submit(url)
    with open_reader(url) as reader:
        before = reader.queue()
    with pytest.raises(StudyError) as caught:
        act(url)
    assert str(caught.value) == line
    with open_reader(url) as reader:
        assert reader.queue() == before


@pytest.mark.parametrize(
    ("terms", "line"),
    [
        ({"priority": 101}, "priority 101 must be a whole number from -100 to 100"),
        ({"weight": 0.0}, "weight 0.0 must be above 0 and at most 1000"),
        ({"weight": float("nan")}, "weight nan must be above 0 and at most 1000"),
        ({"max_lanes": 0}, "max_lanes 0 must be from 1 to 1,000,000"),
        ({"max_lanes": 10**30}, "max_lanes 1e+30 must be from 1 to 1,000,000"),
        ({"owner": "a\nb"}, "owner 'a\\nb' must be a name of at most 100 characters"),
    ],
)
def test_terms_are_checked(terms: dict[str, float], line: str):
    with pytest.raises(StudyError) as caught:
        Terms(**terms)  # pyright: ignore[reportArgumentType]
    assert str(caught.value) == line


def test_who_has_no_name_submits_by_number(monkeypatch: pytest.MonkeyPatch):
    """As in a container that is run by a number of its own."""
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 61_234)
    assert TermsOptions().terms().owner == "61234"


def test_the_same_request_made_twice_changes_nothing_more(url: str):
    request = StoreRequest.of_study(STUDY, TERMS)
    with open_store(url) as store:
        first = store.queue.apply(request)
        store.queue.note_start(first.study_id)
        assert store.queue.apply(request).state == "running"
    assert len(raw(url, "SELECT id FROM studies")) == 1


def test_a_study_that_is_submitted_again_stays_as_it_is(url: str):
    submit(url)
    with open_reader(url) as reader:
        [before] = reader.queue()
    submit(url, terms=replace(TERMS, priority=7))
    ask(url, "pause")
    submit(url)  # a study that a person paused does not go on by this
    with open_reader(url) as reader:
        assert reader.queue() == [replace(before, state="paused")]
    assert len(raw(url, "SELECT id FROM studies")) == 1


@pytest.mark.parametrize("is_known", [False, True])
def test_of_two_who_submit_one_name_at_once_one_makes_the_entry(
    is_known: bool, postgres: Server, monkeypatch: pytest.MonkeyPatch
):
    """Any process may write a server's database: both have found no such entry when they write it."""
    answers, come, both = list[str](), set[int](), threading.Barrier(2)
    name = "insert" if is_known else "insert_study"
    write = getattr(storage_queue, name)

    def wait_and_write(*arguments: Any) -> Any:
        if threading.get_ident() not in come:
            come.add(threading.get_ident())
            both.wait(240)
        return write(*arguments)

    def ask() -> None:
        with open_store(url) as store:
            try:
                answers.append(queue_support.submit(store).state)
            except BaseException as error:
                answers.append(f"{type(error).__name__}: {error}")

    with postgres.database() as url:
        with open_store(url) as store:
            if is_known:
                store.create_study(STUDY)
        monkeypatch.setattr(storage_queue, name, wait_and_write)
        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers == ["waiting", "waiting"]
        assert len(raw(url, "SELECT study_id FROM submissions")) == len(raw(url, "SELECT id FROM studies")) == 1


def test_what_a_person_decided_stays_when_a_run_ends(url: str):
    submit(url)
    with open_store(url) as store:
        entry = store.queue.sound_entries()[0][0]
        store.queue.note_start(entry.study_id)
        store.queue.note_lanes(entry.study_id, lanes=5, share=2.5, reason="shares")
        queue_support.ask(store, "cancel", "one")
        store.queue.note_end(entry.study_id, "done")
        [entry], _ = store.queue.sound_entries()
    assert (entry.state, entry.lanes, entry.share) == ("cancelled", 0, 0.0)


def test_a_study_that_is_deleted_leaves_the_queue(url: str):
    from graft.launching.editing.administration import delete_study

    submit(url)
    delete_study(url, "one")
    with open_reader(url) as reader:
        assert reader.queue() == []


@pytest.mark.long
def test_a_database_has_one_service(url: str, elsewhere: Elsewhere):
    with open_store(url) as store:
        store.lock_service()
        answer = elsewhere(_serve, url)
        with open_reader(url) as reader:
            service = reader.service()
    assert "is being run by process" in answer or "is being written by process" in answer
    assert service
    assert "process" in service
    with open_reader(url) as reader:
        assert reader.service() is None
    assert elsewhere(_serve, url) == ""


def _serve(url: str) -> str:
    try:
        with open_store(url) as store:
            store.lock_service()
    except StudyError as error:
        return str(error)
    return ""


# ------------------------------------------------------------------------------ where one process alone may write


def test_a_study_that_is_run_again_did_not_crash_again(url: str, monkeypatch: pytest.MonkeyPatch):
    """As where its database went away: its trials would be quarantined for one crash."""
    causes: list[str | None] = []

    class Ended:
        def __init__(self, pool: object, entry: QueueEntry, crash: str | None) -> None:
            causes.append(crash)

        def start(self) -> None:
            pass

    monkeypatch.setattr("graft.serving.service.StudyRun", Ended)
    placement = Placement(executor="inline", device="cpu", workers=1, width=2)
    with open_store(url) as store:
        study = queue_support.submit(store, STUDY, Terms()).study_id
    with Service(url, placement=placement, checkpoints=Checkpoints(url="none", seconds=60)) as service:
        crashes = {study: "SIGSEGV"}
        for _ in range(2):
            service._begin_more(service.store.queue.sound_entries()[0], crashes)
            service._runs.clear()
    assert causes == ["SIGSEGV", None]


def test_a_study_whose_thread_cannot_start_waits(url: str, monkeypatch: pytest.MonkeyPatch):
    def fail(run: StudyRun) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(StudyRun, "start", fail)
    placement = Placement(executor="inline", device="cpu", workers=1, width=2)
    with open_store(url) as store:
        queue_support.submit(store, STUDY, Terms())
    with Service(url, placement=placement, checkpoints=Checkpoints(url="none", seconds=60)) as service:
        with pytest.raises(RuntimeError, match="can't start new thread"):
            service.run(until_empty=True)
        [[entry], _] = service.store.queue.sound_entries()
    assert entry.state == "waiting"


def test_open_entries_are_those_to_run_or_asked_for(url: str):
    with open_store(url) as store:
        ids = {
            name: queue_support.submit(store, replace(STUDY, name=name)).study_id for name in ("one", "two", "three")
        }
        store.queue.note_end(ids["one"], "done")
        store.queue.note_end(ids["two"], "failed")
        assert [entry.study for entry in store.queue.open_entries([])[0]] == ["three"]
        assert [entry.study for entry in store.queue.open_entries([ids["two"]])[0]] == ["three", "two"]


@pytest.mark.long
def test_a_request_reaches_the_process_that_writes(tmp_path: Path, elsewhere: Elsewhere):
    url = f"sqlite:///{tmp_path}/graft.db"
    with open_store(url) as store:
        asked = [
            StoreRequest.of_study(STUDY, TERMS),
            StoreRequest(action="pause", study="none"),
            StoreRequest.of_study(STUDY, replace(TERMS, owner="bo")),
        ]
        with taking(store):
            answers = [elsewhere(_request, url, request.to_json()) for request in asked]
    assert answers == [
        "waiting",
        "study 'none' is not in the queue; there are one",
        "study 'one' is in the queue already (waiting), of ann; submit another name",
    ]
    assert list(Path(f"{tmp_path}/graft.db.queue").iterdir()) == []


def _request(url: str, text: str) -> str:
    try:
        entry = request_queue(url, StoreRequest.from_json(text))
    except StudyError as error:
        return str(error)
    return entry.state if entry else "nobody"


@pytest.mark.long
def test_notes_tags_and_the_archive_are_written_by_the_service_of_a_file(tmp_path: Path, elsewhere: Elsewhere):
    url = f"sqlite:///{tmp_path}/graft.db"
    with open_store(url) as store:
        store.create_study(STUDY)
        refused = elsewhere(_annotate, url)  # by a launch, say, which takes no requests
        store.lock_service()
        with taking(store):
            assert elsewhere(_annotate, url) == ""
    assert re.search("graft.db is being written by process .*; stop it first", refused)
    with open_reader(url) as reader:
        row = reader.study("one").row
    assert (row["note"], row["tags"], bool(row["archived"])) == ("of a person", '["far","near"]', True)
    assert list(Path(f"{tmp_path}/graft.db.queue").iterdir()) == []


@pytest.mark.parametrize(
    "row",
    [
        {"tags": [0.5]},
        {"tags": ["a", None]},
        {},
        {"name": "x"},
        {"note": 3},
        {"note": "x", "trials": 1},
        {"archived": 1},
        {"numbers": ["3"], "note": "x"},
        {"numbers": [3], "tags": ["a"]},
        {"numbers": [3], "added": [4]},
    ],
)
def test_what_is_no_annotation_is_refused(row: dict[str, Any]):
    with pytest.raises(StudyError, match="a request to the queue cannot be read"):
        StoreRequest.from_json(StoreRequest(action="annotate", study="one", row=row).to_json())


def _annotate(url: str) -> str:
    from graft.launching.editing.administration import archive_study, tag_study, write_note

    try:
        write_note(url, "one", "of a person")
        tag_study(url, "one", ["near", "far"])
        archive_study(url, "one", archived=True)
    except StudyError as error:
        return str(error)
    return ""


def test_a_request_that_nobody_takes_waits_for_the_next_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    url = f"sqlite:///{tmp_path}/graft.db"
    monkeypatch.setattr("storage.requests._ANSWER_SECONDS", 0.2)
    with open_store(url):  # a launch, say
        assert request_queue(url, StoreRequest.of_study(STUDY, TERMS)) is None
    with open_store(url) as store:
        assert [entry.study for entry in store.take_requests()] == ["one"]
        assert store.take_requests() == []


def test_a_request_that_was_committed_and_not_removed_is_taken_once(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/graft.db"
    mailbox = Mailbox(tmp_path / "graft.db.queue")
    text = StoreRequest.of_study(STUDY, TERMS).to_json()
    with open_store(url) as store:
        for _ in range(2):  # the second one as a kill leaves it between the commit and the removal
            mailbox.post(text)
            store.take_requests()
    assert raw(url, "SELECT state FROM submissions") == [("waiting",)]


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "{}", json.dumps({"action": "submit"}), NO_ACTION, "[" * 100_000, "\udcff",
        with_value(5, "study"), with_value("other", "study"), with_value([], "id"),
        with_value(5, "terms", "owner"), with_value([], "terms", "weight"),
        with_value([], "row", "state"), with_value("x", "row", "seed"), with_value(5, "row", "stop_requested"),
        with_value(5, "bundles", 0, "sources", 0, "text"), with_value({}, "bundles", 0, "members", 0, "line"),
    ],
)  # fmt: skip
def test_what_is_no_request_is_refused_and_removed(tmp_path: Path, text: str):
    mailbox = Mailbox(tmp_path / "graft.db.queue")
    name = mailbox.post("")
    (tmp_path / "graft.db.queue" / f"{name}.json").write_text(text, errors="surrogateescape")
    with open_store(f"sqlite:///{tmp_path}/graft.db") as store:
        assert store.take_requests() == []
    assert mailbox.refusal(name).startswith("a request to the queue cannot be read: ")
    assert mailbox.names() == []


def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path):
    with pytest.raises(StorageError, match=r"the folder .* does not exist|cannot write"):
        submit(f"sqlite:///{tmp_path}/none/graft.db")
