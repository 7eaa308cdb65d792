"""The simulated study in a service: people ask for this and that meanwhile, by HTTP and by messages, under a clock that
is set back and forth. Messages are torn, doubled, put into another order and poisoned; the service dies as it reads.

A model says what the queue and the tokens must be after each message. No person changes what is another's, nothing that
was asked is lost or done twice, and the study ends as if nobody had asked for anything (`test_simulation`).
"""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule
from sqlalchemy import Connection

from graft.web.app import create_app
from graft.web.security.access import _digest
from graft.web.settings import Quotas, Settings
from graft.web.submissions import Submitted
from spaces.errors import MessageError
from storage import Store, StoreRequest, Terms, open_reader
from storage.databases.mailbox import Mailbox
from storage.databases.sqlite_file import SqliteFile
from storage.queue_entries import OPEN
from storage.store_request import REVOCATION
from tests.support.edge import POISON
from tests.support.queue import STUDY
from tests.support.search_spaces import PLAIN
from tests.support.simulation import MANY, SqliteDisk, SqliteSimulation

PEOPLE = {"ada": "submit", "ben": "submit", "eve": "read", "root": "admin"}
"""Whose tokens are there from the beginning, and their roles."""
NAMES = ("x", "y", "z")
MOST_OPEN = 2
LATER = ("cy", "dan")
"""Whose tokens are made later."""
ACTIONS = ("pause", "resume", "cancel", "reprioritise")


def token_of(name: str) -> str:
    return f"graft_{name}"


class DeathError(BaseException):
    """The service dies: no error that it could catch."""


class EdgeDisk(SqliteDisk):
    """A database whose clock is set back and forth, while the simulation's own runs on."""

    skew = 0.0

    @property
    def clock(self) -> float:
        return self.now + self.skew

    @property
    def url(self) -> str:
        return self._url

    @property
    def store(self) -> Store:
        """The writing end that the present process has."""
        assert self._store
        return self._store


@dataclass
class Entry:
    """A study in the queue."""

    owner: str
    state: str
    priority: int
    request: str


@dataclass
class Token:
    """A token, in the seconds of the database's clock."""

    role: str
    expires: float | None = None
    is_revoked: bool = False

    def opens(self, clock: float) -> bool:
        return not self.is_revoked and (self.expires is None or self.expires > clock)


@dataclass
class Model:
    """What the queue and the tokens must be."""

    entries: dict[str, Entry] = field(default_factory=dict[str, Entry])
    tokens: dict[str, Token] = field(default_factory=dict[str, Token])

    def apply(self, asked: StoreRequest, clock: float) -> None:
        """Do what a message asks, or nothing if it may not or cannot be done."""
        if asked.action == "make_token":
            seconds = asked.row["seconds"]
            made = Token(asked.row["role"], None if seconds is None else clock + seconds)
            self.tokens.setdefault(asked.study, made)
        elif asked.action == "revoke_token":
            if asked.study in self.tokens:
                self.tokens[asked.study].is_revoked = True
        elif self._may(asked, clock):
            self._change(asked)

    def _may(self, asked: StoreRequest, clock: float) -> bool:
        if asked.by is None:
            return True
        token, entry = self.tokens.get(asked.by), self.entries.get(asked.study)
        return bool(token and token.opens(clock) and token.role != "read") and (not entry or entry.owner == asked.by)

    def _has_room(self, asked: StoreRequest, owner: str) -> bool:
        mine = [entry for entry in self.entries.values() if entry.owner == owner and entry.state in OPEN]
        return asked.by is None or len(mine) < MOST_OPEN

    def _change(self, asked: StoreRequest) -> None:
        entry = self.entries.get(asked.study)
        state = entry.state if entry else None
        match asked.action:
            case "submit":
                is_again = entry and entry.request == asked.id
                if state not in OPEN and not is_again and self._has_room(asked, asked.terms.owner):
                    self.entries[asked.study] = Entry(asked.terms.owner, "waiting", asked.terms.priority, asked.id)
            case "pause" if entry and state in OPEN:
                entry.state = "paused"
            case "cancel" if entry and (state in OPEN or state == "cancelled"):
                entry.state = "cancelled"
            case "reprioritise" if entry and state in OPEN:
                entry.priority = asked.terms.priority
            case "resume" if entry and (
                state == "paused" or (state == "cancelled" and self._has_room(asked, entry.owner))
            ):
                entry.state = "waiting"
            case _:
                pass


class NoChecker:
    """A check of a space that takes no time: the space is its study's name."""

    def ask(self, question: Callable[..., Any], values: tuple[Submitted], person: str) -> Any:
        [submitted] = values
        return json.loads(submission(submitted.text).to_json())


def submission(name: str) -> StoreRequest:
    return StoreRequest.of_study(replace(STUDY, name=name, bundles=()), Terms())


