"""What a figure was measured on."""

from __future__ import annotations

import platform
import re
from pathlib import Path


def processor() -> str:
    """Return the processor's name, where the system tells."""
    path = Path("/proc/cpuinfo")
    match = re.search(r"model name\s*:\s*(.+)", path.read_text()) if path.exists() else None
    return match[1] if match else platform.processor() or platform.machine()
