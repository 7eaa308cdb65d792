"""Whatever reaches the service over HTTP, as messages and as commands: it lives, and what is good is trained."""

from __future__ import annotations

import copy
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import replace
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from cli.main import main
from graft.launching.checkpoints import Checkpoints
from graft.launching.placement import Placement
from graft.serving.service import Service
from graft.web.submissions import Submitted, read_submission
from storage import NewStudy, StoreRequest, Terms, open_reader, open_store
from storage.databases.mailbox import Mailbox
from tests.support.edge import POISON
from tests.support.queue import STUDY, TERMS, submit
from tests.support.web import client_of

SPACE = """
study: good
task: {name: set_complement, length: 2, vocabulary: 4}
model: {name: minimal, width: 4, key_width: 2, value_width: 4}
optimizer: {name: adamw, learning_rate: "10 ** uniform(-3, -1)"}
training: {steps: 2, batch: 2, validate_every: 2, validation_batch: 4, dtype: float64}
search: {sampler: random, trials: 2, objective: {minimize: tvd/raw}}
"""
VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 0.5, 2**31, 2**63, 10**30, float("inf"), float("nan"), "", "a\nb", "caf\udce9", "a\0b"),
    *("x" * 5000, "'; DROP TABLE studies; --", [], {}, [[]], {"a": {}}, "../x", "\x1b[2J", "one", "good"),
)
WORDS = (*map(str, VALUES), str(10**400), "--weight", "-1", "--", "a" * 300)
WRITING = (
    *[("POST", "/api/queue")] * 3,
    *(("POST", f"/api/queue/one/{action}") for action in ("pause", "resume", "cancel")),
    *[("PUT", "/api/queue/one/priority")] * 2,
    *(("POST", "/api/studies/one/stop"), ("POST", "/queue/one/pause")),
)
READING = (
    *(f"/api/{path}" for path in ("queue", "studies", "prometheus", "studies/one", "studies/one/trials")),
    *(f"/api/studies/one/{path}" for path in ("trials/0", "metrics", "frames/trials", "export/trials.csv", "figures")),
    *("/", "/queue", "/studies/one", "/studies/one/live", "/studies/one/trials/0", "/compare"),
)
QUERIES = ("limit", "cursor", "where", "sort", "trials", "after", "study", "form", "x")
BODY = {"space": "study: x", "study": "x", "priority": 1, "weight": 1.0, "max_lanes": 3, "owner": "ada", "extra": 1}
"""Refused for its last field before its space is looked at; a few lose that on the way, and are checked."""
COMMANDS = (
    *(("queue", "pause", "one"), ("queue", "resume", "one"), ("queue", "reprioritise", "one", "--priority", "3")),
    *(("queue", "cancel", "one"), ("token", "make", "ann", "--role", "read"), ("token", "revoke", "ann")),
    *(("note", "one", "x"), ("tag", "one", "x"), ("stop", "one"), ("queue",), ("token", "list")),
    ("submit", "space.yaml", "--max-lanes", "3", "--priority", "1", "--weight", "2", "--owner", "a", "--trials", "4"),
)
SEEDS = st.integers(0, 2**32 - 1)


@cache
def good_study() -> NewStudy:
    """Return a study that is trained in a moment."""
    return read_submission(Submitted(text=SPACE, name=None))


def mutate(draw: random.Random, value: Any) -> Any:
    """Return the value with something in it replaced, removed, doubled or added."""
    if isinstance(value, dict | list) and value and draw.random() < 0.85:
        mutant = copy.deepcopy(value)
        key = draw.choice([*mutant] if isinstance(mutant, dict) else [*range(len(mutant))])
        kind = draw.random()
        if kind < 0.8:
            mutant[key] = mutate(draw, mutant[key])
        elif kind < 0.9:
            del mutant[key]
        elif isinstance(mutant, dict):
            mutant[str(draw.choice(VALUES))[:10]] = mutant[key]
        else:
            mutant.append(mutant[key])
        return mutant
    return draw.choice(VALUES)


