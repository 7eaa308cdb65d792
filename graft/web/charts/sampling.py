"""The trials of a study that pages show: a sample, taken by the database, and the best."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl
import polars.selectors as cs

from graft.stored.params import PARAMS_PREFIX, StoredParams
from storage.frames.study import StudyReader

MOST = 1_500
"""Trials of a sample."""
_BEST = 30
"""The best trials, which every sample has."""
_MOST_WORDS = 12
_FACTOR, _DIVISOR = 2_654_435_761, 65_536
"""The hash of numbers that draws trials (Knuth, TAOCP 3, 6.4): each k-th may be of one arm."""
_WITH_PARAMS = ("number", "state", "objective", "second_objective", "params")


@dataclass(frozen=True)
class Sample:
    """Feasible trials that have an objective, by number."""

    trials: pl.DataFrame
    """number, state, objective, second_objective and a column for each of `params`."""
    every: int
    """1 for all of them; k for one in k, drawn by a hash of the numbers, and the best."""

    @property
    def note(self) -> str:
        """The sentence of a page that says how many are shown; empty for all."""
        if self.every == 1:
            return ""
        return f"A sample: one trial in {self.every:,} and the best {_BEST}, {self.trials.height:,} in all."


def read_sample(study: StudyReader) -> Sample:
    """Return a sample of the study's feasible trials with an objective, the best among them."""
    scored = "objective IS NOT NULL AND feasible IS NOT FALSE"
    highest = study.count_numbers()
    every = max(1, -(-highest // MOST))
    # The numbers are written out: to find them by a hash the database would read every trial.
    drawn = pl.int_range(highest, eager=True)
    drawn = drawn.filter(drawn * _FACTOR // _DIVISOR % every == 0)
    numbers = ", ".join(map(str, drawn)) or "NULL"
    taken = study.trials(f"number IN ({numbers}) AND {scored}", columns=_WITH_PARAMS)
    best = study.trials(scored, top=_BEST, columns=_WITH_PARAMS)
    both = pl.concat([taken, best]).unique("number", keep="first").sort("number")
    return Sample(StoredParams(study).unpack(both), every)


def spell_draw(every: int) -> str:
    """Return the SQL condition that a trial is among one in `every`, as in a sample."""
    return f"(number * {_FACTOR} / {_DIVISOR}) % {every} = 0"


def numeric_params(trials: pl.DataFrame) -> list[str]:
    """Return the columns of params that are numbers which differ."""
    drawn = trials.select(cs.starts_with(PARAMS_PREFIX) & cs.numeric())
    return [column.name for column in drawn if column.drop_nulls().n_unique() > 1]


def word_params(trials: pl.DataFrame) -> dict[str, list[str]]:
    """Return the columns of params that are differing texts, with these, if a chart has room."""
    drawn = trials.select(cs.starts_with(PARAMS_PREFIX) & cs.string())
    texts = {column.name: sorted(set(column.drop_nulls())) for column in drawn}
    return {name: words for name, words in texts.items() if 1 < len(words) <= _MOST_WORDS}
