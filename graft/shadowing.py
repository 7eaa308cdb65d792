"""A check that Graft can run on this system and that Python finds Graft's own packages."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("cli", "graft", "search", "spaces", "storage", "workers")


def check_system() -> None:
    """Raise ImportError, one line, on a system without locks of files and POSIX signals."""
    if sys.platform == "win32":
        raise ImportError("Graft runs on Linux and macOS; on Windows install it inside WSL, which is a Linux")


def check_packages() -> None:
    """Raise ImportError, with both files, if another module replaces a package of Graft.

    Packages elsewhere are not checked: on a cluster's nodes each has a folder of its own.
    """
    home = Path(__file__).resolve().parents[1]
    for name in PACKAGES:
        ours = home / name / "__init__.py"
        # A folder without `__init__.py` has no file and hides nothing: Python takes it only if no
        # package of that name is found further on.
        if name in sys.modules:
            file = getattr(sys.modules[name], "__file__", None)
        else:
            spec = find_spec(name)
            file = spec.origin if spec else None
        path = Path(file) if file else None
        if path and ours.exists() and path.resolve() != ours:
            theirs = path.parent if path.name == "__init__.py" else path
            raise ImportError(
                f"{path} is imported in place of Graft's {ours}; rename {theirs.name}, "
                f"or take {theirs.parent} off Python's path (PYTHONPATH, or the folder that Python was started in)"
            )
