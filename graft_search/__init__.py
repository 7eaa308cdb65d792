"""Where the program `search` starts: under a name that no folder of yours has, before any other package of Graft."""

from __future__ import annotations

import resource
import runpy
import sys
from pathlib import Path

_LEAST_BYTES = 500_000 << 10


def main() -> None:
    """Run the program; one line and exit status 2 if another package is found in place of one of Graft's."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < _LEAST_BYTES:  # libraries in Rust and C would abort
        print(f"error: ulimit -v: {limit >> 10} kB of address space are too few; allow 2000000", file=sys.stderr)
        sys.exit(2)
    # Run from its file: `import graft` may find another package of that name.
    shadowing = runpy.run_path(str(Path(__file__).parents[1] / "graft" / "shadowing.py"))
    try:
        shadowing["check_packages"]()
    except ImportError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    from cli.main import main as run

    run()
