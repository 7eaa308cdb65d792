"""One study as it is read: its trials, metrics, workers, sources and learned non-linearities."""

from __future__ import annotations

import json
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from typing import Any, final

import polars as pl

from spaces.bounds import MOST_TRIALS
from spaces.errors import RowError, StudyError
from spaces.plugins.bundles import Bundle
from spaces.plugins.digests import Data
from spaces.reading.transfer_section import has_one_direction
from spaces.records import State
from storage import sources
from storage.control.stored_trials import count_trials, find_best
from storage.frames.answers import BATCH, Answers, quote
from storage.frames.architectures import LearnedArchitectures
from storage.frames.columns import (
    CHANGES,
    CLAIM_EVENTS,
    FINGERPRINTS,
    METRICS,
    REVEALS,
    SOURCES,
    TRIAL_NOTES,
    TRIALS,
    WORKERS,
    Schema,
)
from storage.frames.paths import spell_paths
from storage.schema import trial_id
from storage.sources import StoredBundle
from storage.test_sets import unseal

BATCH_OF_TRIALS = 1_000
"""Trials that are read at once: their JSON is some thousand bytes each."""
ALL_NUMBERS = range(MOST_TRIALS)
_HAS_SCORE = "objective IS NOT NULL AND feasible IS NOT FALSE"
"""The condition of the trials that are ranked."""