class EdgeSimulation(SqliteSimulation):
    """A study in a service that people reach."""

    make_disk = EdgeDisk
    disk: EdgeDisk

    def begin(self) -> None:
        if not hasattr(self, "model"):
            self.open_doors()
        super().begin()

    def open_doors(self) -> None:
        """Make the tokens of the people, and the server that they reach."""
        self.model, self.patches = Model(), pytest.MonkeyPatch()
        connect = SqliteFile.reader

        def reader(file: SqliteFile) -> sqlite3.Connection:
            connection = connect(file)
            connection.create_function("strftime", -1, self.disk.read_clock)
            return connection

        self.patches.setattr(SqliteFile, "reader", reader)
        self.patches.setattr("storage.requests._ANSWER_SECONDS", 0.0)  # another process writes, and answers later
        self.patches.setattr("storage.databases.file_lock._LOCK_SECONDS", 0.0)
        self.disk.take_over()
        self.box = Mailbox(Path(f"{self.disk.url.removeprefix('sqlite:///')}.queue"))
        for name, role in PEOPLE.items():
            self.box.post(self.token_request(name, role, None).to_json())
        self.take(death=0, is_done=False)
        quotas = Quotas(studies=MOST_OPEN, priority=100)
        guard = create_app(Settings(database=self.disk.url, needs_token=True, quotas=quotas, rate=1e9, burst=10**9))
        guard._app.state.checker = NoChecker()  # pyright: ignore - the one door that is not simulated
        self.client = TestClient(guard, base_url="http://127.0.0.1:8765")

    def token_request(self, name: str, role: str, seconds: float | None) -> StoreRequest:
        row = {"role": role, "digest": _digest(token_of(name)), "seconds": seconds}
        return StoreRequest(action="make_token", study=name, row=row)

    # -------------------------------------------------------------------------------------------------- what is asked

    @rule(
        who=st.sampled_from([*PEOPLE, *LATER]),
        action=st.sampled_from(["submit", *ACTIONS]),
        study=st.sampled_from(NAMES),
        priority=st.integers(-5, 5),
        tries=st.sampled_from([1, 1, 1, 2, 3]),
    )
    def ask_over_http(self, who: str, action: str, study: str, priority: int, tries: int) -> None:
        """Somebody asks, and asks again as if the answer had been lost."""
        method, path, body = "POST", f"/api/queue/{study}/{action}", dict[str, Any]()
        if action == "submit":
            path, body = "/api/queue", {"space": study, "study": study, "priority": priority}
        elif action == "reprioritise":
            method, path, body = "PUT", f"/api/queue/{study}/priority", {"priority": priority}
        for _ in range(tries):
            waiting = len(self.box.names())
            answer = self.client.request(method, path, json=body, headers={"Authorization": f"Bearer {token_of(who)}"})
            assert answer.status_code == self.status_of(who, study), (answer.text, who, action, study)
            assert len(self.box.names()) - waiting == (answer.status_code == 202)

    def status_of(self, who: str, study: str) -> int:
        """Return what is answered now: the entry and the token are as they were when messages were last taken in."""
        token, entry = self.model.tokens.get(who), self.model.entries.get(study)
        if not token or not token.opens(self.disk.clock) or who in self.revoked():
            return 401
        if token.role == "read" or (token.role == "submit" and entry and entry.owner != who):
            return 403
        return 202

    @rule(action=st.sampled_from(["submit", *ACTIONS]), study=st.sampled_from(NAMES), priority=st.integers(-5, 5))
    def ask_on_the_machine(self, action: Any, study: str, priority: int) -> None:
        """Who may write the file may change all."""
        asked = submission(study) if action == "submit" else StoreRequest(action=action, study=study)
        self.box.post(replace(asked, terms=Terms(owner="local", priority=priority)).to_json())

    @rule(name=st.sampled_from(LATER), role=st.sampled_from(["read", "submit"]), seconds=st.sampled_from([None, 100.0]))
    def make_token(self, name: str, role: str, seconds: float | None) -> None:
        self.box.post(self.token_request(name, role, seconds).to_json())

    @rule(name=st.sampled_from(["ben", *LATER]))
    def revoke_token(self, name: str) -> None:
        self.box.post(StoreRequest(action="revoke_token", study=name).to_json(), REVOCATION)

    # -------------------------------------------------------------------------------------- what happens to messages

    @rule(kind=st.sampled_from([*POISON]))
    def poison_message(self, kind: str) -> None:
        name = self.box.post("")
        path = Path(f"{self.disk.url.removeprefix('sqlite:///')}.queue", f"{name}.json")
        path.unlink()
        POISON[kind](path)

    @rule(which=st.integers(0, 99), how=st.sampled_from(["torn", "doubled", "late"]))
    def garble(self, which: int, how: str) -> None:
        """Send a message again: half of it, all of it, or after those that were sent later."""
        names = [name for name in self.box.names() if not name.endswith(REVOCATION)]
        if not names:
            return
        name = names[which % len(names)]
        with suppress(MessageError, OSError):
            text = self.box.read(name)
            self.box.post(text[: len(text) * which // 100] if how == "torn" else text)
            if how == "late":
                self.box.settle(name)

    @rule(death=st.sampled_from([0, 0, 1, 2, 3, 5]), is_done=st.booleans())
    def take(self, death: int, is_done: bool) -> None:
        """Let the service take messages in; it may die at a transaction or after it, and the next one goes on."""
        names = self.box.names()
        asked = {name: self.read_message(name) for name in names}
        try:
            with dying(self.disk.store, death, is_done):
                self.disk.store.take_requests()
        except DeathError:
            self.apply(asked, [name for name in names if name not in self.box.names()])
            self.crash()
            self.take(0, False)
        else:
            self.apply(asked, names)
            assert self.box.names() == []
            self.check()

    def read_message(self, name: str) -> StoreRequest | None:
        with suppress(MessageError, OSError):
            return StoreRequest.from_json(self.box.read(name))
        return None

    def apply(self, asked: Mapping[str, StoreRequest | None], names: Sequence[str]) -> None:
        for name in names:
            if request := asked[name]:
                self.model.apply(request, self.disk.clock)

    @rule(seconds=st.sampled_from([-86400, -300, -60, 60, 300]))
    def set_clock(self, seconds: int) -> None:
        """Set the database's clock back or forth."""
        self.disk.skew += seconds

    @rule(which=st.integers(0, 99))
    def end_entry(self, which: int) -> None:
        """End a study that waited, as the service does."""
        waiting = [name for name, entry in self.model.entries.items() if entry.state == "waiting"]
        if waiting:
            name = waiting[which % len(waiting)]
            ids = {entry.study: entry.study_id for entry in self.disk.store.queue.sound_entries()[0]}
            self.disk.store.queue.note_end(ids[name], "done")
            self.model.entries[name].state = "done"

    @rule(seed=st.integers(0, 2**32 - 1))
    def do_much(self, seed: int) -> None:
        """All of this in a row: hypothesis makes few steps of each kind."""
        chance = random.Random(seed)
        for _ in range(30):
            study, action = chance.choice(NAMES), chance.choice(["submit", *ACTIONS])
            later, priority = chance.choice(LATER), chance.randint(-5, 5)
            match chance.choices(range(9), [6, 2, 2, 2, 1, 1, 1, 1, 1])[0]:
                case 0:
                    who = chance.choice([*PEOPLE, *LATER])
                    self.ask_over_http(who, action, study, priority, chance.choice([1, 1, 2]))
                case 1:
                    self.ask_on_the_machine(action, study, priority)
                case 2:
                    self.garble(chance.randrange(100), chance.choice(["torn", "doubled", "late"]))
                case 3:
                    self.take(chance.choice([0, 1, 2, 3, 5]), chance.random() < 0.5)
                case 4:
                    self.make_token(later, chance.choice(["read", "submit"]), chance.choice([None, 100.0]))
                case 5:
                    self.revoke_token(later)
                case 6:
                    self.poison_message(chance.choice([*POISON]))
                case 7:
                    self.end_entry(chance.randrange(100))
                case _:
                    self.set_clock(chance.choice([-300, -60, 60, 300]))

    # ------------------------------------------------------------------------------------------------ what must hold

    def revoked(self) -> set[str]:
        """Return the tokens whose revocation waits to be taken in."""
        messages = [self.read_message(name) for name in self.box.names(REVOCATION)]
        return {message.study for message in messages if message and message.action == "revoke_token"}

    @invariant()
    def a_token_opens_as_long_as_it_may(self) -> None:
        if hasattr(self, "client"):
            with open_reader(self.disk.url) as reader:
                for name, token in self.model.tokens.items():
                    opens = token.opens(self.disk.clock) and name not in self.revoked()
                    assert (reader.find_token(_digest(token_of(name))) is not None) == opens, name

    def check(self) -> None:
        """Compare the database with the model, once all messages were taken in."""
        entries = {
            entry.study: (entry.owner, entry.state, entry.priority)
            for entry in self.disk.store.queue.sound_entries()[0]
        }
        assert entries == {
            name: (entry.owner, entry.state, entry.priority) for name, entry in self.model.entries.items()
        }

    def audit(self) -> None:
        self.take(0, False)
        super().audit()

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            if hasattr(self, "patches"):
                self.patches.undo()


@contextmanager
def dying(store: Store, death: int, is_done: bool) -> Generator[None]:
    """Die at the n-th transaction from now, before or after its commit; 0: not."""
    session, left = store._session, death  # pyright: ignore[reportPrivateUsage]
    transact = session.transact

    def transact_or_die(act: Callable[[Connection], Any]) -> Any:
        nonlocal left
        left -= 1
        if left == 0 and not is_done:
            raise DeathError
        answer = transact(act)
        if left == 0:
            raise DeathError
        return answer

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(session, "transact", transact_or_die)
        yield


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_whatever_people_ask_the_queue_is_as_the_model_says_and_the_study_ends(seed: int) -> None:
    simulation = EdgeSimulation()
    simulation.launch(sampler="random", policy="[]", body=PLAIN, group=1, trials=6, poison=set())
    try:
        for step in range(3):
            simulation.do_much(3 * seed + step)
            simulation.a_token_opens_as_long_as_it_may()
        assert len(simulation.model.entries) > 1
    finally:
        simulation.teardown()


@pytest.mark.slow
class TestEdgeSimulations(EdgeSimulation.TestCase):
    settings = settings(MANY, max_examples=100)
