"""The cost of one client of a server to all others: many connections and streams, and submissions that are much work.

    python -m benchmarks.edge [--rounds 3]

A server of its own shows a study. First another address asks for pages by itself; then while 500 connections without a
request and 64 event streams are kept up from one address; then while a person submits one greedy space after the other
(all kinds that cost a server much once: trials, rows, words, widths, a data set of a network), with the role submit and
with the role admin, which has no quotas. Printed are the seconds of the pages, by the clock and of the server's
processor, the seconds until a submission was answered, and how far the memory of the answering process rose.
"""

from __future__ import annotations

import argparse
import http.client
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from benchmarks.beside import processor_of
from benchmarks.pages import STUDY, write_study
from graft.web.security.access import make_token
from spaces.reading import catalogue

TRIALS = 200
IDLE, STREAMS = 500, 64
CROWD, OTHER = "127.0.0.1", "127.0.0.2"
"""Addresses of one machine."""
PAGES = ("/", f"/studies/{STUDY}", "/queue", "/api/studies", f"/api/studies/{STUDY}/trials?limit=100")
AGAIN_SECONDS = 5.0
"""Until a client connects again that was refused, or said nothing for too long."""


def make_greedy() -> Mapping[str, Mapping[str, Any]]:
    """Kind -> the body of a submission; each was once accepted, and kept all others waiting."""
    space = yaml.safe_load(catalogue.read_text("quick/set_complement"))

    def changed(section: str, **values: Any) -> str:
        return yaml.safe_dump({**space, section: {**space[section], **values}})

    def language(corpus: Mapping[str, Any]) -> str:
        return yaml.safe_dump({**space, "task": {"language": {"corpus": dict(corpus), "length": 8}}})

    return {
        "trials: 999,999,999": {"space": changed("search", trials=999_999_999)},
        "width: 10,000,000": {"space": changed("model", width=10**7)},
        "batch: 1,073,741,824": {"space": changed("training", batch=2**30)},
        "words: 100,000,000": {"space": language({"stories": {"words": 10**8}})},
        "words: 1,000,000,000": {"space": language({"stories": {"words": 10**9}})},
        "a data set of a network": {"space": language({"huggingface": {"dataset": "someone/something"}})},
        "400,000 lines": {"space": "study: x\nnote:\n" + "- [1]\n" * 150_000},
        "priority 100, weight 1,000": {"space": yaml.safe_dump(space), "priority": 100, "weight": 1000},
    }


@contextmanager
def serving(url: str) -> Generator[tuple[int, int]]:
    """Yield the process and the port of a server that asks for tokens."""
    command = [sys.executable, "-m", "graft", "dashboard", "--port", "0", "--tokens", "--storage", url]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr
            line = server.stderr.readline()
            threading.Thread(target=server.stderr.read, daemon=True).start()
            yield server.pid, int(line.split()[0].rstrip("/").rpartition(":")[2])
        finally:
            server.terminate()


