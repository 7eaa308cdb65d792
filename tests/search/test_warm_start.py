"""A search that starts from earlier ones: the sampler, what is learnt from studies, and the option of the launch."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from graft.launching.planning.warm_start import warm_start
from search.analysis.transfer.compatibility_matrix import Matrix, compute_matrix
from search.analysis.transfer.stage_two import READ as OF_STAGE_TWO
from search.analysis.transfer.stage_two import results
from search.analysis.warm_start import Earlier, Gain, gains, match_draws, prior, task_of, winners_of
from search.samplers import Sampler, Strategy
from search.samplers.grid import Grid
from search.samplers.random import RandomSearch
from search.samplers.warm import Box, Warm, WarmStrategy, format_prior
from spaces.errors import PluginError, SpaceError, StudyError
from spaces.grammar.distributions import RANGES
from spaces.plugins import build
from spaces.records import Outcome, Trial, TrialResult
from spaces.space import Space
from storage import NewStudy, open_reader, open_store
from tests.support.answers import EXPERIMENT
from tests.support.claim_of_study import space_of
from tests.support.inside import called
from tests.support.launches import SPACE
from tests.support.search_spaces import CONDITIONAL, PLAIN, bowl, ended, search_once, space
from tests.support.transfer_report import write as write_stage_two

RATE, BETA1, BETA2 = "optimizer.learning_rate", "optimizer.beta1", "optimizer.beta2"
SCORER, AVERAGING = "model.scorer", "averaging"
EVERY = ("random", "qmc", "tpe", "cmaes", "nsga2", "gp")


def sampler(
    name: str | Mapping[str, Any],
    points: Sequence[Mapping[str, float]] = (),
    floor: float = 0.25,
    **box: tuple[float, float],
) -> str:
    """Return a warm sampler as a space writes it; `box` by the last part of the draw's name."""
    paths = {path.rpartition(".")[2]: path for path in (RATE, BETA1, BETA2, SCORER, AVERAGING)}
    candidates, ranges = format_prior(points, {paths[word]: ends for word, ends in box.items()})
    settings = {"sampler": name, "candidates": candidates, "box": ranges, "floor": floor}
    return json.dumps({"warm": settings})


def asked(here: Space, numbers: range) -> list[Trial]:
    return here.search.sampler.begin(here, []).ask(numbers)


def run(here: Space, numbers: range, history: Sequence[Outcome] = ()) -> list[Trial]:
    """Return a search of two lanes."""
    strategy = here.search.sampler.begin(here, history)
    trials: list[Trial] = []
    for first in range(numbers.start, numbers.stop, 2):
        both = strategy.ask(range(first, first + 2))
        strategy.tell([ended(trial, sum(trial.draws.values())) for trial in both])
        trials += both
    return trials


# -------------------------------------------------------------------------------------------------------- the sampler


@pytest.mark.parametrize("name", EVERY)
def test_the_candidates_come_first_and_what_they_lack_is_drawn(name: str) -> None:
    points = [{RATE: 0.75, BETA1: 0.125, AVERAGING: 0.75}, {SCORER: 0.25}]
    here = space(CONDITIONAL, sampler=sampler(name, points))
    first, second, third = asked(here, range(3))
    assert (first.draws[RATE], first.draws[BETA1]) == (0.75, 0.125)
    assert first.config["averaging"]["name"] == "bema"
    assert 0 <= first.draws["averaging.eta"] < 1
    assert second.config["model"]["scorer"]["name"] == "softmax"
    assert len({trial.draws[RATE] for trial in (first, second, third)}) == 3
    assert [here.resolve(trial.number, trial.draws) for trial in (first, second, third)] == [first, second, third]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", EVERY)
def test_trials_outside_the_floor_lie_in_the_box(name: str) -> None:
    here = space(CONDITIONAL, sampler=sampler(name, floor=0, learning_rate=(0.4, 0.5), scorer=(0.5, 1)), trials=30)
    trials = run(here, range(30))
    assert all(0.4 <= trial.draws[RATE] < 0.5 for trial in trials)
    assert {trial.config["model"]["scorer"]["name"] for trial in trials} == {"average"}
    assert np.ptp([trial.draws[BETA1] for trial in trials]) > 0.3


THREE = CONDITIONAL.replace("[softmax, average]", "[softmax, average, sigmoid]")


@dataclass(frozen=True, kw_only=True)
class InTurn(Sampler):
    """Takes the options of each choice in turn, as a sampler that draws one of so many."""

    def begin(self, space: Space, history: Sequence[Outcome]) -> Strategy:
        class Turning(Strategy):
            def ask(self, numbers: range) -> list[Trial]:
                return [
                    space.sample(n, lambda draw: (n % draw.choices + 0.5) / draw.choices if draw.choices else 0.5)  # noqa: B023
                    for n in numbers
                ]

            def tell(self, outcomes: Sequence[Outcome]) -> None:
                pass

        return Turning()


