"""What a figure was measured on."""

from __future__ import annotations

import platform
import re
from pathlib import Path


def processor() -> str:
    """Return the processor's name, where the system tells."""
    told = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*:\s*(.+)", told.read_text()) if told.exists() else None
    return found[1] if found else platform.processor() or platform.machine()
