"""The progress bar of one trial that is trained again."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def training_bar(number: int, steps: int) -> Generator[Callable[[int], None]]:
    """A progress bar on a terminal while a trial trains; gives the function that takes the step reached."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"trial {number}", total=steps)
        yield lambda step: bar.update(task, completed=step)