def call(arguments: Sequence[str]) -> tuple[int, str]:
    """Run `search` with these arguments; its exit status, and what it wrote to stderr."""
    status: Any = 0
    with pytest.MonkeyPatch.context() as patched, redirect_stdout(StringIO()), redirect_stderr(StringIO()) as error:
        patched.setattr(sys, "argv", ["search", *arguments])
        try:
            main()
        except SystemExit as leaving:
            status = leaving.code or 0
    return status, error.getvalue()


class Edge(RuleBasedStateMachine):
    """A database with a queue, and all who reach it while one service after the other takes in what they ask."""

    counts: ClassVar[Counter[str]] = Counter()
    """Counts of what was sent and of what was refused, in all runs."""

    @initialize()
    def open_doors(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="graft-fuzz-"))
        self.url = f"sqlite:///{self.folder}/graft.db"
        self.box = Mailbox(self.folder / "graft.db.queue")
        self.patches = pytest.MonkeyPatch()
        self.patches.setenv("SEARCH_STORAGE", self.url)
        self.patches.chdir(self.folder)
        (self.folder / "space.yaml").write_text(SPACE)
        self.patches.setattr("graft.serving.service.LOOK_SECONDS", 0.01)
        self.good = list[str]()
        with open_store(self.url) as store:
            submit(store)
        self.client = client_of(self.url, rate=1e9, burst=10**9)
        self.client.__enter__()

    @rule(seed=SEEDS)
    def send_messages(self, seed: int) -> None:
        """Send a dozen messages that are mutated, torn, doubled or no files at all."""
        draw = random.Random(seed)
        token = {"role": "read", "digest": "0", "seconds": None}
        study = draw.choice([STUDY, replace(good_study(), name="another")])
        kinds = [
            *[StoreRequest.of_study(study, TERMS)] * 2,
            StoreRequest(action="annotate", study="one", row={"note": "x", "tags": ["a"]}),
            StoreRequest(action="make_token", study="t", row=token),
            StoreRequest(action="reprioritise", study="one", terms=Terms(priority=1)),
        ]
        for _ in range(12):
            text = json.dumps(mutate(draw, json.loads(draw.choice(kinds).to_json())))
            if draw.random() < 0.2:
                text = text[: draw.randrange(len(text))]
            for _ in range(1 + (draw.random() < 0.1)):
                name = self.box.post(text)
            if draw.random() < 0.05:
                path = self.folder / "graft.db.queue" / f"{name}.json"
                path.unlink()
                POISON[draw.choice([*POISON])](path)
        self.counts["messages"] += 12

    @rule(seed=SEEDS)
    def ask(self, seed: int) -> None:
        """Make a dozen requests over HTTP; what cannot be done is refused with a line."""
        draw = random.Random(seed)
        for _ in range(12):
            content, query = None, dict[str, str]()
            if draw.random() < 0.7:
                method, path = draw.choice(WRITING)
                body = BODY if path == "/api/queue" else {"priority": 1}
                content = json.dumps(mutate(draw, body)).encode(errors="surrogatepass")
            else:
                method, path = "GET", draw.choice(READING)
                query = {draw.choice(QUERIES): str(draw.choice(VALUES)).encode("ascii", "ignore").decode()}
            path += draw.choice([*[""] * 6, "/", "%00", "/" + "9" * 40])
            kind = {"Content-Type": "application/json"} if draw.random() < 0.95 else {}
            answer = self.client.request(method, path, content=content, params=query, headers=kind)
            assert answer.status_code < 500, (method, path, query, content, answer.text)
            if answer.status_code >= 400:
                assert not path.startswith("/api") or "\n" not in answer.json()["error"]
                self.counts["requests refused"] += 1
        assert self.client.get("/api/queue").status_code == 200
        self.counts["requests"] += 12

    @rule(seed=SEEDS)
    def type_commands(self, seed: int) -> None:
        """Call a few commands with words replaced, doubled or left out; each ends well or in a line."""
        draw = random.Random(seed)
        for _ in range(4):
            arguments = [*draw.choice(COMMANDS)]
            for _ in range(draw.randint(1, 2)):
                index = draw.randrange(1, len(arguments)) if len(arguments) > 1 else 1
                arguments[index : index + draw.randint(0, 1)] = draw.sample(WORDS, draw.randint(0, 1))
            status, error = call(arguments)
            assert status in (0, 2), (arguments, status, error)
            assert "Traceback" not in error, (arguments, error)
            self.counts["commands refused"] += status == 2
        self.counts["commands"] += 4

    @rule(seed=SEEDS)
    def submit_good(self, seed: int) -> None:
        """Send a study that can be trained, by a message or by HTTP."""
        name = f"good-{len(self.good)}"
        if seed % 8:
            self.box.post(StoreRequest.of_study(replace(good_study(), name=name), TERMS).to_json())
        else:
            answer = self.client.post("/api/queue", json={"space": SPACE, "study": name, "owner": "ada"})
            assert answer.status_code == 200, answer.text
        self.good.append(name)

    @rule()
    def take(self) -> None:
        """Let the next process take in all that was sent: it lives, and nothing is left over."""
        with open_store(self.url) as store:
            store.take_requests()
            assert not store.queue.sound_entries()[1]  # whatever was written can be read
        assert self.box.names() == []

    def serve(self) -> None:
        """Run a service until nothing is left in the queue: what is good ends well, the rest in a line."""
        placement = Placement(executor="inline", device="cpu", workers=1, width=2)
        with Service(self.url, placement=placement, checkpoints=Checkpoints(url="none", seconds=60)) as service:
            service.run(until_empty=True)
        with open_reader(self.url) as reader:
            entries = {entry.study: entry for entry in reader.queue()}
        assert {entries[name].state for name in self.good} <= {"done"}
        assert all(entry.reason for entry in entries.values() if entry.state == "failed")
        self.counts["trained"] += len(self.good)
        self.counts["failed"] += sum(entry.state == "failed" for entry in entries.values())

    def teardown(self) -> None:
        if not hasattr(self, "client"):
            return
        try:
            self.take()
            self.counts["messages refused"] += len(self.box.refused())
            self.serve()
        finally:
            self.client.__exit__(None, None, None)
            self.patches.undo()
            with suppress(OSError):
                shutil.rmtree(self.folder)


