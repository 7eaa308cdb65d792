"""Files and folders written through to the disk before anything relies on them."""

from __future__ import annotations

import os
from pathlib import Path


def synchronise(path: Path) -> None:
    """Have a file's content, or the names in a folder, on the disk when this returns."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
