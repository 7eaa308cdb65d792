"""The interfaces that stored studies and studies of a server have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, TypeVar, overload

import polars as pl

from graft.api.display import Figures, table
from graft.api.trials import TrialRecord
from graft.stored.status import Status
from graft.stored.trials import StudyTable

S = TypeVar("S")
T = TypeVar("T")


class ReadableStudies(Mapping[str, S]):
    """Studies by name, oldest first; each is read when it is used."""

    @overload
    def get(self, key: str, /) -> S | None: ...
    @overload
    def get(self, key: str, /, default: S | T) -> S | T: ...
    def get(self, key: str, /, default: object = None) -> object:
        """Return a study, or the default if there is none."""
        if key not in self:
            return default
        return self[key]

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return name in list(self)


class ReadableStudy(ABC):
    """One study by its name; each call reads its present state.

    Reading results of an unfinished study that has a claim records a look.
    """

    name: str

    @abstractmethod
    def status(self) -> Status:
        """Return the study's status: trials by state, the best one, rate, note and tags."""

    def trials(self, where: str | None = None, sort: str | None = None, top: int | None = None) -> pl.DataFrame:
        """Return one row per trial, with a column `params.PATH` for each value that was drawn.

        `where` and `sort` are SQL over the columns and the paths of knobs, without functions over
        HTTP. `sort="objective"` puts the best trial first. `top` keeps the first rows, by default
        those of the best objective; by the objective, trials that break a constraint are left out.
        """
        return self._read("trials", where=where, sort=sort, top=top)

    def metrics(self, names: Sequence[str] | None = None) -> pl.DataFrame:
        """Return number, step, name, variant, condition and value of the stored validations."""
        return self._read("metrics", name=names)

    def architectures(self) -> pl.DataFrame:
        """Return a row for each non-linearity that trials learned, with knots and objective."""
        return self._read("architectures")

    def front(self) -> pl.DataFrame:
        """Return the Pareto front's trials, the best first; raises StudyError for one objective."""
        return self._read("front")

    @property
    def best(self) -> TrialRecord | None:
        """The feasible trial of the best objective, the first of several.

        None without such a trial or a single objective, and before the end of a study with a claim.
        """
        number = self.status().progress.best_number
        return None if number is None else self.show(number)

    @abstractmethod
    def show(self, number: int) -> TrialRecord:
        """Return one trial; raises StudyError if the study has none of this number."""

    @abstractmethod
    def figure(self, kind: str) -> Figures:
        """Return a section's figures ("dropout"); raises StudyError with the choices."""

    @abstractmethod
    def _read(self, kind: StudyTable, **query: Any) -> pl.DataFrame:
        """Return a table of the study; `query` is for `graft.stored.trials.read_table`."""

    def __repr__(self) -> str:
        status = self.status()
        return f"<study {self.name}: {status.state}, {status.progress.ended:,} of {status.progress.planned:,} trials>"

    def _repr_html_(self) -> str:
        status = self.status()
        progress = status.progress
        rows: list[tuple[str, object]] = [
            ("state", status.state),
            ("trials", f"{progress.ended:,} of {progress.planned:,}"),
            *((state, count) for state, count in sorted(progress.counts.items())),
            ("objective", f"{status.direction} {progress.objective}"),
        ]
        if progress.best is not None:
            rows.append(("best", f"{progress.best:.6g} (trial {progress.best_number})"))
        rows += [("note", status.note)] if status.note else []
        rows += [("tags", ", ".join(status.tags))] if status.tags else []
        return f"<b>study {escape(self.name)}</b>{table(rows)}"
