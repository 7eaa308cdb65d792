"""The live display of a running study: one line on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Self

from rich.console import Console
from rich.live import Live as RichLive
from rich.text import Text

from graft.launching.progress_text import ProgressText, fit_line
from spaces.progress import Progress

LINE_SECONDS = 15.0
"""Seconds between two lines without a terminal."""
REFRESH_SECONDS = 0.2


class Live:
    """Shows the progress of a study. A context manager; `show` is cheap and may be called often."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._console = Console(stderr=True)
        self._live = RichLive(console=self._console, auto_refresh=False)
        self._text = ProgressText()
        self._shown = 0.0

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
            self._live.update(Text(f"{self._name} starting"), refresh=True)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def show(self, study: Progress) -> None:
        """Note the progress, and show it if it is time."""
        now = time.monotonic()
        if now < self._shown + (REFRESH_SECONDS if self._console.is_terminal else LINE_SECONDS):
            return
        self._shown = now
        if self._console.is_terminal:
            width = self._console.width
            text = self._text.describe(study, width - min(len(self._name), 20) - 1)
            line = Text(fit_line(self._name, text, study, width), no_wrap=True, overflow="crop")
            self._live.update(line, refresh=True)
        else:
            print(f"{self._name}: {self._text.describe(study)}", file=sys.stderr, flush=True)
