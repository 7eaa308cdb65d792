"""Faults of a service from outside: a disk that is full, and readers in loops beside its training."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.support.databases import raw
from tests.support.launches import SPACE, Launched, Numbers, ended, finished, numbers, running, search, wait_until
from tests.support.serve import SERVE, UNHURRIED, queue, submit_both

READERS = 6
HALF_WAY = """
import os, time
from search.steering.controller import Controller
exchange = Controller.exchange

def wait_and_exchange(self, *arguments):
    while self.progress().ended >= 24 and not os.path.exists("go"):
        time.sleep(0.05)
    return exchange(self, *arguments)

Controller.exchange = wait_and_exchange
"""
"""Run before a service, whose studies then stop half-way until there is a file `go`."""
PATHS = (
    *("", "studies/a", "studies/b/live", "queue", "studies/a/trials/1", "api/studies", "api/queue", "metrics"),
    *("api/studies/a/trials?limit=100", "api/studies/b/metrics?trials=10", "api/studies/a/export/trials.csv"),
)


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Numbers:
    """Return what the studies leave on a service that nothing befalls."""
    folder = tmp_path_factory.mktemp("undisturbed")
    url = f"sqlite:///{folder}/graft.db"
    submit_both(folder, url)
    search(folder, *SERVE, "--storage", url, "--until-empty")
    return numbers(url)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a disk of 32 megabytes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or not shutil.which("mount") or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


def fill(disk: Path) -> Path:
    """Leave no byte free; the file to be removed for room."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass
    return ballast


@pytest.mark.long
def test_a_full_disk_ends_a_service_in_one_line_and_room_lets_the_next_one_go_on(
    tmp_path: Path, small_disk: Path, launched: Numbers
) -> None:
    """Database, requests and checkpoints are on it. What is asked meanwhile is refused in a line; nothing is lost."""
    url = f"sqlite:///{small_disk}/graft.db"
    submit_both(tmp_path, url)
    service = (*SERVE, "--storage", url, "--checkpoints", str(small_disk / "checkpoints"), "--checkpoint-every", "1")
    with running(tmp_path, *service, before=UNHURRIED) as process:
        wait_until(lambda: finished(url, "a") > 0)
        ballast = fill(small_disk)
        lines = ended(process, 2)
    assert re.match(
        r"error: .*(no space left on the disk|the disk refuses).*what was committed before stays", lines[-1]
    ), lines
    kept = numbers(url)
    said = search(tmp_path, "submit", SPACE, "--name", "c", "--storage", url, status=2)
    assert "Traceback" not in "".join(said)
    assert kept.items() <= launched.items()
    ballast.unlink()
    search(tmp_path, *service, "--until-empty")
    assert {(name, entry.state) for name, entry in queue(url).items()} == {("a", "done"), ("b", "done")}
    assert numbers(url) == launched


def read_in_loops(address: str, first: int, is_over: threading.Event, seen: Counter[int]) -> None:
    """Ask for one page after the other, from the `first` on, until `is_over`, and count the answers by their status."""
    for path in cycle([*PATHS[first:], *PATHS[:first]]):
        if is_over.is_set():
            return
        try:
            with urlopen(f"{address}{path}", timeout=240) as answer:
                answer.read()
                seen[answer.status] += 1
        except HTTPError as error:
            seen[error.code] += 1
        except OSError:
            seen[0] += not is_over.is_set()


def stop_service(process: Launched) -> None:
    process.terminate()
    assert process.wait(240) == 130


@pytest.mark.long
def test_six_readers_in_loops_change_nothing_of_what_is_trained(tmp_path: Path, launched: Numbers) -> None:
    url = f"sqlite:///{tmp_path}/graft.db"
    submit_both(tmp_path, url)
    seen, is_over = Counter[int](), threading.Event()
    with running(tmp_path, *SERVE, "--storage", url, "--http", "127.0.0.1:0", before=HALF_WAY) as process:
        address = next(line for line in process.stderr if "shows it at" in line).split()[-1]
        # A service whose lines nobody takes waits once the pipe is full.
        threading.Thread(target=lambda: [*process.stderr], daemon=True).start()
        threads = [
            threading.Thread(target=read_in_loops, args=(address, number, is_over, seen)) for number in range(READERS)
        ]
        for thread in threads:
            thread.start()
        try:
            wait_until(lambda: seen[200] > 10 * READERS)
            (tmp_path / "go").touch()
            wait_until(lambda: {entry.state for entry in queue(url).values()} == {"done"})
        finally:
            is_over.set()
            for thread in threads:
                thread.join()
        stop_service(process)
    assert numbers(url) == launched
    assert raw(url, "SELECT DISTINCT state FROM trials") == [("finished",)]
    # A trial that has not begun yet is not found; who asks too much of one address is told to wait.
    assert seen.keys() <= {200, 404, 429}, seen
