"""What befalls the program itself while it really trains: signals, files that go, full disks, hostile files, clocks.

The toy farm is hit more often and audited number by number; here the command line, its packs and its checkpoints are
real. A launch is started, hit once, and must end as it is said to; in the end the study must be as if nothing had been.
"""

from __future__ import annotations

import json
import os
import random
import re
import secrets
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import psutil
import pytest

from spaces.errors import GraftError
from storage import open_reader
from tests.support.databases import raw
from tests.support.launches import SPACE, Launched, Metrics, kill, metrics, running, search

STUDY = "tiny"
STEPS_A_FAULT = 3000
"""Of each trial: a launch trains some of them before it is hit, and the last hit must find the study unfinished."""
PATIENCE = 120.0
"""Seconds that a launch may take to end when it was told to."""
FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)
"""libfaketime, where it is installed: the clock of a launch jumps by hours against the last one's."""
FULL_DISK = """
import workers.engine.checkpoints as checkpoints
put = checkpoints._Folder.put
def fill(folder, name, data):
    if name.split("-")[-2][-1] in "02468":
        (folder._folder / (name + ".part")).write_bytes(data[: len(data) // 2])
        (folder._folder / (name + ".part")).unlink()
        raise OSError(28, "No space left on device")
    put(folder, name, data)
checkpoints._Folder.put = fill
"""
"""Every second checkpoint finds the disk full when half of it is written."""
CHANGED_CODE = """
import workers.engine.fingerprints as fingerprints
fingerprints.NUMERICS += 1
"""
SERVER_IS_FULL = (
    """CREATE FUNCTION find_full() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = 'disk_full'; END $$""",
    """CREATE CONSTRAINT TRIGGER is_full AFTER INSERT ON metrics DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION find_full()""",
)
"""A server that has no room when it comes to commit."""


class UnexpectedEndError(Exception):
    """A launch ended as it should not."""