@final
class StudyReader:
    """Reads the rows of one study."""

    def __init__(self, answers: Answers, row: dict[str, Any]) -> None:
        self.row = row
        """The study's own row of `studies`, as it was when this reader was made."""
        self._answers = answers
        self._id: int = row["id"]

    def counts(self) -> dict[State, int]:
        """Count the trials in each state that occurs."""
        with self._answers.transaction() as connection:
            return count_trials(connection, self._id)

    def count_numbers(self) -> int:
        """Return how many numbers its trials have had: one more than the highest."""
        sql = f"SELECT coalesce(max(number) + 1, 0) FROM trials WHERE study_id = {self._id}"
        return self._answers.read(sql, {"n": pl.Int64()}).item()

    def best(self) -> tuple[float, int] | None:
        """Return feasible trials' best objective and the lowest number that has it; or None."""
        with self._answers.transaction() as connection:
            return find_best(connection, self._id, self.row["direction"])

    def holder(self) -> str | None:
        """Return the process that holds the study's lock, whatever its state says, or None."""
        with self._answers.transaction() as connection:
            return self._answers.database.locks.holder(connection, self._id, self.row["name"])

    def trials(
        self,
        where: str | None = None,
        sort: str | None = None,
        top: int | None = None,
        columns: Sequence[str] = tuple(TRIALS),
    ) -> pl.DataFrame:
        """Return the trials, by number; columns TRIALS or some of them (`config` is the largest).

        `where` is an SQL condition and `sort` an SQL ORDER BY over the columns of trials, with
        `params.<dotted path>` for a sampled value, and the path alone for a trial's value, drawn or
        not: `objective < 0.1 AND optimizer.learning_rate > 1e-3`, `steps DESC`. NULL sorts last.
        `top` keeps the first rows.

        `sort="objective"` puts the best trial first whatever the study's direction, and so does
        `second_objective`; `objective ASC` and `objective DESC` are plain SQL. `top` with
        `sort="objective"`, or without `sort`, leaves out trials that break a constraint. Raises
        StudyError for `sort="objective"` if some tasks minimize and others maximize.
        """
        return pl.concat(list(self.trial_batches(where, sort, top, columns)))

    def trial_batches(
        self,
        where: str | None = None,
        sort: str | None = None,
        top: int | None = None,
        columns: Sequence[str] = tuple(TRIALS),
    ) -> Iterator[pl.DataFrame]:
        """Return the rows of `trials`, BATCH_OF_TRIALS at a time; at least one frame."""
        self._check_order(sort)
        condition = self._spell_condition(where)
        is_ranking = top is not None and (sort is None or _bare(sort) == "objective")
        if is_ranking:
            sort = "objective"
            condition += " AND feasible IS NOT FALSE"
        limit = f" LIMIT {int(top)}" if top is not None else ""
        # By number, SQLite reads a whole study however few trials the condition leaves; by id,
        # which is the same order, it sorts a whole study without a condition. The index by
        # objectives has equal ones by number.
        last = "id" if where and not is_ranking else "number"
        schema = {name: TRIALS[name] for name in columns}
        sql = f"{self._choose(columns)}{condition} ORDER BY {self._spell_order(sort)}{last}{limit}"
        return self._answers.batches(sql, schema, BATCH_OF_TRIALS)

    def trial_page(
        self, where: str | None, sort: str | None, after: int, rows: int, columns: Sequence[str]
    ) -> pl.DataFrame:
        """Return at most `rows` of the trials that `trials` gives, by number or by `sort`.

        `after`: the last number before the page, or -1; by `sort`, the number of trials before it.
        """
        self._check_order(sort)
        condition = self._spell_condition(where)
        if sort:
            order = self._spell_order(sort)
            position = f" ORDER BY {order}id LIMIT {int(rows)} OFFSET {int(after)}"
        else:
            position = f" AND number > {int(after)} ORDER BY number LIMIT {int(rows)}"
        schema = {name: TRIALS[name] for name in columns}
        return self._answers.read(f"{self._choose(columns)}{condition}{position}", schema)

    def numbers(self, where: str | None = None, sort: str | None = None) -> pl.Series:
        """Return the numbers of the trials that `trials` gives, in its order.

        So many fit: a condition on a path has every trial read, and counting them apart would, too.
        """
        self._check_order(sort)
        condition, order = self._spell_condition(where), self._spell_order(sort)
        sql = f"{self._choose(['number'])}{condition} ORDER BY {order}number"
        return self._answers.read(sql, {"number": pl.Int64()})["number"]

    def check_ranking(self) -> None:
        """Raise StudyError if some tasks minimize and others maximize, so that no order has the best first."""
        if not has_one_direction(self.row["space"]):
            raise StudyError(
                f"study {self.row['name']!r}: some of its tasks are minimized and others maximized, so that no order "
                "has the best first; choose a task by where (transfer.task = 'NAME'), and sort by 'objective ASC' or "
                "'objective DESC'"
            )

    def values(self, expression: str, where: str | None = None) -> pl.DataFrame:
        """Return value, an SQL expression as in `trials`, and objective of feasible trials with one."""
        spelled = spell_paths(self._answers, self._id, expression)
        condition = self._spell_condition(where)
        columns = self._choose([f"({spelled}) AS value", "objective"])
        return self._answers.infer(f"{columns} AND {_HAS_SCORE}{condition}")

    def scores(self) -> pl.DataFrame:
        """Return number and objective of the feasible trials that have one, in no order."""
        schema = {name: TRIALS[name] for name in ("number", "objective")}
        return self._answers.read(f"{self._choose(tuple(schema))} AND {_HAS_SCORE}", schema)

    def contenders(self) -> pl.DataFrame:
        """Return number, objective and second_objective of feasible trials on the Pareto front."""
        falls = self.row["direction"] == "minimize"
        best = "min" if str(self.row["second_objective"]).startswith("minimize") else "max"
        # From the best objective on, a trial of the front is the best so far in the second one.
        order = "objective, number" if falls else "objective DESC, number DESC"
        window = f"OVER (ORDER BY {order} ROWS UNBOUNDED PRECEDING)"
        leading = f"{best}(second_objective) {window} AS best_so_far"
        schema = {name: TRIALS[name] for name in ("number", "objective", "second_objective")}
        ranked = f"{self._choose([*schema, leading])} AND {_HAS_SCORE} AND second_objective IS NOT NULL"
        chosen = f"SELECT {', '.join(schema)} FROM ({ranked}) AS ranked"
        return self._answers.read(f"{chosen} WHERE second_objective = best_so_far", schema)

    def metrics(self, names: Sequence[str] | None = None, numbers: range = ALL_NUMBERS) -> pl.DataFrame:
        """Return trials' metrics by number, step and name; columns METRICS. `names` None: all."""
        return pl.concat(list(self.metric_batches(names, numbers)))

    def metric_batches(
        self, names: Sequence[str] | None = None, numbers: range = ALL_NUMBERS
    ) -> Generator[pl.DataFrame]:
        """Yield rows of `metrics`, about BATCH a frame, a trial's in one; at least one frame."""
        if isinstance(names, str):  # whose letters would be names
            raise StudyError(f"names: {names!r} is one text; write [{names!r}]")
        first = trial_id(self._id, 0)
        mine = f"trial_id >= {first + numbers.start} AND trial_id < {first + numbers.stop}"
        named = f" AND name IN ({', '.join(map(quote, names))})" if names else ""
        columns = f"trial_id - {first} AS number, step, name, variant, condition, value"
        # Texts are sorted here: a server's order of them is that of its language.
        keys = ("number", "step", "name", "variant", "condition")
        rest = pl.DataFrame(schema=METRICS)
        sql = f"SELECT {columns} FROM metrics WHERE {mine}{named} ORDER BY trial_id"
        for batch in self._answers.batches(sql, METRICS, BATCH):
            both = pl.concat([rest, batch])
            is_last = pl.col("number") == pl.col("number").last()
            rest = both.filter(is_last)
            if rest.height < both.height:
                yield both.filter(~is_last).sort(keys)
        yield rest.sort(keys)

    def workers(self) -> pl.DataFrame:
        """Return the workers that trained for the study, in all its launches; columns WORKERS.

        `steps` are of its lanes, `room` the same without a free one: their sums give utilisation.
        """
        return self._read_table("workers", WORKERS, "id")

    def count_steps(self) -> tuple[int, int]:
        """Return the model-steps of all launches, and those without a free lane."""
        counts = self.workers()
        return int(counts["steps"].sum()), int(counts["room"].sum())

    def sources(self) -> pl.DataFrame:
        """Return the files of the study's plug-ins from outside; columns SOURCES."""
        return self._read_table("sources", SOURCES, "bundle, module")

    def bundles(self, digests: Collection[str] = ()) -> tuple[Bundle, ...]:
        """Return the outside plug-ins, in versions of these `digests`; RowError for edited ones."""
        return tuple(sources.choose(self.stored_bundles(), digests))

    def stored_bundles(self) -> list[StoredBundle]:
        """Return all versions of the outside plug-ins; raises StorageError as `bundles` does."""
        return list(sources.read(self.sources().iter_rows(named=True)))

    def data(self) -> Mapping[str, Sequence[Data]] | None:
        """Return name -> versions of the trials' files; None if unknown, RowError if edited."""
        sql = f"SELECT data FROM studies WHERE id = {self._id}"
        text = self._answers.read(sql, {"data": pl.String()}).item()
        if text is None:
            return None
        try:
            data: dict[str, Any] = json.loads(text)
            return {name: [Data.from_json(version) for version in versions] for name, versions in data.items()}
        except (ValueError, TypeError, KeyError, AttributeError):
            name = self.row["name"]
            raise RowError(f"the data of study {name} is not what Graft writes there") from None

    def fingerprints(self) -> pl.DataFrame:
        """Return the conditions of the trials' numbers, by fingerprint; columns FINGERPRINTS."""
        return self._read_table("fingerprints", FINGERPRINTS, "number")

    def changes(self) -> pl.DataFrame:
        """Return the changes of the study's space since its launch, in order; columns CHANGES."""
        return self._read_table("changes", CHANGES, "number")

    def claim_events(self) -> pl.DataFrame:
        """Return the locks, edits and looks of claims; columns CLAIM_EVENTS."""
        return self._read_table("claim_events", CLAIM_EVENTS, "number")

    def reveals(self) -> pl.DataFrame:
        """Return the openings of the study's test results, and by whom; columns REVEALS."""
        return self._read_table("reveals", REVEALS, "number")

    def trial_notes(self) -> pl.DataFrame:
        """Return stars, tags and notes of trials that have any, by number; columns TRIAL_NOTES."""
        return self._read_table("trial_notes", TRIAL_NOTES, "number")

    def test_results(self) -> pl.DataFrame | None:
        """Return metrics on test sets, columns METRICS; None before the study is revealed."""
        if self.reveals().is_empty():
            return None
        mine = f"study_id = {self._id} ORDER BY number, step"
        kept = self._answers.read(
            f"SELECT number, step, sealed FROM test_results WHERE {mine}",
            {"number": pl.Int64(), "step": pl.Int64(), "sealed": pl.String()},
        )
        results = ((number, step, unseal(sealed)) for number, step, sealed in kept.iter_rows())
        rows = [(number, step, *metric) for number, step, metrics in results for metric in metrics]
        return pl.DataFrame(rows, schema=METRICS, orient="row")

    @property
    def architectures(self) -> LearnedArchitectures:
        """The non-linearities that its trials learned."""
        return LearnedArchitectures(self._answers, self._id, self.row["direction"])

    def _choose(self, columns: Sequence[str]) -> str:
        return f"SELECT {', '.join(columns)} FROM trials WHERE study_id = {self._id}"

    def _read_table(self, table: str, schema: Schema, order: str) -> pl.DataFrame:
        mine = f"FROM {table} WHERE study_id = {self._id} ORDER BY {order}"
        return self._answers.read(f"SELECT {', '.join(schema)} {mine}", schema)

    def _spell_condition(self, where: str | None) -> str:
        return f" AND ({spell_paths(self._answers, self._id, where)}\n)" if where else ""

    def _check_order(self, sort: str | None) -> None:
        if sort and _bare(sort) == "objective":
            self.check_ranking()

    def _spell_order(self, sort: str | None) -> str:
        """Return an ORDER BY but for its last column; NULL sorts last, the best objective first."""
        if not sort:
            return ""
        directions = {
            "objective": str(self.row["direction"]),
            "second_objective": str(self.row["second_objective"]).partition(" ")[0],
        }
        if directions.get(_bare(sort)) == "maximize":
            sort = f"{_bare(sort)} DESC"
        nulls = "" if "nulls" in sort.lower() else "NULLS LAST"
        return f"{spell_paths(self._answers, self._id, sort)}\n{nulls}, "


def _bare(sort: str) -> str:
    """Return an ORDER BY stripped and in lower case, a column's name if it names one alone."""
    return sort.strip().lower()
