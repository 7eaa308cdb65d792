"""What the pages show of a study's trials, however many there are: a sample, taken by the database, and the best."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from graft.stored.params import Renewal
from graft.stored.trials import PARAMS_PREFIX, unpack_params
from storage.frames.study import StudyReader

MOST = 1_500
"""Trials of a sample."""
_BEST = 30
"""The best trials, which every sample has."""
_MOST_WORDS = 12
_WITH_PARAMS = ("number", "state", "objective", "second_objective", "params")


@dataclass(frozen=True)
class Sample:
    """Trials that have an objective, by number."""

    trials: pl.DataFrame
    """number, state, objective, second_objective and a column for each of `params`."""
    every: int
    """1: all of them; k: those whose number is divisible by k, and the best."""

    @property
    def note(self) -> str:
        """What of the study is shown, for the page; empty: all of it."""
        if self.every == 1:
            return ""
        return f"A sample: every {self.every:,}th trial and the best {_BEST}, {self.trials.height:,} in all."


def read_sample(study: StudyReader) -> Sample:
    """Return a sample of the study's trials with an objective, with the best among them."""
    scored = "objective IS NOT NULL"
    highest = study.count_numbers()
    every = max(1, -(-highest // MOST))
    # The numbers are written out: to find them by their remainders the database would read every trial.
    numbers = ", ".join(map(str, range(0, highest, every))) or "NULL"
    taken = study.trials(f"number IN ({numbers}) AND {scored}", columns=_WITH_PARAMS)
    best = study.trials(scored, top=_BEST, columns=_WITH_PARAMS)
    both = pl.concat([taken, best]).unique("number", keep="first").sort("number")
    return Sample(unpack_params(Renewal(study)(both)), every)


def numeric_params(trials: pl.DataFrame) -> list[str]:
    """Return the columns of params that are numbers which differ."""
    columns = [name for name in trials.columns if name.startswith(PARAMS_PREFIX)]
    return [name for name in columns if trials[name].dtype.is_numeric() and trials[name].drop_nulls().n_unique() > 1]


def word_params(trials: pl.DataFrame) -> dict[str, list[str]]:
    """Return the columns of params that are texts which differ, each with its texts, if a chart has room for them."""
    columns = [name for name in trials.columns if name.startswith(PARAMS_PREFIX)]
    found = {name: sorted(set(trials[name].drop_nulls())) for name in columns if trials[name].dtype == pl.String}
    return {name: words for name, words in found.items() if 1 < len(words) <= _MOST_WORDS}
