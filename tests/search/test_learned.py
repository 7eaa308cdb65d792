"""The sampler `learned`: its prior, its portfolio, and what an adversarial prior costs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from search.samplers._features import Encoder, flatten
from search.samplers._prior import PACKAGED, Source, choose_portfolio, learn_prior, read_prior, write_prior
from spaces.errors import PluginError
from spaces.records import Trial
from tests.support.search_spaces import CONDITIONAL, PLAIN, bowl, ended, search_once, space

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


@pytest.mark.long
def test_a_good_prior_shortens_a_search_and_a_turned_one_costs_little(tmp_path: Path) -> None:
    """Over 16 seeds; the level is what a cold search of 64 trials finds in the median."""
    good = prior_of(tmp_path / "good.npz", bowl)
    bad = prior_of(tmp_path / "bad.npz", lambda trial: -bowl(trial))
    level = np.median([min(search_once(space(PLAIN, seed=100 + seed, trials=64), bowl)) for seed in range(16)])
    medians = {
        sampler: np.median(
            [
                first_good(search_once(space(PLAIN, sampler=sampler, seed=seed, trials=128), bowl, lanes=16), level)
                for seed in range(16)
            ]
        )
        for sampler in ("random", good, bad)
    }
    assert 3 * medians[good] <= medians["random"]
    assert medians[bad] <= 1.5 * medians["random"]


@pytest.mark.long
def test_a_resumed_search_knows_what_the_first_was_told(tmp_path: Path) -> None:
    here = space(PLAIN, sampler=prior_of(tmp_path / "prior.npz", bowl), trials=300)
    first = here.search.sampler.begin(here, [])
    outcomes = [ended(trial, bowl(trial)) for trial in first.ask(range(128))]
    first.tell(outcomes)
    again = here.search.sampler.begin(here, outcomes)
    assert first.ask(range(128, 160)) == again.ask(range(128, 160))


@pytest.mark.long
def test_a_resumed_search_asks_nothing_again(tmp_path: Path) -> None:
    """Its pool is the one of the first search, of which the best have been asked; eight trials are still open."""
    here = space(PLAIN, sampler=prior_of(tmp_path / "prior.npz", bowl), trials=300)
    first = here.search.sampler.begin(here, [])
    early = [ended(trial, bowl(trial)) for trial in first.ask(range(32))]
    first.tell(early)
    late = first.ask(range(32, 72))
    outcomes = [*early, *(ended(trial, bowl(trial)) for trial in late[:32])]
    waiting = [replace(ended(trial, None), state="queued") for trial in late[32:]]
    again = here.search.sampler.begin(here, [*outcomes, *waiting]).ask(range(72, 120))
    draws = [tuple(trial.draws.values()) for trial in (*outcomes, *waiting, *again)]
    assert len(set(draws)) == len(draws)


def test_before_anything_is_told_the_prior_chooses_three_trials_for_each_of_the_portfolio(tmp_path: Path) -> None:
    """So that a wrong prior costs at most these trials, however many lanes there are."""
    here = space(PLAIN, sampler=prior_of(tmp_path / "prior.npz", bowl), trials=300)
    cold = space(PLAIN, trials=300)
    asked = zip(
        here.search.sampler.begin(here, []).ask(range(256)), cold.search.sampler.begin(cold, []).ask(range(256)),
        strict=True,
    )  # fmt: skip
    assert [warm.number for warm, random in asked if warm.draws != random.draws] == [*range(0, 24, 2)]


@pytest.mark.long
@pytest.mark.parametrize("body", [PLAIN, CONDITIONAL])
def test_late_pools_hold_trials_of_the_space(tmp_path: Path, body: str) -> None:
    """The prior is no longer asked; the numbers of a configuration are drawn again, its choices are not."""
    cost = np.random.default_rng(0)
    group = 1 if body == PLAIN else 64
    here = space(body, sampler=prior_of(tmp_path / "prior.npz", bowl), trials=2000, group=group)
    trials = here.search.sampler.begin(here, []).ask(range(600))
    outcomes = [ended(trial, cost.random()) for trial in trials]
    late = here.search.sampler.begin(here, outcomes).ask(range(600, 700))
    assert late == [here.resolve(trial.number, trial.draws) for trial in late]
    assert len({tuple(trial.draws.values()) for trial in late}) == 100
    shared = [draw.name for draw in here.group_draws]
    for name in shared if group > 1 else []:
        assert len({(trial.group, trial.draws[name]) for trial in late}) == len({trial.group for trial in late})


def test_a_space_that_draws_nothing_is_trained_as_it_is(tmp_path: Path) -> None:
    fixed = PLAIN.replace('10 ** uniform(-5, -1), beta1: "uniform(0, 1)", beta2: "uniform(0, 1)"', "0.01")
    here, random = space(fixed, sampler=prior_of(tmp_path / "prior.npz", bowl)), space(fixed)
    strategy = here.search.sampler.begin(here, [])
    trials = strategy.ask(range(12))
    strategy.tell([ended(trial, 0.5) for trial in trials])
    assert trials + strategy.ask(range(12, 16)) == random.search.sampler.begin(random, []).ask(range(16))


def test_trials_of_one_configuration_are_no_prior() -> None:
    alike = Source(task="add", configs=[{"model": "minimal", "model.width": 8}] * 9, costs=np.arange(9.0))
    with pytest.raises(PluginError, match="the trials differ in no setting: there is nothing to learn"):
        learn_prior([alike])


def test_the_portfolio_of_a_model_has_its_configurations_alone() -> None:
    """One study drew its model, and the first of them is the worse one; another study had that one alone."""
    both = [{"model": ("minimal", "transformer")[at % 2], "rate": float(at)} for at in range(80)]
    one = [{"model": "minimal", "rate": float(at)} for at in range(40)]
    costs = np.array([at + 1000.0 * (row["model"] == "minimal") for at, row in enumerate(both)])
    sources = [Source(task="add", configs=both, costs=costs), Source(task="mano", configs=one, costs=np.arange(40.0))]
    prior = learn_prior(sources)
    assert list(prior.portfolios) == ["", "minimal", "transformer"]
    for model in ("minimal", "transformer"):
        column = prior.encoder.names.index(f"model={model}")
        assert prior.portfolio_of(model)[:, column].all()
    alone = learn_prior(sources[1:]).portfolio_of("minimal")
    assert len(prior.portfolio_of("minimal")) == len(alone) + 2  # the best twentieth of 40 trials of each


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


def test_without_scikit_learn_one_line_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sampler = prior_of(tmp_path / "prior.npz", bowl)
    for module in [name for name in sys.modules if name.partition(".")[0] == "sklearn"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    (tmp_path / "other.npz").write_bytes((tmp_path / "prior.npz").read_bytes())  # its forest has not been fitted yet
    here = space(PLAIN, sampler=sampler.replace("prior.npz", "other.npz"))
    with pytest.raises(PluginError) as caught:
        here.search.sampler.begin(here, [])
    assert str(caught.value) == "learning from trials needs scikit-learn: pip install 'graft-search[learn]'"


@pytest.mark.long
def test_help_and_other_samplers_do_not_import_scikit_learn(tmp_path: Path) -> None:
    code = """
import sys
import graft
from cli.main import main

def search(*words):
    sys.argv = ["search", *words]
    try:
        main()
    except SystemExit as leaving:
        assert not leaving.code, leaving.code

search("--help")
search("launch", "--help")
search("launch", "quick/set_complement", "--trials", "2", "--device", "cpu", "--workers", "1",
       "--set", "training.steps=4", "--set", "training.validate_every=4", "--set", "search.sampler=random")
print([name for name in sys.modules if name.partition(".")[0] == "sklearn"])
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
