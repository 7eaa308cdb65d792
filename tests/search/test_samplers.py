"""Every sampler keeps one contract; the laws of each are tested after it."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import optuna
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from scipy.stats import kstest

from search.samplers import Sampler
from search.samplers._memory import BoundedMemory, Observation, count_dominators
from search.samplers._optuna import Limits, OptunaSampler, OptunaStrategy
from search.samplers._points import RandomPoints
from search.samplers.qmc import SobolPoints
from spaces import plugins
from spaces.errors import SamplerError, SpaceError
from spaces.records import Outcome, Trial
from spaces.seeds import GAMMA, mix64
from spaces.space import Space
from tests.support.plug_ins import example
from tests.support.search_spaces import CONDITIONAL, PLAIN, bowl, ended, search_once, space

pytestmark = pytest.mark.fast

EVERY = [name for name in plugins.names(Sampler) if name != "optunahub"]
"""One of OptunaHub is what its package makes of it."""
CONFIGURATIONS = {name: json.dumps(example(Sampler, name)) for name in EVERY}
"""As they stand in a space: JSON is YAML."""
LEARNING = [name for name in EVERY if plugins.load(Sampler, name).learns]


def conditional(sampler: str, **settings: int) -> Space:
    """Return the space with groups of four, choices and conditional draws."""
    return space(CONDITIONAL, sampler=CONFIGURATIONS[sampler], **{"trials": 20, "group": 4, **settings})


def run(space: Space, history: Sequence[Outcome] = (), numbers: range = range(20)) -> list[Trial]:
    """Return a search of two lanes in which every fifth trial diverges."""
    strategy = space.search.sampler.begin(space, history)
    trials: list[Trial] = []
    for first in range(numbers.start, numbers.stop, 2):
        asked = strategy.ask(range(first, min(first + 2, numbers.stop)))
        trials += asked
        strategy.tell([outcome(trial) for trial in asked])
    return trials


def outcome(trial: Trial) -> Outcome:
    """Return the outcome of a trial: a function of its draws alone, but for every fifth."""
    return ended(trial, None if trial.number % 5 == 0 else sum(trial.draws.values()))


@pytest.mark.parametrize("name", [name for name in EVERY if name != "grid"])
def test_choices_take_every_option(name: str) -> None:
    trials = run(conditional(name))
    assert {trial.config["model"]["scorer"]["name"] for trial in trials} == {"softmax", "average"}


@pytest.mark.parametrize("name", EVERY)
def test_a_group_shares_its_draws_and_groups_differ(name: str) -> None:
    widths = [trial.draws["group.width"] for trial in run(conditional(name))]
    groups = [set(widths[first : first + 4]) for first in range(0, 20, 4)]
    assert all(len(group) == 1 for group in groups)
    # The grid gives a point of the group's draws 16 groups in a row; children may inherit a parent's.
    assert len(set(widths)) == {"grid": 1, "nsga2": 2}.get(name, 5)


@pytest.mark.parametrize("name", [name for name in EVERY if name != "grid"])
def test_another_seed_gives_other_trials(name: str) -> None:
    draws = [run(conditional(name, seed=seed), numbers=range(4))[0].draws for seed in (0, 1)]
    assert draws[0] != draws[1]


@pytest.mark.long
@pytest.mark.parametrize("name", ["tpe", "cmaes", "nsga2"])
def test_learning_beats_random_search_over_five_seeds(name: str) -> None:
    wins = 0
    for seed in range(5):
        settings = {"trials": 120, "seed": seed}
        learnt = search_once(space(PLAIN, sampler=CONFIGURATIONS[name], **settings), bowl, lanes=4)
        wins += np.mean(learnt[-40:]) < 0.5 * np.mean(search_once(space(PLAIN, **settings), bowl)[-40:])
    assert wins == 5


@pytest.mark.long
def test_a_gaussian_process_finds_what_random_search_does_not() -> None:
    learnt = search_once(space(PLAIN, sampler=CONFIGURATIONS["gp"], trials=24), bowl, lanes=2)
    assert min(learnt) < 0.5 * min(search_once(space(PLAIN, trials=24), bowl))


@pytest.mark.parametrize("name", LEARNING)
def test_a_restart_goes_on_where_the_search_was_good(name: str) -> None:
    """What is asked next is better than a random history; a Gaussian process explores with all lanes but the first."""
    here = space(PLAIN, sampler=CONFIGURATIONS[name], trials=60)
    random = space(PLAIN, trials=60)
    history = [ended(trial, corner(trial)) for trial in random.search.sampler.begin(random, []).ask(range(60))]
    asked = here.search.sampler.begin(here, history).ask(range(60, 61 if name == "gp" else 68))
    assert np.mean([corner(trial) for trial in asked]) < 0.45 * np.mean([entry.objective for entry in history])


def corner(trial: Trial) -> float:
    """Return an objective that is best near a corner of the cube."""
    return sum((u - 0.9) ** 2 for u in trial.draws.values())


# ------------------------------------------------------------------------------------------------- random, qmc, grid


def test_random_coordinates_are_uniform_and_unrelated() -> None:
    here = conditional("random")
    points = RandomPoints(3, here.trial_draws).rows(0, 20_000)
    assert min(kstest(column, "uniform").pvalue for column in points.T) > 1e-3
    correlations = np.corrcoef(points.T) - np.eye(points.shape[1])
    assert np.abs(correlations).max() < 0.03


def test_random_coordinates_are_the_splitmix_stream_of_their_key() -> None:
    points = RandomPoints(3, conditional("random").trial_draws[:1])
    key = int(points._keys[0])
    expected = [(mix64(key + (n + 1) * GAMMA) >> 11) / 2**53 for n in range(5, 9)]
    assert points.rows(5, 4)[:, 0].tolist() == expected


def test_a_new_draw_leaves_the_coordinates_of_the_others_alone() -> None:
    draws = conditional("random").trial_draws
    assert (RandomPoints(0, draws).rows(7, 3)[:, 1:] == RandomPoints(0, draws[1:]).rows(7, 3)).all()


def test_sobol_points_fill_every_part_of_each_axis() -> None:
    points = SobolPoints(6, 1).rows(0, 256)
    for column in points.T:
        assert sorted((column * 256).astype(int)) == list(range(256))


def test_sobol_points_do_not_depend_on_how_they_are_asked_for() -> None:
    whole = SobolPoints(3, 5).rows(0, 64)
    parts = SobolPoints(3, 5)
    for first, count in ((40, 9), (0, 3), (3, 1), (3, 61)):
        assert (parts.rows(first, count) == whole[first : first + count]).all()


def test_the_grid_is_the_product_of_all_options_once() -> None:
    here = space(CONDITIONAL, sampler="{grid: {points: 3}}", group=12)
    strategy = here.search.sampler.begin(here, [])
    size = 3 * 2 * 3 * 3 * 2 * 3 * 3
    trials = strategy.ask(range(size + 10))
    assert len(trials) == strategy.size == size
    assert strategy.ask(range(size, size + 1)) == []
    counts = Counter(tuple(sorted(trial.draws.items())) for trial in trials)
    thirds, halves = [1 / 6, 1 / 2, 5 / 6], [1 / 4, 3 / 4]
    names = [draw.name for draw in (*here.group_draws, *here.trial_draws)]
    axes = [halves if draw.choices else thirds for draw in (*here.group_draws, *here.trial_draws)]
    for point in itertools.product(*axes):
        everything = dict(zip(names, point, strict=True))
        active = here.resolve(0, everything).draws
        counts[tuple(sorted(active.items()))] -= 1
    assert not any(counts.values())


def test_a_group_must_divide_the_grid_of_its_trials() -> None:
    here = space(CONDITIONAL, sampler="{grid: {points: 2}}", group=48)
    with pytest.raises(SpaceError, match=r"search.group: 48 must divide the 64 points"):
        here.search.sampler.begin(here, [])


# --------------------------------------------------------------------------------------------------- what is remembered


@given(
    costs=st.lists(st.none() | st.integers(0, 20).map(float)),
    newest=st.integers(1, 5),
    best=st.integers(1, 5),
)
def test_the_archive_keeps_the_newest_and_the_best_before_them(
    costs: list[float | None], newest: int, best: int
) -> None:
    archive = BoundedMemory(newest, best)
    observations = [Observation({"at": float(order)}, (loss,)) for order, loss in enumerate(costs)]
    for known in observations:
        archive.add(known)
    old, new = observations[:-newest], observations[-newest:]
    ranked = sorted((known for known in old if known.costs != (None,)), key=lambda known: known.costs)[:best]
    assert list(archive) == [known for known in old if known in ranked] + new
    known = [loss for loss in costs if loss is not None]
    assert archive.worst == ((max(known),) if known else None)


# ---------------------------------------------------------------------------------------------- a search that resumes

OF_OPTUNA = {"tpe": "{tpe: {startup: 4}}", "nsga2": "{nsga2: {population: 6}}"}
TWO = "[{minimize: tvd/raw}, {maximize: loss/raw}]"


def told(trial: Trial) -> Outcome:
    """Both objectives and a constraint as functions of the draws; every fifth trial diverges."""
    if trial.number % 5 == 0:
        return ended(trial, None)
    excess = trial.draws["optimizer.learning_rate"] - 0.7
    return replace(
        ended(trial, sum(trial.draws.values())),
        second_objective=trial.draws["optimizer.beta1"],
        constraints={"a": excess, "b": None if trial.number % 7 == 0 else -1.0},
    )


@pytest.mark.parametrize("name", OF_OPTUNA)
@given(st.data())
@settings(max_examples=5, deadline=None, phases=(Phase.generate,))  # each takes half a second
def test_a_resumed_search_asks_what_it_would_have_asked(name: str, data: st.DataObject) -> None:
    """Whatever was open when it was interrupted, and in whatever order trials ended."""
    two = data.draw(st.booleans())
    here = space(
        CONDITIONAL,
        sampler=OF_OPTUNA[name],
        trials=30,
        group=data.draw(st.sampled_from([1, 3])),
        objective=TWO if two else "{minimize: tvd/raw}",
    )
    strategy = here.search.sampler.begin(here, [])
    ended_ones, open_ones = list[Outcome](), list[Trial]()
    for first in range(0, 24, 3):
        open_ones += strategy.ask(range(first, first + 3))
        ending = data.draw(st.lists(st.sampled_from(open_ones), unique_by=id, max_size=4))
        open_ones = [trial for trial in open_ones if trial not in ending]
        outcomes = [told(trial) for trial in ending]
        strategy.tell(outcomes)
        ended_ones += outcomes
    queued = [replace(ended(trial, None), state="queued") for trial in open_ones]
    again = here.search.sampler.begin(here, [*ended_ones, *queued])
    assert again.ask(range(24, 27)) == strategy.ask(range(24, 27))
    last = [told(trial) for trial in open_ones]
    strategy.tell(last)
    again.tell(last)
    assert again.ask(range(27, 30)) == strategy.ask(range(27, 30))


@pytest.mark.parametrize("name", OF_OPTUNA)
def test_trials_asked_for_one_after_another_differ(name: str) -> None:
    """Each with the same number of others running: what is drawn hangs on the trial's number."""
    here = space(CONDITIONAL, sampler=OF_OPTUNA[name], trials=6)
    strategy, asked = here.search.sampler.begin(here, []), list[Trial]()
    for number in range(6):
        asked += strategy.ask(range(number, number + 1))
        strategy.tell([told(asked[-1])])
    assert len({tuple(sorted(trial.draws.items())) for trial in asked}) == 6


