"""The display while a command works: the progress bar of one trial, or a line of text."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def training_bar(number: int, steps: int) -> Generator[Callable[[int], None]]:
    """Show a progress bar on a terminal while a trial trains; yield the function that moves it."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"trial {number}", total=steps)
        yield lambda step: bar.update(task, completed=step)


@contextmanager
def waiting(text: str) -> Generator[Callable[[str], None]]:
    """Show a line on a terminal during slow work; yield the function that changes it."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status(text) as status:
        yield status.update
