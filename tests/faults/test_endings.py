"""How a launch ends that somebody ends: a closed terminal, a second Ctrl-C, a kill, too little memory."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import resource
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from graft.launching.process.interruption import Interruption
from graft.launching.process.memory_limits import describe_shortage
from graft.launching.process.watcher import Watcher
from tests.support.databases import raw
from tests.support.launches import ROOT, SPACE, check_complete, ended, finished, running, search, states, wait_until

LAUNCH = ("launch", SPACE, "--workers", "2", "--pack", "4")
UNHURRIED = """
import time
from search.steering.controller import Controller
exchange = Controller.exchange

def wait_and_exchange(*arguments):
    time.sleep(0.3)
    return exchange(*arguments)

Controller.exchange = wait_and_exchange
"""
"""Run before a launch, which then cannot end before somebody ends it."""
UNDER_A_SHELL = f"{UNHURRIED}\nimport signal; signal.signal(signal.SIGHUP, signal.SIG_DFL)"
"""The tests may run under nohup."""
STOPPED = "stopped with everything kept; resume it with `search resume tiny`"


def test_a_signal_that_comes_while_stderr_is_written_is_announced_after_it():
    written: list[bytes] = []

    class Interrupted(io.RawIOBase):
        def writable(self) -> bool:
            return True

        def write(self, data: Any, /) -> int:
            if not written:
                os.kill(os.getpid(), signal.SIGTERM)
            written.append(bytes(data))
            return len(written[-1])

    stderr = io.TextIOWrapper(io.BufferedWriter(Interrupted()), line_buffering=True)
    with Interruption(lambda: print("stopping", file=stderr), pytest.fail) as interruption:
        print("at work", file=stderr)
    assert interruption.requested
    assert b"".join(written) == b"at work\nstopping\n"


@pytest.mark.long
def test_sighup_stops_a_launch_as_sigterm_does(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/graft.db"
    with running(tmp_path, *LAUNCH, before=UNDER_A_SHELL) as process:
        wait_until(lambda: finished(url) > 3)
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGHUP)  # a shell says it once more
        lines = ended(process, 130)
    assert lines[-1] == STOPPED
    assert states(url).keys() == {"finished", "queued"}
    assert raw(url, "SELECT state FROM studies") == [("stopped",)]
    search(tmp_path, "resume", "tiny")
    check_complete(url)


def take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@contextmanager
def in_terminal(folder: Path, *arguments: str) -> Generator[tuple[subprocess.Popen[bytes], int]]:
    """Yield the program, unhurried, in a terminal of its own, and our end of that."""
    program = f"{UNDER_A_SHELL}\nfrom cli.main import main\nmain()"
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, preexec_fn=take_terminal,
    ) as process:  # fmt: skip
        os.close(theirs)
        try:
            yield process, ours
        finally:
            process.kill()


@pytest.mark.long
def test_a_launch_whose_terminal_is_closed_stops_with_everything_kept(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/graft.db"
    with in_terminal(tmp_path, *LAUNCH) as (process, ours):
        wait_until(lambda: finished(url) > 3)
        os.close(ours)
        assert process.wait(240) == 130
    assert raw(url, "SELECT state FROM studies") == [("stopped",)]
    search(tmp_path, "resume", "tiny")
    check_complete(url)


@pytest.mark.long
def test_under_nohup_a_launch_goes_on(tmp_path: Path):
    with running(tmp_path, *LAUNCH, before="import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)") as process:
        wait_until(lambda: finished(f"sqlite:///{tmp_path}/graft.db") > 3)
        process.send_signal(signal.SIGHUP)
        assert "48 finished of 48" in ended(process, 0)[-1]


HANGING = """
import time
from search.steering.controller import Controller
Controller.close = lambda controller: time.sleep(600)
"""


@pytest.mark.long
def test_a_second_ctrl_c_leaves_at_once_and_safely(tmp_path: Path):
    """Also while the end of the launch waits, as for a database that does not answer."""
    url = f"sqlite:///{tmp_path}/graft.db"
    with running(tmp_path, *LAUNCH, before=UNHURRIED + HANGING) as process:
        wait_until(lambda: finished(url) > 3)
        process.send_signal(signal.SIGINT)
        time.sleep(1.0)
        process.send_signal(signal.SIGINT)
        lines = ended(process, 130, seconds=60)  # what hangs would take ten times as long
    assert lines[-2].startswith("stopping: what is finished is kept")
    assert lines[-1] == "left at once; what was recorded is kept; resume it with `search resume tiny`"
    search(tmp_path, "resume", "tiny")
    check_complete(url)


# -- killed, and short of memory -------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_launch_that_is_killed_is_told_in_a_line(tmp_path: Path):
    with running(tmp_path, *LAUNCH, before=UNHURRIED) as process:
        wait_until(lambda: finished(f"sqlite:///{tmp_path}/graft.db") > 3)
        process.kill()
        _, said = process.communicate(240)
    assert said.splitlines()[-1] == (
        "error: this launch was killed, or crashed; what was recorded is kept, and the study can be resumed"
    )


def test_a_watcher_of_a_process_that_ends_by_itself_says_nothing(capfd: pytest.CaptureFixture[str]):
    with Watcher():
        pass
    assert capfd.readouterr().err == ""


def test_without_a_process_to_watch_it_a_launch_goes_on(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with Watcher() as watcher:
        watcher.close()


def test_too_little_address_space_is_refused_in_a_line_before_anything_is_written(tmp_path: Path):
    """A15 of the look at 0.1.0: `ulimit -v 1500000` ended in a traceback."""
    command = f"ulimit -v 1500000 && exec {sys.executable} -m graft_search launch {SPACE} --workers 2"
    answer = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert answer.returncode == 2
    assert answer.stderr == (
        "error: ulimit -v: 1500000 kB of address space are too few for 2 workers; "
        "allow 2097152, or `ulimit -v unlimited`\n"
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.long
@pytest.mark.parametrize(
    ("kilobytes", "line"),
    [
        (600_000, "error: memory ran out (ulimit -v is 600000 kB): "),
        (200_000, "error: ulimit -v: 200000 kB of address space are too few; "),
    ],
)
def test_a_command_that_runs_out_of_address_space_says_so_in_a_line(tmp_path: Path, kilobytes: int, line: str):
    command = f"ulimit -v {kilobytes} && exec {sys.executable} -m graft_search space check {SPACE}"
    answer = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert answer.returncode == 2, answer.stderr
    assert answer.stderr.startswith(line)
    assert answer.stderr.count("\n") == 1


LEAVING = """
import atexit, sys, threading, time, types
import cli.main, graft_search