# ------------------------------------------------------------------------------- constraints, and two objectives


@given(
    points=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.sampled_from([0.0, 0.5, 1.0])), min_size=1),
    best=st.integers(1, 4),
)
def test_the_archive_keeps_what_the_fewest_dominate(points: list[tuple[int, int, float]], best: int) -> None:
    seen = [Observation({}, (float(first), float(second)), {"bound": excess}) for first, second, excess in points]

    def beats(point: tuple[int, int, float], other: tuple[int, int, float]) -> bool:
        if point[2] != other[2]:
            return point[2] < other[2]
        return point[0] <= other[0] and point[1] <= other[1] and point != other

    expected = [sum(beats(other, point) for other in points) for point in points]
    assert count_dominators(seen).tolist() == expected
    archive = BoundedMemory(1, best)
    for observation in seen:
        archive.add(observation)
    kept = [points[seen.index(observation)] for observation in archive][:-1]
    assert len(kept) == min(best, len(points) - 1)
    # The best of all that were retired is never forgotten.
    if kept:
        dominators = [sum(beats(other, point) for other in points[:-1]) for point in kept]
        assert min(dominators) == 0


def test_what_is_not_finite_is_as_bad_as_the_worst() -> None:
    bound = "loss/raw <= 4"
    strategy, seen = watched([], Limits(newest=20, best=10, running=5), feasible=f"[{bound}]")
    first, second, third, fourth = strategy.ask(range(4))
    strategy.tell(
        [replace(ended(first, 1.0), constraints={bound: 3.0}), replace(ended(second, 1.0), constraints={bound: None})]
    )
    strategy.tell([replace(ended(third, 1.0), constraints={}), ended(fourth, None)])
    strategy.ask(range(4, 5))
    # A bound that does not apply to a trial is kept; one that a diverged trial never reached is broken.
    assert [trial.constraints for trial in seen[-1][:4]] == [{bound: 3.0}, {bound: 3.0}, {bound: 0.0}, {bound: 3.0}]


