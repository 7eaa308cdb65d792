"""Shows that the tests notice what breaks: each mutation is made in a copy of the tree, and its tests must fail there.

    python -m tests.mutations [--only 3,17]

The tests of all chosen mutations are run on the unchanged copy first. Exit status 0: every mutation was killed, or the
list says why it cannot be; 1: the others are named; 2: tests fail without any mutation.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from tests.mutations import ROOT, Mutation

SECONDS = 120.0
"""Tests of a mutation that take longer hang, which counts as failed."""
LIBRARIES = ("alembic", "hypothesis", "numpy", "optuna", "polars", "psycopg", "scipy.stats", "sqlalchemy", "torch")
"""Imported once, before the processes that run tests are forked: that takes longer than most of the tests."""
_FORK = multiprocessing.get_context("fork")
PASSED, FAILED = 0, 1
"""Exit statuses of pytest; the others mean that the tests themselves cannot run."""
KILLED, SURVIVED, INVALID = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; its exit status."""
    mutations = dict(enumerate(Mutation.read_all(), 1))
    parser = argparse.ArgumentParser(prog="python -m tests.mutations")
    parser.add_argument("--only", type=_read_numbers, default=mutations.keys(), metavar="N,M")
    only: Collection[int] = parser.parse_args(arguments).only
    if unknown := set(only) - mutations.keys():
        parser.error(f"--only: there is no mutation {min(unknown)}; there are 1 to {len(mutations)}")
    chosen = {number: mutations[number] for number in sorted(only)}
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported: a fork has no threads of its parent
    for library in LIBRARIES:
        importlib.import_module(library)
    with tempfile.TemporaryDirectory(prefix="graft-mutations-") as folder:
        copy = Path(folder) / "graft"
        _copy_tree(copy)
        if not _pass_unchanged(copy, chosen.values()):
            print(f"invalid: {_first_failure(copy)} fails without any mutation")
            return INVALID
        survivors = [number for number, mutation in chosen.items() if not _kill(copy, number, mutation)]
    unexplained = [number for number in survivors if chosen[number].survives is None]
    names = ", ".join(f"{number}" if number in unexplained else f"{number} (explained)" for number in survivors)
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} killed; survivors: {names or 'none'}")
    return SURVIVED if unexplained else KILLED


def _read_numbers(text: str) -> set[int]:
    try:
        return {int(number) for number in text.split(",")}
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers such as 3,17") from None


def _copy_tree(target: Path) -> None:
    """Copy what git tracks or would track; build outputs and databases stay behind."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def _pass_unchanged(copy: Path, mutations: Iterable[Mutation]) -> bool:
    """Run the tests of all mutations together: one that fails by itself would kill every mutation."""
    tests: dict[bool, set[str]] = {}
    for mutation in mutations:
        tests.setdefault(mutation.postgresql, set()).update(mutation.tests)
    return all(
        _run_tests(copy, sorted(these), postgresql, SECONDS * len(these)) == PASSED
        for postgresql, these in tests.items()
    )


def _kill(copy: Path, number: int, mutation: Mutation) -> bool:
    """Run the tests of a mutation in the copy, which is left unchanged; whether they fail."""
    path, original, start = copy / mutation.file, copy.parent / "original", time.monotonic()
    shutil.copy2(path, original)
    path.write_text(mutation.apply(path.read_text()))
    try:
        status = _run_tests(copy, mutation.tests, mutation.postgresql)
    finally:
        shutil.copy2(original, path)  # with its old time, so that no bytecode of the mutation is used
    killed = status in (FAILED, None)
    verdict = f"killed by {_first_failure(copy)}" if killed else "survived"
    if status not in (PASSED, FAILED, None):
        verdict = f"survived: pytest could not run its tests (exit status {status})"
    elif not killed and mutation.survives:
        verdict = f"survived, as explained: {mutation.survives}"
    print(f"{number:3} {time.monotonic() - start:5.1f} s  {mutation.file}: {mutation.breaks}: {verdict}", flush=True)
    return killed


def _run_tests(copy: Path, tests: Sequence[str], postgresql: bool, seconds: float = SECONDS) -> int | None:
    """Return the exit status of pytest on these tests of the copy; None if it took too long."""
    process = _FORK.Process(target=_run_pytest, args=(copy, tests, postgresql))
    process.start()
    process.join(seconds)
    if process.is_alive():
        assert process.pid
        os.killpg(process.pid, signal.SIGINT)  # pytest ends the server that it started
        process.join(30)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with what the tests started, where a loop does not hear SIGINT
        process.join()
        return None
    if process.exitcode not in (PASSED, FAILED):
        print((copy.parent / "output").read_text())
    return process.exitcode


def _first_failure(copy: Path) -> str:
    """Return the first test that failed in the last run, or what ended it."""
    match = re.search(r"^(?:FAILED|ERROR) tests/(.*?)(?: - .*)?$", (copy.parent / "output").read_text(), re.MULTILINE)
    return match[1] if match else f"the limit of {SECONDS:.0f} s"


def _run_pytest(copy: Path, tests: Sequence[str], postgresql: bool) -> None:
    """Run tests of the copy, in a process of its own that has imported nothing of ours but this package."""
    import pytest

    os.setsid()
    output = os.open(copy.parent / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(copy)
    os.environ["PYTHONPATH"] = str(copy)
    sys.path[:] = [str(copy), *(entry for entry in sys.path if Path(entry).resolve() != ROOT)]
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    database = [] if postgresql else ["-k", "not postgresql"]
    options = ["-x", "-m", "", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    options += [f"--basetemp={copy.parent}/tests", *database]
    status = pytest.main([*options, *(f"tests/{test}" for test in tests)])
    sys.stdout.flush()
    os._exit(status)


if __name__ == "__main__":
    sys.exit(main())
