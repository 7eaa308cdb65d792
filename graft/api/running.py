"""Trains a study from a notebook or a script, shows its progress, and stops it at an interrupt.

Training runs in threads, or on a cluster, while this thread waits, without a signal handler. A
KeyboardInterrupt that reaches the waiting thread stops the study and is raised again after that.
"""

from __future__ import annotations

import importlib
import logging
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import Any, Literal, final

from graft.launching.changes import settle_changes
from graft.launching.checkpoints import Checkpoints
from graft.launching.placement import Placement
from graft.launching.progress_text import ProgressText, bar, closing_line
from graft.launching.run import RunRequest, run_study
from graft.machine.devices import describe_unused_gpu
from spaces.errors import StudyError
from spaces.progress import Progress

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.2
_LINE_SECONDS = 15.0
_NOTEBOOK_SECONDS = 0.5

Show = Callable[[Progress], None]


@dataclass(frozen=True, kw_only=True)
class Run:
    """The placement and the settings of a run, as the options of `search launch` give them."""

    executor: Literal["auto", "inline", "processes", "ray"] = "auto"
    workers: int | None = None
    """Pack workers. Default: one per core, four on a single GPU, one for each of several GPUs."""
    device: str | None = None
    """cpu, cuda or cuda:N; not with ray."""
    pack: int | None = None
    """The most lanes of a pack; None if it is found while the study trains."""
    ray_address: str | None = None
    ray_env: str | None = None
    """A YAML or JSON file with the settings of a cluster's nodes."""
    checkpoints: str | None = None
    """A folder, a URL, or `none`. None: beside a SQLite file."""
    checkpoint_every: float = 600.0
    """Seconds between two checkpoints."""
    accept_changes: bool = False
    """True to accept another code, torch or kind of step, and changed files of plug-ins."""
    progress: bool | Show = True
    """True to show progress; or a function that is called with it a few times a second."""

    def __post_init__(self) -> None:
        for name in ("workers", "pack"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise StudyError(f"{name}: {value!r} must be a whole number, at least 1")
        if not self.checkpoint_every >= 1:
            raise StudyError(f"checkpoint_every: {self.checkpoint_every!r} must be at least 1 second")

    def placement(self) -> Placement:
        """Decide and check where the study runs; raises StudyError as `Placement.resolve` does."""
        return Placement(
            executor=self.executor,
            workers=self.workers,
            ray_address=self.ray_address,
            device=self.device,
            width=self.pack,
            ray_env=self.ray_env,
        ).resolve()


def train(database: str, study: str, run: Run, placement: Placement) -> Progress:
    """Run a stored study until it is finished or stopped, and return its progress.

    Raises as `settle_changes` and `run_study`, and KeyboardInterrupt after an interrupt, once the
    study has stopped with everything kept; a second interrupt does not wait for that.
    """
    request = RunRequest(
        database=database,
        study=study,
        placement=placement,
        checkpoints=Checkpoints(url=run.checkpoints, seconds=run.checkpoint_every),
    )
    job = _Job(request)
    shown = _Shown(study, run.progress)
    if run.device is None and placement.executor != "ray" and (unused := describe_unused_gpu()):
        shown.note(f"warning: {unused}")
    for line in settle_changes(database, study, placement, accept=run.accept_changes):
        shown.note(f"note: {line}")
    started = time.monotonic()
    try:
        job.thread.start()
        while job.thread.is_alive():
            job.thread.join(_LOOK_SECONDS)
            shown.show(job.progress)
    except KeyboardInterrupt:
        job.stop.set()
        shown.say("stopping: what is finished is kept (interrupt once more to leave at once)")
        job.thread.join()
        shown.say(f"{study} is stopped with everything kept; resume() resumes it")
        raise
    progress = job.result()
    shown.say(closing_line(study, progress, time.monotonic() - started))
    return progress


@final
class _Job:
    """A study that runs in a thread of its own."""

    def __init__(self, request: RunRequest) -> None:
        self._request = request
        self._result: Progress | None = None
        self._error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True, name=f"graft {request.study}")
        self.stop = threading.Event()
        """Set to ask the study to stop."""
        self.progress: Progress | None = None
        """The newest progress; None before the first."""

    def result(self) -> Progress:
        """Return the progress at the end; raises the error that ended the run."""
        if self._error:
            raise self._error
        assert self._result, "the thread has ended"
        return self._result

    def _run(self) -> None:
        def note(progress: Progress) -> None:
            self.progress = progress

        try:
            self._result = run_study(self._request, note, self.stop.is_set)
        except BaseException as error:
            self._error = error


@final
class _Shown:
    """The display of a run: one line that changes in a notebook, a line now and then elsewhere."""

    def __init__(self, study: str, wanted: bool | Show) -> None:
        self._study = study
        self._wanted = wanted
        self._text = ProgressText()
        self._at = 0.0
        self._handle: Any = _make_handle() if wanted is True else None

    def show(self, progress: Progress | None) -> None:
        """Show the newest progress, if it is time."""
        if progress is None or self._wanted is False:
            return
        if callable(self._wanted):
            self._wanted(progress)
            return
        now = time.monotonic()
        if now < self._at + (_NOTEBOOK_SECONDS if self._handle else _LINE_SECONDS):
            return
        self._at = now
        text = self._text.describe(progress)
        if self._handle:
            self._display(f"{bar(progress.ended, progress.planned, 30)} {text}")
        else:
            self.say(f"{self._study}: {text}")

    def say(self, text: str) -> None:
        """Print a line that stays; in a notebook it replaces the progress."""
        if self._wanted is not True:
            return
        if self._handle:
            self._display(text)
        else:
            print(text, file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        """Show a line that stays, also in a notebook; without a display of progress, log it."""
        if self._wanted is not True:
            _log.warning(text)
        elif self._handle:
            _ipython().display(_ipython().HTML(f"<pre>{escape(text)}</pre>"))
        else:
            print(text, file=sys.stderr, flush=True)

    def _display(self, text: str) -> None:
        self._handle.update(_ipython().HTML(f"<pre>{escape(text)}</pre>"))


def _make_handle() -> Any:
    """Return a handle to an output of the notebook that can be updated; None outside a notebook."""
    shell = sys.modules.get("IPython")
    if shell is None or shell.get_ipython() is None or not hasattr(shell.get_ipython(), "kernel"):
        return None
    return _ipython().display(_ipython().HTML("<pre>starting</pre>"), display_id=True)


def _ipython() -> Any:
    return importlib.import_module("IPython.display")