TEMPERATURE = """
task: {name: set_complement, length: 4, vocabulary: 9}
model: {name: minimal, width: 12, key_width: 6, value_width: 9, scorer: {choice: [average, SOFTMAX]}}
optimizer: {name: adamw, learning_rate: 10 ** uniform(-5, -1)}
averaging: none
""".replace("SOFTMAX", "{softmax: {temperature: 'log_uniform(0.3, 3)'}}")
"""A space with a draw, and so a constraint, that only some trials have."""


@pytest.mark.parametrize("sampler", ["{gp: {startup: 4}}", "{tpe: {startup: 4}}", "{nsga2: {population: 4}}"])
def test_trials_with_different_constraints_are_learned_from(sampler: str) -> None:
    bounds = ["model.scorer.temperature <= 1", "loss/raw <= 4"]
    here = space(TEMPERATURE, sampler=sampler, feasible=f"[{', '.join(bounds)}]")
    strategy, outcomes = here.search.sampler.begin(here, []), list[Outcome]()
    for trial in strategy.ask(range(8)):
        temperature = trial.config["model"]["scorer"].get("temperature")
        excesses = {bounds[1]: -1.0} | ({} if temperature is None else {bounds[0]: temperature - 1})
        outcomes.append(replace(ended(trial, 0.1 * trial.number), constraints=excesses))
    outcomes[3] = replace(outcomes[3], objective=None, state="diverged", constraints=None)
    assert len({len(outcome.constraints or ()) for outcome in outcomes}) == 3
    strategy.tell(outcomes)
    assert [trial.number for trial in strategy.ask(range(8, 10))] == [8, 9]