def fuzz(number: int, runs: int, steps: int) -> None:
    """Run the machine by so many random sequences of steps."""
    run_state_machine_as_test(
        seed(number)(Edge),
        settings=settings(
            max_examples=runs,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            derandomize=False,
            suppress_health_check=[*HealthCheck],
        ),
    )


@pytest.mark.long
@pytest.mark.fast
def test_whatever_is_sent_the_service_lives_and_trains_what_is_good() -> None:
    Edge.counts.clear()
    machine = Edge()
    machine.open_doors()
    try:
        for number in range(6):
            machine.send_messages(number)
            machine.ask(number)
            machine.submit_good(number + 1)
            machine.type_commands(number)
    finally:
        machine.teardown()
    assert all(Edge.counts[f"{kind} refused"] > 10 for kind in ("messages", "requests", "commands")), Edge.counts
    assert Edge.counts["trained"] == 6


@pytest.mark.slow
def test_five_minutes_of_it_and_ten_thousand_of_each() -> None:
    """The clock says only how long it is tried."""
    Edge.counts.clear()
    begun, number = time.monotonic(), 1
    while time.monotonic() < begun + 300 or min(Edge.counts[kind] for kind in ("messages", "requests")) < 10_000:
        fuzz(number, runs=10, steps=50)
        number += 1
        print(f"{time.monotonic() - begun:.0f} s, {dict(Edge.counts)}")
    assert Edge.counts["commands"] > 3_000
    assert all(Edge.counts[f"{kind} refused"] > 1_000 for kind in ("messages", "requests", "commands")), Edge.counts