sys.modules["torch"] = types.ModuleType("torch")  # with torch, the process is left before Python takes modules apart

def work():
    threading.main_thread().join()
    print("a thread has ended")

def run():
    atexit.register(print, "a library has closed")
    threading.Thread(target=work).start()
    print("a command has printed")
    sys.exit(STATUS)

cli.main.main = run
graft_search.main()
"""


def leave(status: str, stdout: int | IO[str]) -> subprocess.CompletedProcess[str]:
    """Run LEAVING, whose output is buffered as that of a program in a pipe is."""
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-c", LEAVING.replace("STATUS", status)]
    return subprocess.run(
        command, cwd=ROOT, env=buffered, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False
    )


@pytest.mark.parametrize(("status", "code"), [("3", 3), ("None", 0), ("'a text'", 1)])
def test_a_process_with_torch_ends_as_any_other_and_loses_nothing_that_was_written(status: str, code: int):
    answer = leave(status, subprocess.PIPE)
    assert answer.returncode == code
    assert answer.stdout.splitlines() == ["a command has printed", "a thread has ended", "a library has closed"]
    assert answer.stderr == ("a text\n" if code == 1 else "")


def test_a_full_disk_is_told_at_the_end_of_a_process_with_torch():
    with Path("/dev/full").open("w") as full:
        answer = leave("0", full)
    assert answer.returncode == 120  # Python's own status of output that could not be written
    assert "No space left on device" in answer.stderr


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (MemoryError(), "memory ran out: MemoryError"),
        (OSError(12, "Cannot allocate memory"), "memory ran out: [Errno 12] Cannot allocate memory"),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), "memory ran out: libtorch_cpu.so"),
        (RuntimeError("can't start new thread"), "memory ran out: can't start new thread"),
        (SystemError("error return without exception set"), "memory ran out: error return without exception set"),
        (OSError(28, "No space left on device"), None),
        (ImportError("No module named 'ray'"), None),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), None),
    ],
)
def test_an_error_of_too_little_memory_is_known_from_others(error: Exception, line: str | None):
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        pytest.skip("this process's memory is limited")
    shortage = describe_shortage(error)
    assert (shortage or "").startswith(line or "")
    assert (shortage is None) == (line is None)


MEMORY = Path("/sys/fs/cgroup/memory")


@pytest.fixture
def cgroup() -> Generator[Path]:
    """Yield a memory cgroup of 200 MB, where this test may make one."""
    folder = MEMORY / f"graft-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / "memory.limit_in_bytes").write_text("200000000")
    except OSError:
        pytest.skip("no memory cgroup can be made here")
    yield folder
    deadline = time.monotonic() + 240
    while (folder / "cgroup.procs").read_text() and time.monotonic() < deadline:
        time.sleep(0.1)
    folder.rmdir()


@pytest.mark.long
def test_a_cgroup_of_too_little_memory_is_told_in_a_line(tmp_path: Path, cgroup: Path):
    command = f"echo $$ > {cgroup}/cgroup.procs && exec {sys.executable} -m graft_search launch {SPACE}"
    answer = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert answer.returncode == -signal.SIGKILL
    assert answer.stderr.splitlines()[-1].startswith("error: the kernel killed this launch, as it seems because memory")
