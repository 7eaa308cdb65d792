"""A program in a process of its own that writes rows in batches."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import storage

ROOT = Path(storage.__file__).parents[1]
BATCHES = """
    import sys
    from tests.support.databases import controlled, make_report, make_trial

    with controlled(sys.argv[1]) as study:
        study.start([make_trial(n) for n in range(50)], "w")
        for step in range(1, 100_000):
            study.record([make_report(n, step) for n in range(50)])
            print(step, flush=True)
"""


def run(program: str, *arguments: str) -> subprocess.Popen[str]:
    """Return a Python process of our code whose lines can be read."""
    command = [sys.executable, "-c", textwrap.dedent(program), *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