@pytest.mark.parametrize(
    ("ends", "kept"),
    [
        ((0, 2 / 3), ["softmax", "average"]),
        ((1 / 3, 1), ["average", "sigmoid"]),
        ((0.25, 1), ["average", "sigmoid"]),
        ((0.2, 0.25), ["softmax"]),
        ((0.3, 0.7), ["average"]),
        ((0.9, 0.95), ["sigmoid"]),
    ],
)
def test_a_sampler_that_draws_options_draws_one_of_those_that_the_box_keeps(
    ends: tuple[float, float], kept: list[str]
) -> None:
    here = space(THREE)
    _, box = format_prior([], {SCORER: ends})
    trials = WarmStrategy(here, [], Warm(sampler=InTurn(), box=box, floor=0)).ask(range(6))
    assert [trial.config["model"]["scorer"]["name"] for trial in trials] == kept * (6 // len(kept))
    told = [
        ended(replace(trials[0], draws={**trials[0].draws, SCORER: (option + 0.5) / 3}), 1.0) for option in range(3)
    ]
    inside = Box(here, {SCORER: ends}).to_box(told)
    assert [int(outcome.draws[SCORER] * len(kept)) for outcome in inside] == [*range(len(kept))]


@pytest.mark.parametrize("name", ["tpe", "{nsga2: {population: 8}}"])
def test_a_search_that_was_begun_with_squeezed_options_goes_on(name: str) -> None:
    """Its stored coordinates are where one of three options was squeezed into the box."""
    candidates, box = format_prior([], {SCORER: (1 / 3, 1)})
    settings = Warm(sampler=space(PLAIN, sampler=name).search.sampler, candidates=candidates, box=box)
    here = space(THREE)
    stored = [
        replace(trial, draws={**trial.draws, SCORER: 0.333334 + 0.666666 * (trial.number % 3 + 0.5) / 3})
        for trial in asked(here, range(24))
    ]
    history = [ended(trial, sum(trial.draws.values())) for trial in stored]
    later = WarmStrategy(here, history, settings).ask(range(24, 40))
    assert [here.resolve(trial.number, trial.draws) for trial in later] == later
    assert len({trial.config["model"]["scorer"]["name"] for trial in later}) > 1


@pytest.mark.parametrize("name", EVERY)
def test_without_a_box_the_search_is_the_sampler_s_own(name: str) -> None:
    warm, cold = (space(PLAIN, sampler=text) for text in (sampler(name), name))
    assert run(warm, range(24)) == run(cold, range(24))
    assert warm.search.sampler.begin(warm, []).look_ahead == cold.search.sampler.begin(cold, []).look_ahead


def test_a_sampler_that_resolves_a_trial_as_it_begins_needs_no_candidate() -> None:
    assert len(asked(space(PLAIN, sampler=sampler("learned", learning_rate=(0.4, 0.5))), range(4))) == 4


@pytest.mark.parametrize("name", ["random", "qmc"])
def test_trials_of_the_floor_are_those_of_a_search_without_prior(name: str) -> None:
    warm = asked(space(PLAIN, sampler=sampler(name, learning_rate=(0.4, 0.5))), range(2000))
    cold = asked(space(PLAIN, sampler=name), range(2000))
    share = np.mean([trial == other for trial, other in zip(warm, cold, strict=True)])
    assert abs(share - 0.25) < 4 * math.sqrt(0.25 * 0.75 / 2000)
    assert all(trial == other or 0.4 <= trial.draws[RATE] < 0.5 for trial, other in zip(warm, cold, strict=True))


@pytest.mark.parametrize("name", ["random", "qmc"])
def test_in_the_box_trials_are_spread_as_the_sampler_spreads_them(name: str) -> None:
    warm = asked(space(PLAIN, sampler=sampler(name, floor=0, learning_rate=(0.4, 0.5))), range(64))
    cold = asked(space(PLAIN, sampler=name), range(64))
    for trial, other in zip(warm, cold, strict=True):
        assert trial.draws[RATE] == pytest.approx(0.4 + 0.1 * other.draws[RATE])
        assert trial.draws[BETA1] == other.draws[BETA1]


@pytest.mark.parametrize("name", ["random", "qmc"])
def test_a_search_goes_on_after_a_restart_as_if_nothing_had_happened(name: str) -> None:
    here = space(CONDITIONAL, sampler=sampler(name, [{RATE: 0.5}] * 5, learning_rate=(0.4, 0.5)), group=4)
    assert run(here, range(4, 20)) == run(here, range(20))[4:]


@pytest.mark.parametrize("name", ["qmc", "tpe"])
def test_a_search_that_was_interrupted_with_open_trials_goes_on_as_if_it_had_not_been(name: str) -> None:
    settings = {"name": name, **({"startup": 4} if name == "tpe" else {})}
    here = space(PLAIN, sampler=sampler(settings, [{RATE: 0.4}], learning_rate=(0.1, 0.9)))
    strategy = here.search.sampler.begin(here, [])
    trials = strategy.ask(range(20))
    results = [ended(trial, sum(trial.draws.values())) for trial in trials[:14]]
    strategy.tell(results)
    resumed = here.search.sampler.begin(here, [*results, *map(Outcome.of_open, trials[14:])])
    assert resumed.ask(range(20, 30)) == strategy.ask(range(20, 30))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", EVERY)
def test_a_group_shares_its_draws_whoever_asks_for_its_trials(name: str) -> None:
    points = [{RATE: 0.5, "group.width": 0.1}, {RATE: 0.7, "group.width": 0.9}]
    here = space(CONDITIONAL, sampler=sampler(name, points, floor=0.5, learning_rate=(0.4, 0.5)), group=4)
    before = run(here, range(18))
    history = [ended(trial, sum(trial.draws.values())) for trial in before]
    for trials in (before, [*before, *run(here, range(18, 40), history)]):
        for group in {trial.group for trial in trials}:
            assert len({trial.draws["group.width"] for trial in trials if trial.group == group}) == 1
    assert len({trial.draws["group.width"] for trial in before}) >= 3


@pytest.mark.parametrize("name", ["random", "tpe"])
def test_a_single_group_has_trials_outside_the_box(name: str) -> None:
    here = space(CONDITIONAL, sampler=sampler(name, [{RATE: 0.5}], learning_rate=(0.4, 0.5)), group=40, trials=40)
    inside = np.mean([0.4 <= trial.draws[RATE] <= 0.5 for trial in run(here, range(40))])
    # What random search draws for a group does not depend on whom is asked; a sampler that learns it has it whole.
    assert 0.5 < inside < 1 if name == "random" else inside < 0.5


def test_a_space_without_groups_may_be_narrowed_and_started_in_all_draws() -> None:
    settings = {"candidates": '{"group.width": [0.9]}', "box": '{"group.width": [0.1, 0.2]}', "floor": 0}
    first, *others = asked(space(CONDITIONAL, sampler=json.dumps({"warm": settings})), range(20))
    assert first.draws["group.width"] == 0.9
    assert all(0.1 <= trial.draws["group.width"] < 0.2 for trial in others)


def test_what_a_group_shares_is_neither_narrowed_nor_started() -> None:
    settings = {"candidates": '{"group.width": [0.9]}', "box": '{"group.width": [0.1, 0.2]}', "floor": 0}
    warm = asked(space(CONDITIONAL, sampler=json.dumps({"warm": settings}), group=4), range(20))
    assert warm == asked(space(CONDITIONAL, group=4), range(20))


def test_a_prior_may_be_as_long_as_it_must() -> None:
    points = [{RATE: index / 100, BETA1: index / 200} for index in range(90)]
    here = space(PLAIN, sampler=sampler("random", points))
    assert [trial.draws[BETA1] for trial in asked(here, range(90))] == [point[BETA1] for point in points]


@dataclass(frozen=True, kw_only=True)
class Spy(Sampler):
    """Random search that writes down what it is told, a list for each time that it begins."""

    heard: list[list[Outcome]]

    def begin(self, space: Space, history: Sequence[Outcome]) -> Strategy:
        memory = list(history)
        self.heard.append(memory)
        strategy = RandomSearch().begin(space, [])

        class Listening(Strategy):
            def ask(self, numbers: range) -> list[Trial]:
                return strategy.ask(numbers)

            def tell(self, outcomes: Sequence[Outcome]) -> None:
                memory.extend(outcomes)

        return Listening()


def test_a_sampler_learns_the_whole_space_from_all_trials_and_the_box_from_those_inside() -> None:
    here = space(PLAIN)
    candidates, box = format_prior([{RATE: 0.45, BETA1: 0.6, BETA2: 0.1}, {RATE: 0.9}], {RATE: (0.4, 0.5)})
    spy = Spy(heard=[])
    strategy = WarmStrategy(here, [], Warm(sampler=spy, candidates=candidates, box=box))
    outcomes = [ended(trial, bowl(trial)) for trial in strategy.ask(range(40))]
    strategy.tell(outcomes)
    _, whole, narrow = spy.heard
    assert [(outcome.number, outcome.state) for outcome in whole[:2]] == [(0, "queued"), (1, "queued")]
    assert whole[2:] == outcomes
    inside = [outcome for outcome in outcomes if 0.4 <= outcome.draws[RATE] <= 0.5]
    assert [outcome.number for outcome in narrow] == [0, *(outcome.number for outcome in inside)]
    for scaled, real in zip(narrow[1:], inside, strict=True):
        assert scaled.draws[RATE] == pytest.approx(10 * (real.draws[RATE] - 0.4))
        assert (scaled.draws[BETA1], scaled.objective) == (real.draws[BETA1], real.objective)


def test_candidates_beyond_the_last_trial_are_not_told_as_open() -> None:
    spy = Spy(heard=[])
    candidates, _ = format_prior(rates(0.1, 0.2, 0.3), {})
    WarmStrategy(space(PLAIN, trials=2), [], Warm(sampler=spy, candidates=candidates))
    assert [outcome.number for outcome in spy.heard[1]] == [0, 1]


def test_a_candidate_that_was_started_is_not_told_as_open() -> None:
    here = space(PLAIN)
    candidates, box = format_prior([{RATE: 0.45}, {RATE: 0.9}], {})
    first = WarmStrategy(here, [], Warm(candidates=candidates, box=box)).ask(range(1))
    spy = Spy(heard=[])
    WarmStrategy(here, [ended(first[0], 1.0)], Warm(sampler=spy, candidates=candidates, box=box))
    assert [(outcome.number, outcome.state) for outcome in spy.heard[1]] == [(0, "finished"), (1, "queued")]


@pytest.mark.long
@pytest.mark.parametrize("name", ["random", "tpe", "cmaes"])
def test_a_wrong_prior_does_not_trap_a_search(name: str) -> None:
    wrong = {"learning_rate": (0.0, 0.2), "beta1": (0.8, 1.0)}  # the bowl is lowest at 0.8 and 0.3
    trapped, free = (
        search_once(space(PLAIN, sampler=sampler(name, floor=floor, **wrong), trials=300), bowl, lanes=4)
        for floor in (0, 0.25)
    )
    assert min(trapped) > 0.6**2
    assert min(free) < 0.1


@pytest.mark.long
@pytest.mark.parametrize("name", ["random", "tpe", "cmaes"])
def test_a_right_prior_shortens_a_search_over_eight_seeds(name: str) -> None:
    right = {"learning_rate": (0.65, 0.95), "beta1": (0.15, 0.45)}
    warm, cold = (
        [search_once(space(PLAIN, sampler=text, trials=40, seed=seed), bowl, lanes=4) for seed in range(8)]
        for text in (sampler(name, [{RATE: 0.7, BETA1: 0.4}], **right), name)
    )
    best = np.minimum.accumulate([warm, cold], axis=-1)
    assert np.log(best[0] / best[1]).mean() < -0.7


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"candidates": "{"}, "candidates: this is not JSON"),
        ({"candidates": "[" * 100_000}, "candidates: this is not JSON"),
        ({"candidates": "[]"}, 'candidates: this must be JSON of the form {"draw": [coordinate, ...]}'),
        ({"candidates": '{"a": [1.0]}'}, "candidates: a: [1.0] must hold coordinates from 0 to 1"),
        ({"candidates": '{"a": [0.5], "b": []}'}, "candidates: every draw must have as many coordinates"),
        ({"box": '{"a": [0.5]}'}, "box: a: [0.5] must be [low, high] with 0 <= low < high <= 1"),
        ({"box": '{"a": [0.5, 0.5]}'}, "box: a: [0.5, 0.5] must be [low, high]"),
        ({"box": '{"a": [0.5, NaN]}'}, "box: a: [0.5, NaN] must hold coordinates from 0 to 1"),
        ({"box": '{"a": [true, 1]}'}, "box: a: [true, 1] must hold coordinates from 0 to 1"),
        ({"floor": 1.5}, "sampler.floor: 1.5 must be a number in [0, 1]"),
        ({"sampler": {"name": "grid"}}, "sampler: grid tries each of its points once"),
        ({"sampler": {"name": "warm"}}, "sampler: warm cannot start another warm"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_broken_prior_is_told_in_one_line(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(PluginError) as caught:
        build(Sampler, {"name": "warm", **settings})
    assert words in str(caught.value)


def test_a_draw_that_the_space_has_not_is_told_with_the_choices() -> None:
    here = space(PLAIN, sampler="{warm: {box: '{\"optimizer.rate\": [0.1, 0.2]}'}}")
    with pytest.raises(SpaceError, match=r"'optimizer.rate' is no draw of the space, .*optimizer.learning_rate"):
        here.search.sampler.begin(here, [])


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.floats(0, 1, exclude_max=True), min_size=1)))
def test_a_prior_is_read_as_it_was_written(points: list[dict[str, float]]) -> None:
    read = Warm(candidates=format_prior(points, {})[0]).points()
    assert [point.keys() for point in read] == [point.keys() for point in points]
    for point, other in zip(read, points, strict=True):
        assert all(abs(point[name] - u) <= 1e-6 and point[name] < 1 for name, u in other.items())


