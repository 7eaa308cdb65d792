"""What the pages show of a study's trials, however many there are: a sample, taken by the database, and the best."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from graft.stored.params import PARAMS_PREFIX, StoredParams
from storage.frames.study import StudyReader

MOST = 1_500
"""Trials of a sample."""
_BEST = 30
"""The best trials, which every sample has."""
_MOST_WORDS = 12
_FACTOR, _DIVISOR = 2_654_435_761, 65_536
"""The hash of a number by which trials are drawn (Knuth, TAOCP 3, 6.4): each k-th trial may be of one arm."""
_WITH_PARAMS = ("number", "state", "objective", "second_objective", "params")


@dataclass(frozen=True)
class Sample:
    """Trials that have an objective, by number."""

    trials: pl.DataFrame
    """number, state, objective, second_objective and a column for each of `params`."""
    every: int
    """1: all of them; k: one in k, drawn by a hash of the numbers, and the best."""

    @property
    def note(self) -> str:
        """What of the study is shown, for the page; empty: all of it."""
        if self.every == 1:
            return ""
        return f"A sample: one trial in {self.every:,} and the best {_BEST}, {self.trials.height:,} in all."


def read_sample(study: StudyReader) -> Sample:
    """Return a sample of the study's trials with an objective, with the best among them."""
    scored = "objective IS NOT NULL"
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
    columns = [name for name in trials.columns if name.startswith(PARAMS_PREFIX)]
    return [name for name in columns if trials[name].dtype.is_numeric() and trials[name].drop_nulls().n_unique() > 1]


def word_params(trials: pl.DataFrame) -> dict[str, list[str]]:
    """Return the columns of params that are texts which differ, each with its texts, if a chart has room for them."""
    columns = [name for name in trials.columns if name.startswith(PARAMS_PREFIX)]
    found = {name: sorted(set(trials[name].drop_nulls())) for name in columns if trials[name].dtype == pl.String}
    return {name: words for name, words in found.items() if 1 < len(words) <= _MOST_WORDS}
