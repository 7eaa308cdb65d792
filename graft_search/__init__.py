"""The start of the program `search`, in a package whose name no folder of a user has."""

from __future__ import annotations

import atexit
import os
import runpy
import sys
import threading
from pathlib import Path

_LEAST_BYTES = 500_000 << 10


def main() -> None:
    """Run the program; exit with a line and status 2 if another package hides one of Graft's."""
    # Run from its file: `import graft` may find another package of that name.
    checks = runpy.run_path(str(Path(__file__).parents[1] / "graft" / "shadowing.py"))
    try:
        checks["check_system"]()
        checks["check_packages"]()
    except ImportError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    import resource  # which Windows lacks

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < _LEAST_BYTES:  # libraries in Rust and C would abort
        print(f"error: ulimit -v: {limit >> 10} kB of address space are too few; allow 2000000", file=sys.stderr)
        sys.exit(2)
    from cli.main import main as run

    try:
        run()
    except SystemExit as end:
        if "torch" in sys.modules and isinstance(end.code, int | None):
            _leave(end.code or 0)
        raise


def _leave(status: int) -> None:
    """End the process as Python does, without taking torch's modules apart for a second."""
    threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue] - waits for threads
    atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage] - what libraries have to close
    try:
        for stream in (sys.stdout, sys.stderr):  # last, since threads and libraries may have written, too
            stream.flush()
    except OSError:  # a full disk, or a reader that left: Python says so
        return
    os._exit(status)