def test_a_box_is_written_so_that_it_holds_no_other_option() -> None:
    low, high = Warm(box=format_prior([], {SCORER: (1 / 3, 2 / 3)})[1]).ranges()[SCORER]
    assert 1 / 3 <= low < 0.334 < 0.666 < high <= 2 / 3


# ------------------------------------------------------------------------------------------- a draw in two spaces


def of_rate(rate: str) -> Space:
    """Return a space that draws nothing but the learning rate."""
    return space(PLAIN.replace('10 ** uniform(-5, -1), beta1: "uniform(0, 1)", beta2: "uniform(0, 1)"', f'"{rate}"'))


def carried(source: str, target: str, u: float) -> float | None:
    return match_draws(of_rate(source), of_rate(target))[RATE](u)


def rate_at(rate: str, u: float) -> float:
    return of_rate(rate).sample(0, lambda _: u).params[RATE]


@pytest.mark.parametrize("u", [0.0, 0.3, 0.999])
def test_equal_bounds_keep_a_coordinate_whatever_they_are_made_of(u: float) -> None:
    assert carried("10 ** uniform(-3 - 2, -1)", "10 ** uniform(-3 - 2, -1)", u) == u


@pytest.mark.parametrize("u", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("kind", ["uniform", "log_uniform"])
def test_other_bounds_keep_the_value(kind: str, u: float) -> None:
    source, target = f"{kind}(1e-3, 0.1)", f"{kind}(1e-4, 0.2)"
    there = carried(source, target, u)
    assert there is not None
    assert rate_at(target, there) == pytest.approx(rate_at(source, u))


def test_a_value_that_the_target_cannot_draw_is_left_out() -> None:
    assert carried("log_uniform(1e-3, 0.1)", "log_uniform(1e-3, 0.01)", 0.6) is None
    assert carried("log_uniform(1e-3, 0.1)", "log_uniform(0.01, 0.1)", 0.4) is None


@pytest.mark.long
@given(
    kind=st.sampled_from(["int", "log_int"]),
    source=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    target=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    u=st.floats(0, 1, exclude_max=True),
)
def test_integers_keep_their_value(kind: Any, source: tuple[int, int], target: tuple[int, int], u: float) -> None:
    (low, high), (least, most) = sorted(source), sorted(target)
    assume(low < high and least < most)
    value = RANGES[kind].value(low, high, u)
    there = carried(f"0.001 * {kind}({low}, {high})", f"0.001 * {kind}({least}, {most})", u)
    if there is None:
        assert not least <= value <= most
    else:
        assert RANGES[kind].value(least, most, there) == value


@pytest.mark.parametrize(("kind", "middle"), [("int", 0.75), ("log_int", math.log(2.5) / math.log(3))])
def test_an_integer_comes_in_its_middle_where_rounding_cannot_change_it(kind: str, middle: float) -> None:
    there = carried(f"0.001 * {kind}(1, 3)", f"0.001 * {kind}(1, 2)", 0.6)
    assert there == pytest.approx(middle)


def test_a_choice_keeps_the_option_by_its_name() -> None:
    two = space(CONDITIONAL)
    three = space(CONDITIONAL.replace("[softmax, average]", "[sigmoid, average, {ssa: {b: 1}}]"))
    carry = match_draws(two, three)[SCORER]
    assert carry(0.25) is None
    there = carry(0.75)
    assert (
        three.sample(0, lambda draw: there if draw.name == SCORER else 0.4).config["model"]["scorer"]["name"]
        == "average"
    )


def test_draws_of_another_kind_or_condition_or_of_the_task_are_not_shared() -> None:
    assert not match_draws(of_rate("uniform(1e-3, 0.1)"), of_rate("log_uniform(1e-3, 0.1)"))
    always = space(CONDITIONAL.replace("{choice: [none, ", "").replace("}}]}", "}}"))
    assert match_draws(always, space(CONDITIONAL)).keys() == {"group.width", SCORER, RATE, BETA1}
    drawn = space(PLAIN.replace("length: 4", 'length: "int(3, 5)"'))
    assert match_draws(drawn, drawn).keys() == {RATE, BETA1, BETA2}


def test_draws_that_a_group_shares_are_not_learnt() -> None:
    assert "group.width" not in match_draws(space(CONDITIONAL), space(CONDITIONAL, group=4))


# ------------------------------------------------------------------------------------------------- what is learnt


def earlier(name: str, task: str, winners: Sequence[Mapping[str, float]], body: str = PLAIN) -> Earlier:
    frame = pl.DataFrame({"task": [task] * len(winners), "draws": [json.dumps(draws) for draws in winners]})
    return Earlier(name=name, space=space(body), winners=frame)


def rates(*values: float) -> list[dict[str, float]]:
    return [{RATE: value} for value in values]


def test_a_study_s_tenth_best_but_five_at_least_are_winners() -> None:
    assert [winners_of(count) for count in (1, 50, 51, 200, 260_000)] == [5, 5, 6, 20, 50]


def test_candidates_are_the_best_of_each_study_then_the_second_best_by_weight() -> None:
    studies = [
        earlier("a", "add", rates(0.1, 0.2)),
        earlier("b", "mano", rates(0.3)),
        earlier("c", "copy", rates(0.5, 0.6)),
    ]
    start = prior(space(PLAIN), studies, {"mano": sure_gain(2), "copy": sure_gain(7)})
    assert start.candidates == tuple(rates(0.5, 0.3, 0.1, 0.6, 0.2))
    assert start.studies == ("c", "b", "a")


def test_the_task_itself_counts_most_and_what_harms_is_left_out() -> None:
    studies = [
        earlier("a", "add", rates(0.1)),
        earlier("b", "copy", rates(0.3)),
        earlier("own", "set_complement", rates(0.5)),
    ]
    start = prior(space(PLAIN), studies, {"add": sure_gain(9), "copy": sure_gain(-1)})
    assert start.candidates == tuple(rates(0.5, 0.1))


def test_points_that_are_near_in_every_draw_are_tried_once() -> None:
    first, same_option = {RATE: 0.4, SCORER: 0.1}, {RATE: 0.42, SCORER: 0.4}
    others = [{RATE: 0.42, SCORER: 0.75}, {RATE: 0.47, SCORER: 0.1}, {RATE: 0.4}]
    start = prior(space(CONDITIONAL), [earlier("a", "add", [first, same_option, *others], CONDITIONAL)], {})
    assert start.candidates == (first, *others)


def test_candidates_are_at_most_eight_and_a_quarter_of_the_trials() -> None:
    studies = [earlier("a", "add", rates(*np.linspace(0.0, 0.95, 12)))]
    assert [len(prior(space(PLAIN, trials=count), studies, {}).candidates) for count in (100, 20, 2)] == [8, 5, 1]


def test_a_range_is_narrowed_where_winners_agree() -> None:
    random = np.random.default_rng(0)
    winners = [{RATE: float(random.normal(0.6, 0.05)), BETA1: float(random.uniform())} for _ in range(40)]
    start = prior(space(PLAIN), [earlier("a", "add", winners)], {})
    assert start.box.keys() == {RATE}
    low, high = start.box[RATE]
    assert 0.4 < low < 0.55 < 0.65 < high < 0.8


def test_few_winners_narrow_less_than_many_and_fewer_than_five_nothing() -> None:
    widths = []
    for count in (4, 5, 40):
        box = prior(space(PLAIN), [earlier("a", "add", rates(*np.linspace(0.55, 0.65, count)))], {}).box
        widths.append(box[RATE][1] - box[RATE][0] if box else 1.0)
    assert widths[0] == 1.0 > widths[1] > widths[2]


@pytest.mark.parametrize(("options", "range_"), [([0.75] * 5, (0.5, 1.0)), ([0.25, 0.75] * 5, None)])
def test_a_choice_is_narrowed_to_whole_options(options: list[float], range_: tuple[float, float] | None) -> None:
    start = prior(space(CONDITIONAL), [earlier("a", "add", [{SCORER: u} for u in options], CONDITIONAL)], {})
    assert start.box.get(SCORER) == range_


def test_nothing_in_common_gives_no_prior() -> None:
    start = prior(of_rate("log_uniform(1e-3, 0.1)"), [earlier("a", "add", rates(0.5))], {})
    assert (start.candidates, dict(start.box), start.studies) == ((), {}, ())


def test_gains_are_those_of_the_compatibility_matrix(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/graft.db"
    write_stage_two(url, "stage-two")
    with open_reader(url) as reader:
        matrix = compute_matrix(results(reader.study("stage-two").trials(columns=OF_STAGE_TWO), "maximize"))
    by_source = gains([matrix], "add")
    means = {source: gain.mean for source, gain in by_source.items()}
    assert means == pytest.approx({"add": 25, "copy": -6, "mano": 3, "memorize": 0}, abs=0.5)
    for source, gain in by_source.items():
        [cell] = matrix.cells.filter(pl.col("source") == source, pl.col("target") == "add").to_dicts()
        assert (gain.unit, gain.mean) == ("points", pytest.approx(cell["mean"]))
        assert (gain.low, gain.high) == pytest.approx((cell["low"], cell["high"]))
    # Of two that are alike the interval is narrower by the root of 2.
    for source, gain in gains([matrix, matrix], "add").items():
        alone = by_source[source]
        assert alone.high is not None
        assert gain.high is not None
        assert gain.mean == pytest.approx(alone.mean)
        assert gain.high - gain.mean == pytest.approx((alone.high - alone.mean) / 2**0.5)
    assert gains([], "add") == gains([matrix], None) == {}


def sure_gain(points: float) -> Gain:
    """Return a gain that is known to the digit."""
    return Gain(unit="points", mean=points, low=points, high=points)


def gain_matrix(direction: str, values: dict[str, list[float]]) -> Matrix:
    """Return a matrix of one target."""
    rows = [(source, "t", seed, value) for source, by_seed in values.items() for seed, value in enumerate(by_seed)]
    frame = pl.DataFrame(rows, schema=["source", "target", "seed", "value"], orient="row")
    return compute_matrix(frame.with_columns(direction=pl.lit(direction)))


def test_gains_of_two_units_are_not_added_up_and_the_surer_one_counts_more() -> None:
    baseline = [0.50, 0.52, 0.54, 0.56, 0.58]
    sure = gain_matrix(
        "maximize", {"baseline": baseline, "a": [value + 0.1 + 0.001 * n for n, value in enumerate(baseline)]}
    )
    loose = gain_matrix("maximize", {"baseline": baseline, "a": [0.4, 0.9, 0.5, 0.9, 0.6]})
    percent = gain_matrix("minimize", {"baseline": baseline, "a": [0.1, 0.2, 0.1, 0.2, 0.15]})
    [narrow], [other], [both] = (gains(made, "t").values() for made in ([sure], [loose], [sure, loose, percent]))
    assert both.unit == "points"
    ends = [(gain.low, gain.high) for gain in (narrow, other)]
    weights = np.array([1 / (high - low) ** 2 for low, high in ends if low is not None and high is not None])
    assert both.mean == pytest.approx(np.average([narrow.mean, other.mean], weights=weights))
    assert other.sure == 0
    assert narrow.low is not None
    assert narrow.sure == narrow.low > 0
    [less] = gains([percent], "t").values()
    assert (less.unit, less.sure) == ("percent", less.low)
    assert less.low is not None
    assert less.low > 0
    assert gains([gain_matrix("maximize", {"baseline": [0.5], "a": [0.7]})], "t")["a"].sure == 0


def test_a_space_that_draws_its_task_has_none_of_its_own() -> None:
    assert task_of(space(PLAIN)) == "set_complement"
    drawn = "{choice: [copying, {set_complement: {length: 4, vocabulary: 9}}]}"
    assert task_of(space(PLAIN.replace("{name: set_complement, length: 4, vocabulary: 9}", drawn, 1))) is None


# ----------------------------------------------------------------------------------------------------- the launch

Run = Callable[..., list[str]]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Launch small studies inside this process, in an empty folder; the lines on stderr."""
    monkeypatch.chdir(tmp_path)

    def launch(study: str, *arguments: str, status: int = 0) -> list[str]:
        words = ("launch", SPACE, "--study", study, "--trials", "8", "--steps", "20", "--workers", "1", *arguments)
        code, _, error = called(monkeypatch, capfd, *words)
        assert code == status, error
        return error.splitlines()

    return launch


def one(query: str) -> Any:
    with sqlite3.connect("graft.db") as connection:
        [(value,)] = connection.execute(query)
    connection.close()
    return value


def test_a_launch_starts_from_the_best_trials_of_the_database(here: Run) -> None:
    here("first", "--set", "task.vocabulary=9", "--set", "model.value_width=9")
    line, new, *_ = (
        said for said in here("second", "--seed", "5", "--warm-start", "auto") if not said.startswith("note:")
    )
    assert line.startswith("warm start: 2 candidates and ")
    assert line.endswith(" from first")
    assert new.endswith("graft.db: new, 8 trials")
    best = json.loads(one("SELECT draws FROM trials WHERE study_id = 1 ORDER BY objective LIMIT 1"))
    tried = json.loads(one("SELECT draws FROM trials WHERE study_id = 2 AND number = 0"))
    for name in (RATE, "averaging.eta"):
        assert tried[name] == pytest.approx(best[name], abs=1e-6)
    assert tried["group.length"] != best["group.length"]


def rate_tried(study: str, number: int) -> float:
    """Return the learning rate's coordinate of a trial."""
    return json.loads(
        one(
            f"SELECT draws FROM trials JOIN studies s ON s.id = study_id WHERE s.name = '{study}' AND number = {number}"
        )
    )[RATE]


def best_rates(condition: str = "true") -> list[float]:
    """Return the same of the first study's trials, the best first."""
    with sqlite3.connect("graft.db") as connection:
        rows = connection.execute(
            f"SELECT draws FROM trials WHERE study_id = 1 AND {condition} ORDER BY trials.objective"
        )
        rates = [json.loads(draws).get(RATE) for (draws,) in rows]
    connection.close()
    return rates


@pytest.mark.long
def test_trials_that_were_stopped_or_copied_are_not_learnt_from(here: Run) -> None:
    here("first")
    with sqlite3.connect("graft.db") as connection:
        [(best,), (second,)] = connection.execute("SELECT id FROM trials ORDER BY objective LIMIT 2")
        connection.execute(f"UPDATE trials SET state = 'pruned' WHERE id = {best}")
        connection.execute(f"UPDATE trials SET parent = 0, parent_step = 10 WHERE id = {second}")
    connection.close()
    here("second", "--warm-start", "auto")
    assert rate_tried("second", 0) == pytest.approx(best_rates()[2], abs=1e-6)


TRANSFER = """
study: transfer
transfer:
  tasks:
    short: {space: {study: short, task: {name: set_complement, length: 2, vocabulary: 9}, model: &model
      {name: minimal, width: 8, key_width: 4, value_width: 9}, optimizer: &optimizer {name: adamw, learning_rate: 0.01},
      training: &training {steps: 20, batch: 8}}, objective: {minimize: tvd/raw}}
    long: {space: {study: long, task: {name: set_complement, length: 4, vocabulary: 9}, model: *model,
      optimizer: *optimizer, training: *training}, learn: {optimizer.learning_rate: 10 ** uniform(-2, -1)}}
  architecture: {model.scorer: {choice: [softmax, average]}}
  learn: {optimizer.learning_rate: 10 ** uniform(-3, -1)}
  pairs: 1
search: {sampler: random, trials: 5, objective: {maximize: tvd/raw}}
"""


@pytest.mark.long
def test_each_search_of_a_transfer_is_learnt_from_but_a_transfer_starts_cold(
    here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "transfer.yaml").write_text(TRANSFER)
    launch = ("launch", "transfer.yaml", "--workers", "1")
    code, _, error = called(monkeypatch, capfd, *launch, "--warm-start", "auto")
    assert (code, error.count("\n")) == (2, 1)
    assert error.startswith("error: warm start: a transfer compares what is found on each task")
    assert called(monkeypatch, capfd, *launch)[0] == 0
    assert here("second", "--warm-start", "transfer")[0].endswith("from transfer")
    short, *_ = best_rates("group_number = 0")
    *_, long = best_rates("group_number = 1")  # its task maximises
    assert rate_tried("second", 0) == pytest.approx(short, abs=1e-6)
    assert rate_tried("second", 1) == pytest.approx((1 + long) / 2, abs=1e-6)  # of 10 ** uniform(-3, -1) there


@pytest.mark.long
def test_a_study_keeps_the_prior_that_it_started_with(here: Run) -> None:
    here("first")
    here("second", "--warm-start", "auto")
    stored = one("SELECT space FROM studies WHERE name = 'second'")
    assert """candidates: '{"optimizer.learning_rate": [0.""" in " ".join(stored.split())
    here("third", "--seed", "3")
    lines = here("second", "--warm-start", "auto")
    assert lines[0] == "warm start: study second exists and keeps what it started with"
    assert lines[1].endswith("finished, all 8 trials are done")
    assert one("SELECT space FROM studies WHERE name = 'second'") == stored
    for changed in (["--seed", "9"], ["--set", "search.sampler=qmc"]):
        *_, refused = here("second", "--warm-start", "auto", *changed, status=2)
        assert refused.startswith("error: study 'second' exists with another space")


@pytest.mark.long
def test_a_study_that_found_nothing_to_learn_from_goes_on_cold(here: Run) -> None:
    line, *_ = here("first", "--warm-start", "auto")
    assert line.startswith("warm start: nothing to learn from (")
    here("second")
    assert here("first", "--warm-start", "auto")[1].endswith("finished, all 8 trials are done")
    assert "warm" not in one("SELECT space FROM studies WHERE name = 'first'").replace("warmup", "")


@pytest.mark.long
def test_studies_that_share_no_draw_leave_the_search_cold(here: Run) -> None:
    here("first", "--set", "optimizer.learning_rate=0.01", "--set", "averaging.eta=0.5", "--set", "training.steps=20")
    line, *_ = here("second", "--warm-start", "first")
    assert line == (
        "warm start: no earlier study that may help shares a draw with this space (experiments are left out); "
        "the search starts cold"
    )


def test_experiments_neither_start_warm_nor_are_started_from(tmp_path: Path) -> None:
    drawn = EXPERIMENT.replace("0.01", '"log_uniform(0.001, 0.1)"')
    arms = space_of(drawn.replace("search: {", "search: {trials: 2, "))
    url, objective = f"sqlite:///{tmp_path}/graft.db", arms.search.objective
    new = NewStudy(
        "arms", space=arms.text, space_hash="", version="0.2.0", numerics=1, objective=objective, seed=0, trials=16
    )
    with open_store(url) as store:
        study = store.take_control(store.create_study(new), policy="full", objective=objective)
        study.start([arms.sample(0, lambda _: 0.5)], "worker")
        study.end([TrialResult(number=0, fence=1, state="finished", objective=0.5)])
    plain = space(PLAIN)
    for here, earlier, refusal in (
        (arms, "auto", "an experiment compares its arms from equal draws, so they start cold"),
        (plain, "arms", "arms is an experiment, and no search starts from its arms; name other studies, or auto"),
    ):
        with pytest.raises(StudyError, match=f"^warm start: {refusal}$"):
            warm_start(url, "new", here, earlier)
    left_out = "no earlier study that may help shares a draw with this space (experiments are left out)"
    assert warm_start(url, "new", plain, "auto").finding == f"{left_out}; the search starts cold"


@pytest.mark.long
def test_studies_on_tasks_that_the_compatibility_matrix_advises_against_are_left_out(here: Run, tmp_path: Path) -> None:
    write_stage_two(f"sqlite:///{tmp_path}/graft.db", "stage-two")
    here("first")
    here("second", "--seed", "3")
    with sqlite3.connect("graft.db") as connection:
        # The matrix is then about our task, and the two studies on one that harms it and one that helps.
        connection.execute(
            """UPDATE trials SET config = replace(config, '"add"', '"set_complement"') WHERE study_id = 1"""
        )
        connection.execute(
            "UPDATE trials SET task = CASE study_id WHEN 2 THEN 'copy' ELSE 'mano' END WHERE study_id > 1"
        )
    connection.close()
    assert here("third", "--warm-start", "auto")[0].endswith(" from second")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--warm-start", "first,nosuch"], "study 'nosuch' does not exist; there are first"),
        (["--warm-start", ""], "study '' does not exist; there are first"),
        (
            ["--warm-start", "auto", "--set", "search.sampler=grid", "--set", "search.group=5"],
            "sampler: grid tries each of its points once",
        ),
        (["--warm-start", "auto", "--set", "search.sampler=warm"], "sampler: warm cannot start another warm"),
    ],
    ids=str,
)
def test_what_cannot_start_warm_is_told_in_one_line(here: Run, arguments: list[str], words: str) -> None:
    here("first")
    [line] = here("second", *arguments, status=2)
    assert line.startswith("error: ")
    assert words in line
    assert one("SELECT count(*) FROM studies") == 1


def test_named_studies_need_a_database(here: Run) -> None:
    [line] = here("second", "--warm-start", "first", status=2)
    assert "there is no such database" in line


def test_a_grid_is_a_sampler_that_cannot_start_warm() -> None:
    with pytest.raises(PluginError, match="random, qmc or tpe can start warm"):
        Warm(sampler=Grid())