def ask(port: int, source: str, token: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, str]:
    """Return the status and the text of an answer."""
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120, source_address=(source, 0))
    with closing(connection):
        connection.request("POST" if body else "GET", path, json.dumps(body) if body else None, headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def time_pages(pid: int, port: int, token: str, rounds: int) -> str:
    """Ask for all pages so often from the other address; the seconds of an answer in words."""
    taken, before = list[float](), processor_of(pid)
    for _ in range(rounds):
        for path in PAGES:
            begin = time.perf_counter()
            status, text = ask(port, OTHER, token, path)
            taken.append(time.perf_counter() - begin)
            assert status == 200, (path, status, text[:200])
    processor = (processor_of(pid) - before) / len(taken)
    return f"median {statistics.median(taken):.3f} s, longest {max(taken):.3f} s, processor {processor:.3f} s an answer"


@contextmanager
def crowding(port: int, token: str) -> Generator[None]:
    """Keep up connections that say nothing, and streams, from one address; those that are closed are opened again."""
    is_over = threading.Event()

    def keep(count: int, say: bytes) -> None:
        held = list[socket.socket]()
        while True:
            while len(held) < count and not is_over.is_set():
                held.append(socket.create_connection(("127.0.0.1", port), 60, (CROWD, 0)))
                with suppress(OSError):
                    held[-1].sendall(say)
            if is_over.wait(AGAIN_SECONDS):
                break
            for connection in held:
                if is_closed(connection):
                    connection.close()
            held = [connection for connection in held if connection.fileno() >= 0]
        for connection in held:
            connection.close()

    head = f"GET /api/studies/{STUDY}/events HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n\r\n"
    threads = [threading.Thread(target=keep, args=args) for args in ((STREAMS, head.encode()), (IDLE, b""))]
    for thread in threads:
        thread.start()
    time.sleep(2 * AGAIN_SECONDS)
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def is_closed(connection: socket.socket) -> bool:
    """Return whether the other side has closed a connection; what it said before is read."""
    try:
        while text := connection.recv(1 << 16, socket.MSG_DONTWAIT):
            if text.startswith(b"HTTP/1.1 503"):
                return True
        return True
    except BlockingIOError:
        return False
    except OSError:
        return True


def memory_of(pid: int) -> float:
    """Return the most MB that a process has had since it was last asked for them."""
    status = Path(f"/proc/{pid}/status").read_text()
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) / 1024


def time_submission(
    pid: int, port: int, tokens: Mapping[str, str], role: str, body: Mapping[str, Any]
) -> tuple[str, str]:
    """Submit once while others look; how long the answers took in words, and what was said."""
    answers, taken = list[tuple[float, int, str]](), list[float]()
    before, spent = memory_of(pid), processor_of(pid)

    def submit() -> None:
        begin = time.perf_counter()
        status, text = ask(port, CROWD, tokens[role], "/api/queue", body)
        answers.append((time.perf_counter() - begin, status, text))

    thread = threading.Thread(target=submit)
    thread.start()
    while thread.is_alive() or len(taken) < len(PAGES):
        begin = time.perf_counter()
        ask(port, OTHER, tokens["read"], PAGES[len(taken) % len(PAGES)])
        taken.append(time.perf_counter() - begin)
    [(seconds, status, text)] = answers
    processor = (processor_of(pid) - spent) / len(taken)
    others = f"others' median {statistics.median(taken):.3f} s, longest {max(taken):.3f} s, processor {processor:.3f} s"
    return f"{seconds:.2f} s, memory {memory_of(pid) - before:+.0f} MB, {others}", f"{status} {text[:90]}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.edge", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="of all pages")
    rounds = parser.parse_args(arguments).rounds
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/graft.db"
        write_study(url, STUDY, TRIALS)
        tokens = {role: make_token(url, role, role) for role in ("read", "submit", "admin")}
        with serving(url) as (pid, port):
            measure(pid, port, tokens, rounds)


def measure(pid: int, port: int, tokens: Mapping[str, str], rounds: int) -> None:
    """Print what the pages take alone, beside a crowd, and beside submissions."""
    look: Callable[[], str] = lambda: time_pages(pid, port, tokens["read"], rounds)  # noqa: E731
    look()  # what is imported and read once
    ask(port, OTHER, tokens["submit"], "/api/queue", {"space": "study: ["})  # checks are forked from a warm process
    print(f"pages alone: {look()}", flush=True)
    with crowding(port, tokens["submit"]):
        print(f"beside {IDLE} idle connections and {STREAMS} streams of one address: {look()}", flush=True)
    for role in ("submit", "admin"):
        for kind, body in make_greedy().items():
            taken, said = time_submission(pid, port, tokens, role, {**body, "study": f"greedy-{time.time_ns()}"})
            print(f"{kind} by {role}: {taken}; {said}", flush=True)


if __name__ == "__main__":
    main()