@dataclass(kw_only=True)
class Program:
    """A study that the program trains, and how often what has happened to it."""

    url: str
    folder: Path
    """Of its checkpoints, and of the launches."""
    chance: random.Random
    faults: int
    """That are to happen to it."""
    fired: Counter[str] = field(default_factory=Counter[str])
    wrong: list[str] = field(default_factory=list[str])
    claims: int = 0
    """Of the study so far."""

    @cached_property
    def launch(self) -> Sequence[str]:
        """The arguments of each launch."""
        return (*self._undisturbed_launch, "--storage", self.url, "--checkpoints", str(self.folder / "checkpoints"))

    @property
    def _undisturbed_launch(self) -> Sequence[str]:
        sizes = ("--steps", str(STEPS_A_FAULT * self.faults), "--set", "training.validate_every=1500")
        return ("launch", SPACE, *sizes, "--workers", "2", "--pack", "8")

    @property
    def file(self) -> Path | None:
        """The database, if it is a file."""
        return Path(self.url.removeprefix("sqlite:///")) if self.url.startswith("sqlite") else None

    def hit(self) -> None:
        """Let the faults happen, of each kind about as many."""
        kinds = self.kinds()
        order = [*kinds]
        for index in range(self.faults):
            if index % len(kinds) == 0:
                self.chance.shuffle(order)
            kind = order[index % len(kinds)]
            if self._state() == "finished":
                self.wrong.append(f"the study was finished after {index} of {self.faults} faults; give it more steps")
                return
            try:
                kinds[kind]()
                self.fired[kind] += 1
            except UnexpectedEndError as error:
                self.wrong.append(f"{kind}: {error}")

    def kinds(self) -> Mapping[str, Callable[[], None]]:
        """Name of a fault -> what makes it happen. A new kind is one line here, and a method."""
        kinds: dict[str, Callable[[], None]] = {
            "hang-up": lambda: self._signalled([signal.SIGHUP, signal.SIGHUP], "stopped with everything kept"),
            "termination": lambda: self._signalled([signal.SIGTERM], "stopped with everything kept"),
            "second Ctrl-C": lambda: self._signalled([signal.SIGINT, signal.SIGINT], "(left at once|stopped with ev)"),
            "early kill": self._killed,
            "second launch": self._launched_twice,
            "disk full in a checkpoint": lambda: self._killed(before=FULL_DISK),
            "disk full in a commit": self._full,
            "hostile checkpoints": self._poisoned,
            "changed code": self._changed,
        }
        if self.file:
            kinds |= {"file deleted": self._deleted, "file replaced": self._replaced, "alias": self._launched_by_alias}
        if FAKETIME:
            kinds["clock of the launch"] = self._jumped
        return kinds

    def finish(self) -> None:
        """Let the study end in peace, and compare it with one that nothing happened to."""
        search(self.folder, *self.launch, seconds=1800)
        states = raw(self.url, "SELECT DISTINCT state FROM trials")
        if states != [("finished",)]:
            self.wrong.append(f"trials are {states}")
        if metrics(self.url) != pytest.approx(self._undisturbed(), rel=1e-9, abs=1e-9):
            self.wrong.append("the metrics are not those of an undisturbed run")

    def _undisturbed(self) -> Metrics:
        folder = self.folder / "peace"
        folder.mkdir()
        search(folder, *self._undisturbed_launch, seconds=1800)
        return metrics(f"sqlite:///{folder}/graft.db")

    # ---------------------------------------------------------------------------------------------------- the faults

    def _signalled(self, signals: Sequence[int], words: str) -> None:
        with running(self.folder, *self.launch) as process:
            self._train(process)
            for number in signals:
                process.send_signal(number)
                time.sleep(self.chance.uniform(0, 0.5))
            self._expect(process, 130, words)

    def _killed(self, before: str = "pass") -> None:
        with running(self.folder, *self.launch, before=before) as process:
            self._train(process)
            kill(process)

    def _launched_twice(self, url: str | None = None) -> None:
        other = self.folder / "other"
        other.mkdir(exist_ok=True)
        with running(self.folder, *self.launch) as process:
            self._train(process)
            second = [url if url and word == self.url else word for word in self.launch]
            with running(other, *second) as refused:
                self._expect(refused, 2, r"error: .* is being (run|written) by .*; stop it first")
            if process.poll() is not None:
                raise UnexpectedEndError(f"the first launch ended with status {process.poll()}")
            kill(process)

    def _launched_by_alias(self) -> None:
        assert self.file
        alias = self.file.with_name(f"alias-{secrets.token_hex(4)}.db")
        if self.chance.random() < 0.5:
            alias.symlink_to(self.file)
            self._launched_twice(f"sqlite:///{alias}")
        else:
            Path(f"{self.file}.lock").unlink(missing_ok=True)
            self._launched_twice()
        alias.unlink(missing_ok=True)

    def _deleted(self) -> None:
        assert self.file
        self._lost(self.file.unlink, "was deleted under this run")

    def _replaced(self) -> None:
        assert self.file
        other = self.file.with_name("other.db")
        with sqlite3.connect(other) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS theirs (number)")
        connection.close()
        self._lost(lambda: os.replace(other, str(self.file)), "was replaced under this run")

    def _lost(self, harm: Callable[[], None], words: str) -> None:
        with running(self.folder, *self.launch) as process:
            self._train(process)
            harm()
            line = self._expect(process, 2, f"error: .*{words}, which stops; all that it held is in ")
        moved = re.search(r"`mv (\S+) (\S+)` puts it back", line)
        if not moved:
            raise UnexpectedEndError(f"no way back in {line!r}")
        os.replace(moved[1], moved[2])

    def _full(self) -> None:
        """Let a commit find no room: our own process may write no further, or the server says so as it commits."""
        with running(self.folder, *self.launch) as process:
            self._train(process)
            if self.file:
                limits = psutil.Process(process.pid)
                limits.rlimit(psutil.RLIMIT_FSIZE, (20_000, limits.rlimit(psutil.RLIMIT_FSIZE)[1]))
                self._expect(process, 2, "error: .*the disk refuses")
                return
            for statement in SERVER_IS_FULL:
                raw(self.url, statement)
            try:
                self._expect(process, 2, "error: .*No space left on device")
            finally:
                raw(self.url, "DROP FUNCTION find_full CASCADE")

    def _poisoned(self) -> None:
        """Spoil some of the checkpoints, which the database goes on to call good."""
        import hashlib

        files = sorted((self.folder / "checkpoints").rglob("*.safetensors"))
        for file in files:
            if self.chance.random() < 0.5:
                whole = file.read_bytes()
                hostile = self.chance.choice(HOSTILE)(whole)
                file.write_bytes(hostile)
                digest = hashlib.sha256(hostile).hexdigest()
                raw(self.url, f"UPDATE checkpoints SET sha256 = '{digest}' WHERE path LIKE '%{file.name}'")
        self._killed()

    def _changed(self) -> None:
        """Another numerics is refused until it is accepted, and then nothing has happened."""
        if not self.claims:
            self._killed()
        with running(self.folder, *self.launch, before=CHANGED_CODE) as process:
            self._expect(process, 2, "error: study 'tiny' would not train as before: ")

    def _jumped(self) -> None:
        hours = self.chance.choice(["-26h", "+3h", "+400d"])
        variables = {"LD_PRELOAD": str(FAKETIME), "FAKETIME": hours, "DONT_FAKE_MONOTONIC": "1"}
        command = f"import os, sys; os.environ.update({variables!r}); os.execv(sys.executable, [sys.executable, '-m',"
        with running(self.folder, *self.launch, before=f"{command} 'graft_search', *sys.argv[1:]])") as process:
            self._train(process)
            kill(process)

    # ----------------------------------------------------------------------------------------------------- the moment

    def _train(self, process: Launched) -> None:
        """Wait until the launch has claimed the study, and up to a few seconds more."""
        deadline = time.monotonic() + PATIENCE
        while self._claims() <= self.claims and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        if process.poll() is not None:
            raise UnexpectedEndError(f"a launch ended with {process.communicate()[1].splitlines()[-1:]}")
        self.claims = self._claims()
        time.sleep(self.chance.uniform(0.2, 4.0))

    def _expect(self, process: Launched, status: int, words: str) -> str:
        """Return the last line of a launch that ends with this status and these words."""
        _, said = process.communicate(PATIENCE)
        lines = said.splitlines()
        if process.returncode != status or not re.match(words, lines[-1]) or "Traceback" in said:
            raise UnexpectedEndError(f"status {process.returncode}, {lines[-1:]}")
        return lines[-1]

    def _claims(self) -> int:
        with suppress(GraftError), open_reader(self.url) as reader:
            return int(reader.studies()["fence"].sum())
        return 0

    def _state(self) -> str:
        with suppress(GraftError), open_reader(self.url) as reader:
            return reader.study(STUDY).row["state"]
        return "none"


def _claim_a_huge_header(whole: bytes) -> bytes:
    return (2**62).to_bytes(8, "little") + whole[8:]


def _nest_deeply(whole: bytes) -> bytes:
    text = b"[" * 100_000
    return len(text).to_bytes(8, "little") + text


def _lie_about_shapes(whole: bytes) -> bytes:
    size = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + size])
    for name, tensor in header.items():
        if name != "__metadata__":
            tensor["shape"] = [10**9, *tensor["shape"][1:]]
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + whole[8 + size :]


HOSTILE: Sequence[Callable[[bytes], bytes]] = (
    lambda whole: b"",
    lambda whole: whole[: len(whole) // 2],
    lambda whole: b"\x80\x04cos\nsystem\n(S'touch /tmp/graft-owned'\ntR.",  # a pickle that would run a command
    _claim_a_huge_header,
    _nest_deeply,
    _lie_about_shapes,
)
"""What a checkpoint may be in place of what was written."""
