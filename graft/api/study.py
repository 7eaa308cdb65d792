"""A stored study: its trials, its results, and more training."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import polars as pl

from graft.api.base import ReadableStudy
from graft.api.display import Figures
from graft.api.trials import TrialRecord
from graft.files import OutputError
from graft.plugins.stored import read_outside
from graft.stored.status import Status, read_status
from graft.stored.trials import StudyTable, read_table, read_trial
from spaces.errors import StudyError
from spaces.plugins.active import using
from storage import request_stop
from storage.frames import Reader, open_reader

if TYPE_CHECKING:
    from graft.api.running import Run
    from graft.exports.huggingface.exporting import Exported
    from graft.report.claims import ClaimReport
    from graft.report.compatibility.content import Transfer
    from graft.report.compatibility.reading import MatrixRequest
    from graft.retraining.comparison import ReplayComparison
    from graft.stored.waiting import WaitResult
    from workers.engine.trained_model import TrainedModel


@dataclass(frozen=True, repr=False)
class Study(ReadableStudy):
    """One study of a database, by its name. It keeps no connection between calls."""

    database: str
    name: str

    def status(self) -> Status:
        with open_reader(self.database) as reader:
            return read_status(reader, self.name)

    def show(self, number: int) -> TrialRecord:
        with self._looking("show") as reader:
            return TrialRecord.of(self.name, *read_trial(reader, self.name, number))

    def _read(self, kind: StudyTable, **query: Any) -> pl.DataFrame:
        with self._looking(kind) as reader:
            return read_table(reader, self.name, kind, **query)

    def replay(
        self, number: int, *, until: int | None = None, device: str | None = None, accept_changes: bool = False
    ) -> ReplayComparison:
        """Train a trial again, alone, and compare its metrics: `.reproduced`, `.verdict`, `.pairs`.

        Changed data raise StudyError unless `accept_changes` is True, here and below.
        """
        from graft.retraining.replay import read_replays

        with self._looking("replay") as reader:
            [replay] = read_replays(reader, self.name, [number], until, accept_changes=accept_changes)
        return replay.run(device, _ignore)

    def model(
        self,
        number: int,
        *,
        variant: str | None = None,
        step: int | None = None,
        device: str | None = None,
        accept_changes: bool = False,
    ) -> TrainedModel:
        """Train a trial again and return its model, a torch module that answers for a batch.

        `variant` is raw, ema, bema, or one of a grid as `search weights` names it (None: the
        objective's), `step` the step of the model (None: the last). `batch()` is the validation
        set, `metrics()` are those of validation, and `state_dict()` has the names of
        `save_weights`.
        """
        from graft.retraining.weights import train_model

        return train_model(
            self.database, self.name, number, variant=variant, step=step, device=device, accept_changes=accept_changes
        )

    def save_weights(
        self,
        number: int,
        path: str | Path,
        *,
        variant: str = "raw",
        form: Literal["safetensors", "gpt2"] = "safetensors",
        device: str | None = None,
        accept_changes: bool = False,
    ) -> int:
        """Train a trial again, write its weights to a new file or GPT-2 folder, and count them."""
        from graft.retraining.weights import check_weights, restore_trained, write_weights

        path = Path(path)
        if path.exists():
            raise OutputError(f"{path} exists; name another file")
        restored = restore_trained(self.database, self.name, number, device, accept_changes=accept_changes)
        check_weights(restored, variant, form)
        return write_weights(restored, path, variant=variant, form=form, device=device, watch=_ignore)

    def export_model(
        self,
        number: int,
        folder: str | Path,
        *,
        variant: str | None = None,
        device: str | None = None,
        accept_changes: bool = False,
    ) -> Exported:
        """Train a trial again and write it to a folder as a Hugging Face model, with its code.

        Raises OutputError for a folder that is not empty, StudyError for a trial that is no causal
        model over tokens.
        """
        from graft.exports.huggingface.exporting import begin_export, finish_export

        begun = begin_export(
            self.database,
            self.name,
            number,
            Path(folder),
            variant=variant,
            device=device,
            accept_changes=accept_changes,
        )
        with open_reader(self.database) as reader:
            self._note_look(reader, "export")
        return finish_export(begun, _ignore)

    def compatibility(self, request: MatrixRequest | None = None) -> Transfer:
        """Return a transfer's compatibility matrix: `.matrix.cells`, a row per source and target.

        `request` may name any two paths of a trial as rows and columns.
        """
        from graft.report.compatibility.reading import MatrixRequest, read_transfer

        with self._looking("compatibility") as reader:
            return read_transfer(reader, self.name, request or MatrixRequest())[0]

    def claims(self) -> ClaimReport:
        """Return the verdicts on the study's claims, `.results`, and their history.

        If the study is not finished, the look is recorded. Raises StudyError if it has no claim.
        """
        from graft.report.claims import read_claim_report

        with open_reader(self.database) as reader:
            self._note_look(reader, "claims")  # its history has this look, too
            return read_claim_report(reader, self.name)

    def figure(self, kind: str) -> Figures:
        from graft.report.figures import draw_figures, draw_matrix
        from graft.report.study import read

        if kind == "compatibility":
            pictures = [draw_matrix(self.compatibility())]
        else:
            with self._using_plugins() as reader:
                pictures = draw_figures(read(reader, self.name), kind)
        return Figures(f"{self.name}: {kind}", pictures)

    def report(self, path: str | Path) -> None:
        """Write the study's report to an .html or an .md file, which may exist."""
        from graft.report.study import read, render

        with self._using_plugins() as reader:
            render(read(reader, self.name), Path(path))

    def resume(self, trials: int | None = None, run: Run | None = None) -> Study:
        """Train the trials that are left, of `trials` in all if that is given.

        In an experiment the trials of all arms and seeds count, and must divide among them. Raises
        KeyboardInterrupt if the study was stopped before its end.
        """
        from graft.api.running import Run, train
        from graft.launching.enrolling import set_planned_trials

        run = run or Run()
        placement = run.placement()
        if trials is not None:
            set_planned_trials(self.database, self.name, trials)
        if self.status().state != "finished":
            train(self.database, self.name, run, placement)
        return self

    def extend(self, more: int, run: Run | None = None) -> Study:
        """Plan so many more trials, and train them; of an experiment all arms and seeds count."""
        if more < 1:
            raise StudyError(f"extend: {more!r} must be at least 1")
        return self.resume(self.status().progress.planned + more, run)

    def enqueue(self, *settings: Mapping[str, Any]) -> list[int]:
        """Add a trial for each of the settings, for `resume` to train; return their numbers."""
        from graft.launching.editing.enqueueing import enqueue

        return enqueue(self.database, self.name, settings)

    def wait(self, timeout: float | None = None) -> WaitResult:
        """Wait until the study is finished, failed or stopped, in any process, and return which.

        Returns "timeout" after `timeout` seconds, and "interrupted" if its process is gone.
        """
        from graft.stored.waiting import wait_for_study

        with open_reader(self.database) as reader:
            return wait_for_study(reader, self.name, timeout)

    def stop(self) -> None:
        """Ask the study to stop, in whatever process it runs; everything is kept."""
        request_stop(self.database, self.name)

    @contextmanager
    def _using_plugins(self) -> Generator[Reader]:
        """Yield a reader for a report, while the study's plug-ins are in use."""
        with open_reader(self.database) as reader, using(read_outside(reader, self.name)):
            self._note_look(reader, "report")  # before the report is written
            yield reader

    @contextmanager
    def _looking(self, what: str) -> Generator[Reader]:
        """Yield a reader, and record a look, unless the block raises, before its result is returned."""
        with open_reader(self.database) as reader:
            yield reader
            self._note_look(reader, what)

    def _note_look(self, reader: Reader, what: str) -> None:
        """Record a look if the study has a claim and is not finished."""
        from graft.stored.claims import note_look

        note_look(reader, self.database, self.name, f"{what} of Python")


def _ignore(step: int) -> None:
    """Do nothing, as the progress function of a caller who asked for none."""
