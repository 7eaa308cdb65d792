"""Whether Graft can run here: on this system, and with Python finding its own packages. Imports none of them."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("cli", "graft", "search", "spaces", "storage", "workers")


def check_system() -> None:
    """Raise ImportError, one line, on a system that lacks what Graft is built on: locks of files and POSIX signals."""
    if sys.platform == "win32":
        raise ImportError("Graft runs on Linux and macOS; on Windows install it inside WSL, which is a Linux")


def check_packages() -> None:
    """Raise ImportError, one line that names both files, if another module is found in place of a package of Graft.

    Packages that do not lie beside this one are not checked: on the nodes of a cluster each has a folder of its own.
    """
    home = Path(__file__).resolve().parents[1]
    for name in PACKAGES:
        ours = home / name / "__init__.py"
        # No file is found for a folder without `__init__.py`. Such a folder hides nothing: Python takes it only where
        # no package of that name is found further on.
        if name in sys.modules:
            file = getattr(sys.modules[name], "__file__", None)
        else:
            spec = find_spec(name)
            file = spec.origin if spec else None
        found = Path(file) if file else None
        if found and ours.exists() and found.resolve() != ours:
            theirs = found.parent if found.name == "__init__.py" else found
            raise ImportError(
                f"{found} is imported in place of Graft's {ours}; rename {theirs.name}, "
                f"or take {theirs.parent} off Python's path (PYTHONPATH, or the folder that Python was started in)"
            )
