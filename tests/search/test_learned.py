"""The sampler `learned`: its prior, its portfolio, and what an adversarial prior costs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from search.samplers._features import Encoder, flatten
from search.samplers._prior import PACKAGED, Source, choose_portfolio, learn_prior, read_prior, write_prior
from spaces.errors import PluginError
from spaces.records import Trial
from tests.support.search_spaces import PLAIN, bowl, ended, search_once, space

pytestmark = pytest.mark.fast


def prior_of(path: Path, cost: Callable[[Trial], float]) -> str:
    """Write the prior of 200 random trials of PLAIN; the sampler that has it, as YAML."""
    here = space(PLAIN, seed=77, trials=200)
    trials = here.search.sampler.begin(here, []).ask(range(200))
    costs = np.array([cost(trial) for trial in trials])
    sources = [Source(task="other", configs=[flatten(trial.config) for trial in trials], costs=costs)]
    write_prior(learn_prior(sources), path)
    return f"{{learned: {{prior: {path}, portfolio: 4}}}}"


def first_good(values: list[float], level: float) -> int:
    """Return how many trials are asked until one is as good as the level."""
    return next((at for at, value in enumerate(values) if value <= level), len(values)) + 1


def test_a_good_prior_shortens_a_search_and_a_turned_one_costs_little(tmp_path: Path) -> None:
    """Over 16 seeds; the level is what a cold search of 64 trials finds in the median."""
    good = prior_of(tmp_path / "good.npz", bowl)
    bad = prior_of(tmp_path / "bad.npz", lambda trial: -bowl(trial))
    level = np.median([min(search_once(space(PLAIN, seed=100 + seed, trials=64), bowl)) for seed in range(16)])
    found = {
        sampler: np.median(
            [
                first_good(search_once(space(PLAIN, sampler=sampler, seed=seed, trials=128), bowl, lanes=16), level)
                for seed in range(16)
            ]
        )
        for sampler in ("random", good, bad)
    }
    assert 3 * found[good] <= found["random"]
    assert found[bad] <= 1.5 * found["random"]


def test_a_resumed_search_knows_what_the_first_was_told(tmp_path: Path) -> None:
    here = space(PLAIN, sampler=prior_of(tmp_path / "prior.npz", bowl), trials=300)
    first = here.search.sampler.begin(here, [])
    outcomes = [ended(trial, bowl(trial)) for trial in first.ask(range(128))]
    first.tell(outcomes)
    again = here.search.sampler.begin(here, outcomes)
    assert first.ask(range(128, 160)) == again.ask(range(128, 160))


def test_a_portfolio_is_chosen_greedily() -> None:
    regrets = np.array([[0.0, 0.4, 0.9], [0.9, 0.4, 0.0]])
    assert choose_portfolio(regrets, 3) == [1, 0, 2]


def test_columns_are_what_rows_differ_in() -> None:
    encoder = Encoder.of([{"a": 1, "b": "x", "c": 2}, {"a": 1, "b": "y"}])
    assert encoder.names == ("c", "b=x", "b=y")
    assert encoder.encode([{"b": "y", "c": 3}]).tolist() == [[3, 0, 1]]


def test_the_packaged_prior_is_small_and_reads() -> None:
    assert PACKAGED.stat().st_size <= 2e6
    prior = read_prior(PACKAGED)
    assert prior.rows.shape == (len(prior.quantiles), len(prior.encoder.names))
    assert {"", "transformer", "regressor"} <= prior.portfolios.keys()


def test_a_file_that_is_no_prior_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "prior.npz").write_text("no")
    here = space(PLAIN, sampler=f"{{learned: {{prior: {tmp_path}/prior.npz}}}}")
    with pytest.raises(PluginError, match="is no file of `search learn`"):
        here.search.sampler.begin(here, [])