def test_an_error_of_a_sampler_is_told_as_its_own() -> None:
    def refuse(draw: object) -> float:
        raise ValueError("the surrogate is singular")

    with pytest.raises(SamplerError) as error:
        space(PLAIN).sample(0, refuse)
    assert str(error.value) == (
        "search.sampler: no coordinate of optimizer.learning_rate was drawn: ValueError: the surrogate is singular"
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("sampler", ["{tpe: {startup: 10}}", "{nsga2: {population: 10}}", "{gp: {startup: 8}}"])
def test_a_search_with_a_constraint_looks_where_it_is_kept(sampler: str) -> None:
    """The best of the bowl is not feasible: learned trials are feasible, and better than random feasible ones."""
    trials = 24 if "gp" in sampler else 80

    bound = "loss/raw <= 4"

    def outcome(trial: Trial) -> Outcome:
        return replace(ended(trial, bowl(trial)), constraints={bound: trial.draws["optimizer.learning_rate"] - 0.3})

    late = {}
    for name in (sampler, "random"):
        here = space(PLAIN, sampler=name, trials=trials, feasible=f"[{bound}]")
        strategy, outcomes = here.search.sampler.begin(here, []), list[Outcome]()
        for first in range(0, trials, 2):
            new = [outcome(trial) for trial in strategy.ask(range(first, first + 2))]
            strategy.tell(new)
            outcomes += new
        late[name] = outcomes[trials // 2 :]
    kept = {name: [trial.objective for trial in outcomes if trial.feasible] for name, outcomes in late.items()}
    assert len(kept[sampler]) > len(kept["random"])
    assert np.mean(kept[sampler]) < 0.8 * np.mean(kept["random"])


@pytest.mark.parametrize("sampler", ["{tpe: {startup: 10}}", "{nsga2: {population: 10}}"])
def test_two_objectives_are_searched_along_their_front(sampler: str) -> None:
    """Two bowls, whose front is the line between them: trials come near to it, and to both of its ends."""

    def last_points(name: str) -> list[tuple[float, float]]:
        here = space(PLAIN, sampler=name, trials=90, objective="[{minimize: tvd/raw}, {minimize: loss/raw}]")
        strategy, points = here.search.sampler.begin(here, []), list[tuple[float, float]]()
        for number in range(90):
            [trial] = strategy.ask(range(number, number + 1))
            u = np.array(list(trial.draws.values()))
            points.append((float(((u - 0.3) ** 2).sum()), float(((u - 0.7) ** 2).sum())))
            strategy.tell([replace(ended(trial, points[-1][0]), second_objective=points[-1][1])])
        return points[50:]

    late = last_points(sampler)
    assert np.mean(late) < 0.75 * np.mean(last_points("random"))
    assert {first < second for first, second in late} == {True, False}


def test_conditional_draws_are_modelled_together() -> None:
    """Those of an option are asked for at once, as those are that every trial makes; without `group` one by one."""
    here = conditional("tpe")
    strategy = here.search.sampler.begin(here, [outcome(trial) for trial in run(here)])
    assert isinstance(strategy, OptunaStrategy)
    study = strategy._build(seed=0)
    modelled = study.sampler.infer_relative_search_space(study, study.trials[-1])
    assert {"averaging.eta", "averaging.kappa", "optimizer.beta1", "model.scorer"} <= modelled.keys()


class Watcher(optuna.samplers.RandomSampler):
    """Samples at random and writes down what it was shown."""

    def __init__(self, seen: list[list[optuna.trial.FrozenTrial]]) -> None:
        super().__init__(seed=0)
        self._seen = seen

    def infer_relative_search_space(self, study: optuna.Study, trial: object) -> dict[str, object]:
        """Return no space; counts that it is called once per ask."""
        self._seen.append(study.get_trials(deepcopy=True))
        return {}


@dataclass(frozen=True, kw_only=True)
class _Watching(OptunaSampler):
    """A sampler of Optuna's that writes down what it is shown."""

    sees: Limits
    seen: list[list[optuna.trial.FrozenTrial]]

    @property
    def limits(self) -> Limits:
        """The limits that the test gives it."""
        return self.sees

    def make(self, seed: int) -> Watcher:
        """Make it, whatever the seed."""
        return Watcher(self.seen)


def watched(
    history: Sequence[Outcome], limits: Limits, feasible: str = "[]"
) -> tuple[OptunaStrategy, list[list[optuna.trial.FrozenTrial]]]:
    """Return a strategy whose sampler writes down what it is shown at each ask."""
    seen: list[list[optuna.trial.FrozenTrial]] = []
    return OptunaStrategy(space(PLAIN, feasible=feasible), history, _Watching(sees=limits, seen=seen)), seen


def test_what_a_sampler_sees_does_not_grow_with_the_search() -> None:
    strategy, seen = watched([], Limits(newest=20, best=10, running=5))
    for number in range(400):
        strategy.tell([ended(trial, bowl(trial)) for trial in strategy.ask(range(number, number + 1))])
    assert max(map(len, seen)) <= 20 + 10 + 5 + 15
    complete = [trial.value for trial in seen[-1] if trial.state.is_finished()]
    assert len(complete) >= 30


@pytest.mark.long
def test_asking_for_many_trials_at_once_does_not_grow_what_a_sampler_sees() -> None:
    strategy, seen = watched([], Limits(newest=20, best=10, running=5))
    strategy.ask(range(300))
    assert max(map(len, seen)) <= 5 + 15


def test_a_sampler_sees_running_trials_and_the_worst_value_for_those_that_failed() -> None:
    strategy, seen = watched([], Limits(newest=20, best=10, running=5))
    first, second, third, _ = strategy.ask(range(4))
    strategy.tell([ended(first, 2.0), ended(second, 7.0), ended(third, None)])
    strategy.ask(range(4, 5))
    shown = seen[-1][:4]
    assert [trial.value for trial in shown] == [2.0, 7.0, 7.0, None]
    assert shown[3].state is optuna.trial.TrialState.RUNNING
    assert shown[0].params == first.draws


def test_trials_that_are_open_when_a_search_goes_on_count_as_running() -> None:
    trials = run(space(PLAIN), numbers=range(2))
    opened = Outcome(number=1, group=1, draws=trials[1].draws, objective=None, state="queued")
    strategy, seen = watched([ended(trials[0], 3.0), opened], Limits(newest=20, best=10, running=5))
    strategy.ask(range(2, 3))
    assert [(trial.state.name, trial.params) for trial in seen[0][:2]] == [
        ("COMPLETE", trials[0].draws),
        ("RUNNING", trials[1].draws),
    ]
    strategy.tell([ended(trials[1], 4.0)])
    strategy.ask(range(3, 4))
    assert [trial.value for trial in seen[1][:2]] == [3.0, 4.0]
