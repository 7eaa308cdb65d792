"""A small process beside a launch that reports in a line that the launch was killed.

It is run by its path and imports next to nothing, so that it survives when memory runs out.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Self, final

LOG_VARIABLE = "SEARCH_LOG_FORMAT"
"""The environment variable with the format of a launch's lines: `text` or `json`."""
_KILLED = "error: this launch was killed, or crashed"
_SHORT = "error: the kernel killed this launch, as it seems because memory ran out: give it more, or less by --pack"
_KEPT = "; what was recorded is kept, and the study can be resumed"


@final
class Watcher:
    """Watches this process until it is closed (context manager). Failing to start is ignored."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with suppress(OSError):
            # Only this process has the pipe's write end: the kernel closes it however it ends.
            command = [sys.executable, "-I", "-S", __file__]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close()

    def close(self) -> None:
        """End the watch, as a launch does at its end."""
        if self._process and self._process.stdin:
            with suppress(OSError):
                os.write(self._process.stdin.fileno(), b".")
            self._process.stdin.close()
            self._process.wait()
            self._process = None


def _out_of_memory_kills() -> int:
    """Return the number of processes on this machine that the kernel killed for lack of memory."""
    with suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def _watch() -> None:
    # Ctrl-C in a terminal, and a terminal that closes, reach all processes in it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    before = _out_of_memory_kills()
    if not os.read(0, 1):
        line = (_SHORT if _out_of_memory_kills() > before else _KILLED) + _KEPT
        if os.environ.get(LOG_VARIABLE) == "json":  # as the launch said its other lines
            import json
            import time

            now = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
            message = line.removeprefix("error: ")
            line = json.dumps({"time": now, "level": "error", "message": message})
        with suppress(OSError):
            os.write(2, f"{line}\n".encode())


if __name__ == "__main__":
    _watch()
