"""Population-based training: who is copied, what a copy is, and that a trial remains a trial."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from search.samplers import Strategy
from search.steering.controller import Controller
from search.steering.strategies import resume
from search.stopping import Stopping
from search.stopping.population import PopulationMonitor, Selection
from spaces import parse, plugins
from spaces.errors import StudyError
from spaces.records import TERMINAL, Ancestor, Directives, Metric, Offer, Outcome, Report, Trial
from spaces.space import Space
from tests.support.controller import LENGTH, FakeWorker, Rows, finish
from tests.support.databases import raw
from tests.support.launches import counts, kill, running, search, wait_until
from tests.support.population import copied
from tests.support.search_spaces import FAMILIES, PLAIN, bowl, ended, space
from tests.support.stopping import OBJECTIVE, report
from tests.support.trials import config, random_knobs, trial
from workers.engine.pack import Pack

SPACE = str(Path(__file__).parents[1] / "support" / "population_space.yaml")
POLICY = "{population: {every: 10}}"

# ----------------------------------------------------------------------------------------------------------- the policy


def breeder(**fields: object) -> PopulationMonitor:
    here = plugins.build(Stopping, {"name": "population", "every": 10, **fields}).begin(OBJECTIVE)
    assert isinstance(here, PopulationMonitor)
    return here


def heard(here: PopulationMonitor, losses: dict[int, float], step: int) -> Selection:
    """Return what the policy says when these trials, all of the pack, report together."""
    assert here.observe([report(number, step, loss) for number, loss in losses.items()], {}) == set()
    return here.select(losses.keys(), losses.keys())


def test_the_worst_quarter_is_replaced_by_the_best_quarter() -> None:
    losses = {number: float((5 * number) % 12) for number in range(12)}
    selection = heard(breeder(), losses, 10)
    assert {losses[number] for number in selection.losers} == {9.0, 10.0, 11.0}
    assert {losses[number] for number in selection.parents} == {0.0, 1.0, 2.0}


@pytest.mark.parametrize(("quantile", "trials", "count"), [(0.2, 2, 1), (0.01, 5, 1), (0.5, 5, 2), (0.25, 1, 0)])
def test_at_least_one_trial_and_at_most_half_of_them_are_replaced(quantile: float, trials: int, count: int) -> None:
    selection = heard(breeder(quantile=quantile), {number: float(number) for number in range(trials)}, 10)
    assert (len(selection.losers), len(selection.parents)) == (count, count)


def test_a_trial_is_judged_once_at_each_multiple_of_its_steps() -> None:
    here = breeder()
    assert heard(here, {0: 0.0, 1: 1.0}, 5) == Selection()
    assert heard(here, {0: 0.0, 1: 0.0}, 12).losers == [1]
    assert here.select({0, 1}, {0, 1}).losers == [1], "nothing came of it, so that the answer is the same"
    assert heard(here, {0: 1.0, 1: 0.0}, 15) == Selection(), "0 was compared at 12"
    assert heard(here, {0: 1.0, 1: 0.0}, 20).losers == [0]


def test_a_copy_is_judged_at_the_next_multiple_after_it_was_made() -> None:
    here = breeder()
    heard(here, {0: 0.0, 1: 1.0}, 10)
    here.forget(1)
    assert heard(here, {0: 0.0, 2: 1.0}, 15) == Selection()
    assert heard(here, {0: 0.0, 2: 1.0}, 20).losers == [2]


def test_a_trial_that_starts_again_is_not_judged_before_it_is_where_it_was_copied() -> None:
    here = breeder()
    here.recall_copied({1: 50})
    assert heard(here, {0: 1.0, 1: 0.0}, 10).losers == [0], "1 is good, which is no judgement of later rounds"
    assert heard(here, {0: 0.0, 1: 1.0}, 20) == Selection()
    assert heard(here, {0: 0.0, 1: 1.0}, 50) == Selection()
    assert heard(here, {0: 0.0, 1: 1.0}, 60).losers == [1]


def test_a_trial_waits_for_a_good_one_that_stands_at_its_report() -> None:
    here = breeder()
    here.observe([report(0, 10, 0.0), report(1, 10, 1.0)], {})
    assert here.select({1}, {0, 1}) == Selection()
    assert here.select({0}, {0, 1}) == Selection([1], [0])


def test_only_trials_of_the_pack_are_compared() -> None:
    here = breeder()
    here.observe([report(number, 10, float(number)) for number in range(4)], {})
    assert here.select({0, 1}, {0, 1}) == Selection([1], [0])
    assert here.select({2, 3}, {2, 3}) == Selection([3], [2])


# ---------------------------------------------------------------------------------------------------------- exploration

SWITCHED = """
task: {name: set_complement, length: 4, vocabulary: 9}
model: {name: minimal, width: 12, key_width: 6, value_width: 9, scorer: {choice: [softmax, average]},
        residual_dropout: 'relu(uniform(-0.5, 0.5))', embedding_dropout: 'relu(uniform(-0.5, 0.5))'}
optimizer: {name: adamw, learning_rate: 10 ** uniform(-5, -1), beta2: 1 - 10 ** uniform(-8, -1)}
"""


@pytest.mark.long
@given(number=st.integers(0, 50), copy=st.integers(100, 10**6), resample=st.sampled_from([0.0, 0.25, 1.0]))
def test_a_copy_fits_its_parents_lane_and_lies_near_it(number: int, copy: int, resample: float) -> None:
    here = space(SWITCHED, stopping=f"{{population: {{every: 10, resample: {resample}}}}}")
    [parent] = here.search.sampler.begin(here, []).ask(range(number, number + 1))
    child = breeder(resample=resample).child(here, copy, [(parent, 20)])
    assert child == breeder(resample=resample).child(here, copy, [(parent, 20)])
    assert (child.structure, child.group, child.number) == (parent.structure, parent.group, copy)
    assert child.lineage == (Ancestor(parent.number, parent.seed, parent.config, 20),)
    assert child.seed != parent.seed
    assert child.draws["model.scorer"] == parent.draws["model.scorer"]
    dropouts = ("model.residual_dropout", "model.embedding_dropout")
    assert [child.params[path] > 0 for path in dropouts] == [parent.params[path] > 0 for path in dropouts]
    assert child.draws["optimizer.learning_rate"] != parent.draws["optimizer.learning_rate"]
    if not resample:
        for name in parent.draws.keys() - {"model.scorer", *dropouts}:
            assert 0 <= child.draws[name] < 1
            moved, u = child.draws[name], parent.draws[name]
            near = [u - 0.1, u + 0.1, 0.1 - u, 1.9 - u]  # the last two: reflected at an end
            assert min(abs(moved - point) for point in near) < 1e-12


def test_the_default_move_is_the_papers_factor_in_the_middle_of_a_range_and_on_a_decade() -> None:
    body = PLAIN.replace("10 ** uniform(-5, -1)", "{log_uniform: [0.001, 0.01]}")
    here = space(body)
    [parent] = here.search.sampler.begin(here, []).ask(range(1))
    parent = here.resolve(0, dict.fromkeys(parent.draws, 0.5))
    copies = [breeder(resample=0.0).child(here, number, [(parent, 10)]) for number in range(100, 140)]

    def factors(path: str) -> set[float]:
        return {round(float(copy.params[path]) / float(parent.params[path]), 2) for copy in copies}

    assert factors("optimizer.beta1") == {0.8, 1.2}
    assert factors("optimizer.learning_rate") == {0.79, 1.26}


def test_sizes_and_the_number_of_steps_are_inherited() -> None:
    rest = "training: {steps: {int: [100, 900]}}\nsearch: {trials: 9, objective: {minimize: tvd/raw}}"
    body = PLAIN.replace("key_width: 6", "key_width: {int: [2, 12]}")
    text = f"study: test\n{body}{rest}"
    here = parse(text, "test.yaml", FAMILIES)
    [parent] = here.search.sampler.begin(here, []).ask(range(1))
    child = breeder(resample=1.0).child(here, 100, [(parent, 10)])
    for path in ("training.steps", "model.key_width"):
        assert child.params[path] == parent.params[path]
    assert child.params["optimizer.beta1"] != parent.params["optimizer.beta1"]


# ------------------------------------------------------------------------------------------------- the toy of the paper


class Fixed(Strategy):
    """Two trials with given draws: the corners of figure 2."""

    def __init__(self, here: Space) -> None:
        self.here = here

    def ask(self, numbers: range) -> list[Trial]:
        corners = [
            {"optimizer.beta1": 0.999, "optimizer.beta2": 0.0},
            {"optimizer.beta1": 0.0, "optimizer.beta2": 0.999},
        ]
        return [self.here.resolve(n, {"optimizer.learning_rate": 0.5, **corners[n]}) for n in numbers]

    def tell(self, outcomes: Sequence[Outcome]) -> None:
        assert all(outcome.number < 2 for outcome in outcomes), "samplers do not learn from copies"


def best_of_toy(policy: str, steps: int = 400) -> float:
    """Return the best Q = 1.2 - |theta|^2 found by two workers that climb 1.2 - h . theta^2 from (0.9, 0.9).

    Figure 2 and section 4 of the paper. h is what the space calls beta1 and beta2; a report every 4 steps.
    """
    here = space(PLAIN, trials=2, stopping=policy, objective="{maximize: q/raw}")
    memory = Rows()
    monitors = [rule.begin(here.search.objective) for rule in here.search.stopping]
    controller = Controller(here, Fixed(here), monitors, memory)
    theta: dict[int, tuple[float, float]] = {}
    lanes: dict[int, Trial] = {}
    said = controller.exchange([], Offer(worker="w", lanes=2))
    for step in range(4, steps + 4, 4):
        for number in said.stop:
            del lanes[number]
        for member in said.start:
            lanes[member.number] = member
            theta[member.number] = (0.9, 0.9) if member.parent is None else theta[member.parent]
        for number, member in lanes.items():
            h0, h1 = (float(member.params[f"optimizer.beta{i}"]) for i in (1, 2))
            a, b = theta[number]
            theta[number] = a * (1 - 0.02 * h0) ** 4, b * (1 - 0.02 * h1) ** 4
        values = {number: 1.2 - theta[number][0] ** 2 - theta[number][1] ** 2 for number in lanes}
        reports = [
            Report(
                number=n,
                fence=1,
                step=step,
                metrics=(Metric("q", "raw", "", q),),
                state="finished" if step == steps else "running",
            )
            for n, q in values.items()
        ]
        structure = next(iter(lanes.values())).structure
        holds = tuple(member.start for member in lanes.values()) if step < steps else ()
        said = controller.exchange(reports, Offer(worker="w", lanes=0, structure=structure, holds=holds))
    assert said.done
    best = controller.progress().best
    assert best is not None
    return best


def test_a_population_climbs_the_papers_hill_where_a_grid_and_copies_alone_do_not() -> None:
    population = best_of_toy("{population: {every: 4}}")
    copies_alone = best_of_toy("{population: {every: 4, move: 0, resample: 0}}")
    grid = best_of_toy("[]")
    assert population > 1.19
    assert grid == pytest.approx(1.2 - 0.81, abs=0.01)
    assert copies_alone < 0.5


# ------------------------------------------------------------------------------------------------------- the controller


def check_lines(memory: Rows, here: Space) -> None:
    """As many lines as trials were to start anew, each ended once; every copy has a parent that was on record."""
    planned = here.search.trials
    assert sorted(memory.rows) == list(range(len(memory.rows)))
    assert all((row.trial.parent is None) == (number < planned) for number, row in memory.rows.items())
    states = [row.state for row in memory.rows.values()]
    assert set(states) <= TERMINAL
    assert len(states) - states.count("pruned") == planned
    for number, row in memory.rows.items():
        assert row.terminal_events == 1
        steps = sorted({report.step for report in row.reports})
        assert steps == list(range(row.trial.parent_step + 10, LENGTH + 1, 10))[: len(steps)]
        if row.trial.parent is not None:
            parent = memory.rows[row.trial.parent]
            assert row.trial.parent < number
            assert row.trial.parent_step in {report.step for report in parent.reports}
            assert row.trial == here.restore(memory.line(row.trial))


class PopulationWorker(FakeWorker):
    """Lanes that start where their trials do; what a copy goes on from must stand in the pack when it is made.

    A copy that starts again goes along its line instead, and its parent may start again beside it.
    """

    def obey(self, directives: Directives) -> None:
        steps = {number: step for number, (_, step) in self.lanes.items()}
        super().obey(directives)
        for member in directives.start:
            self.lanes[member.number] = (member, member.parent_step)
            is_new = member.parent is not None and member.fence == 1
            if is_new and member.parent in steps and member.parent not in directives.stop:
                assert steps[member.parent] >= member.parent_step


@settings(max_examples=60)
@given(data=st.data(), trials=st.integers(1, 12), width=st.integers(1, 6))
def test_a_population_survives_everything_and_every_line_ends_once(
    data: st.DataObject, trials: int, width: int
) -> None:
    here = space(PLAIN, trials=trials, stopping=POLICY)
    memory = Rows()
    controller, workers = Controller.begin(here, memory), [PopulationWorker(name, width) for name in "ab"]
    for turn in range(data.draw(st.integers(0, 12))):
        worker = data.draw(st.sampled_from(workers))
        event = data.draw(st.sampled_from(["work", "work", "work", "lose", "crash"]))
        if event == "work":
            idle = data.draw(st.sets(st.integers(0, 30), max_size=2))
            reports, offer = worker.train([n for n in worker.lanes if n not in idle]), worker.offer()
            memory.failures = data.draw(st.sampled_from([0, 0, 1, 2]))
            said = None
            while said is None:
                try:
                    said = controller.exchange(reports, offer)
                except OSError:
                    continue
            memory.failures = 0
            worker.obey(said)
        elif event == "lose":
            controller.handle_crash(worker.name)
            workers[workers.index(worker)] = PopulationWorker(f"{worker.name}{turn}", width)
        else:
            controller = Controller.begin(here, memory)
            workers = [PopulationWorker(worker.name, width) for worker in workers]
    finish(controller, *workers)
    check_lines(memory, here)
    assert controller.progress().planned == len(memory.rows)


def test_a_copy_and_the_end_of_the_trial_it_replaces_are_written_as_one() -> None:
    here = space(PLAIN, trials=4, stopping=POLICY)
    memory = Rows()
    controller = Controller.begin(here, memory)
    worker = PopulationWorker("a", 4)
    worker.obey(controller.exchange([], worker.offer()))
    said = controller.exchange(worker.train(list(worker.lanes)), worker.offer())
    assert [copy.number for copy in said.start] == [4]
    assert memory.log[-2:] == [("end", said.stop[0]), ("start", (4,))]
    assert memory.rows[said.stop[0]].state == "pruned"


def test_a_sampler_learns_from_the_trials_that_it_drew_and_from_no_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    here, memory = space(PLAIN, trials=4, stopping=POLICY), Rows()
    strategy, outcomes = here.search.sampler.begin(here, []), list[Outcome]()
    monkeypatch.setattr(strategy, "tell", outcomes.extend)
    monitors = [policy.begin(here.search.objective) for policy in here.search.stopping]
    finish(Controller(here, strategy, monitors, memory), PopulationWorker("a", 4))
    assert len(memory.rows) > 4
    assert sorted(outcome.number for outcome in outcomes) == [0, 1, 2, 3]


def test_a_sampler_that_is_resumed_is_not_given_copies() -> None:
    sampler = "{tpe: {startup: 4}}"
    here, alone = (space(PLAIN, trials=8, sampler=sampler, stopping=stopping) for stopping in (POLICY, "[]"))
    trials = here.search.sampler.begin(here, []).ask(range(12))
    outcomes = [ended(trial, bowl(trial)) for trial in trials]
    assert resume(here, outcomes, []).ask(range(12, 14)) == resume(here, outcomes[:8], []).ask(range(12, 14))
    # Without a population these are trials by hand.
    assert resume(alone, outcomes, []).ask(range(12, 14)) != resume(alone, outcomes[:8], []).ask(range(12, 14))


def test_an_open_copy_is_made_again_along_its_line_after_a_crash() -> None:
    here = space(PLAIN, trials=4, stopping=POLICY)
    memory = Rows()
    controller = Controller.begin(here, memory)
    worker = PopulationWorker("a", 4)
    worker.obey(controller.exchange([], worker.offer()))
    copies: list[Trial] = []
    while len(copies) < 2:
        said = controller.exchange(worker.train(list(worker.lanes)), worker.offer())
        copies += [copy for copy in said.start if copy.lineage]
        worker.obey(said)
    again = Controller.begin(here, memory).exchange([], Offer(worker="b", lanes=8)).start
    running = [copy for copy in copies if memory.rows[copy.number].state == "running"]
    assert running
    assert all(copy in again for copy in running)


@pytest.mark.parametrize("policies", [f"[{POLICY}, asha]", f"[{POLICY}, median]", f"[{POLICY}, {POLICY}]"])
def test_policies_that_compare_trials_from_their_start_are_refused_beside_a_population(policies: str) -> None:
    with pytest.raises(StudyError, match="population stands alone or with patience"):
        Controller.begin(space(PLAIN, stopping=policies), Rows())


# ------------------------------------------------------------------------------------------------------------- the pack


def family(*, dtype: str = "float32", count: int = 6) -> list[Trial]:
    numbers = random.Random(11)
    return [trial(i, config(steps=40, every=10, dtype=dtype, **random_knobs(numbers))) for i in range(count)]


def state_of(pack: Pack, number: int) -> list[torch.Tensor]:
    """Parameters, moments, averages and counters of a running trial."""
    state, lane = pack._tensors.state, pack.running[number]  # pyright: ignore[reportPrivateUsage]
    parts = [state.parameters, *state.moments.values(), *state.shadow.values(), state.step, state.loss_sum]
    return [part[lane].clone() for part in parts]


def same(state: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(state, other, strict=True))


def test_a_copy_has_its_parents_state_to_the_bit_and_the_neighbours_keep_theirs() -> None:
    trials = family()
    pack = Pack(trials[0], width=4)
    pack.fill(trials[:4])
    pack.train(100)
    before = {number: state_of(pack, number) for number in range(4)}
    pack.release([2])
    pack.fill([copied(trials[1], 9, 10, trials[5])])
    assert same(state_of(pack, 9), before[1])
    assert all(same(state_of(pack, number), before[number]) for number in (0, 1, 3))
    pack.train(100)
    assert not same(state_of(pack, 9), state_of(pack, 1)), "its own knobs and random numbers from now on"


def train_until(pack: Pack, number: int, step: int) -> dict[tuple[int, int], Report]:
    """Return the reports up to the one of this trial at this step."""
    seen: dict[tuple[int, int], Report] = {}
    while (number, step) not in seen:
        seen |= {(record.number, record.step): record for record in pack.train(7)}
    return seen


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_copy_trained_alone_along_its_line_gives_the_numbers_of_the_copy_in_the_pack(dtype: str) -> None:
    trials = family(dtype=dtype)
    child = copied(trials[1], 8, 20, trials[4])
    grandchild = copied(child, 9, 30, trials[5])
    pack = Pack(trials[0], width=5)
    pack.fill(trials[:3])
    seen = train_until(pack, 2, 20)
    pack.release([0])
    pack.fill([child])
    seen |= train_until(pack, 8, 30)
    pack.release([2])
    pack.fill([grandchild])
    seen |= train_until(pack, 9, 40)
    for copy, steps in ((child, (30, 40)), (grandchild, (40,))):
        alone = Pack(copy, width=1)
        alone.fill([copy])
        reports = train_until(alone, copy.number, 40)
        assert reports == {(copy.number, step): seen[copy.number, step] for step in steps}


def test_a_parent_that_has_gone_on_is_not_copied_but_trained_again() -> None:
    trials = family()
    child = copied(trials[1], 8, 10, trials[4])
    pack, alone = Pack(trials[0], width=4), Pack(child, width=1)
    pack.fill(trials[:2])
    alone.fill([child])
    train_until(pack, 1, 20)
    pack.fill([child])
    assert train_until(pack, 8, 40)[8, 40] == train_until(alone, 8, 40)[8, 40]


# ----------------------------------------------------------------------------------------------------- a whole search


def check_search(url: str, folder: Path, replayed: int) -> None:
    """Eight lines that came to their last step, and copies of which the last few give their numbers again alone."""
    rows = raw(url, "SELECT number, state, parent, parent_step, steps FROM trials ORDER BY number")
    states = [state for _, state, *_ in rows]
    copies = [number for number, _, parent, *_ in rows if parent is not None]
    assert states.count("finished") == 8
    assert set(states) == {"finished", "pruned"}
    assert copies == list(range(8, len(rows)))
    assert len(copies) == states.count("pruned") > 3
    reached = {number: steps for number, *_, steps in rows}
    assert all(parent < number and step <= reached[parent] for number, _, parent, step, _ in rows if parent is not None)
    assert raw(url, "SELECT state, trials FROM studies") == [("finished", len(rows))]
    search(folder, "replay", "population", "0", *map(str, copies[-replayed:]))


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("--workers", "1"), ("--workers", "2", "--pack", "4")])
def test_a_search_with_a_population_ends_and_copies_can_be_replayed_alone(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    search(tmp_path, "launch", SPACE, *arguments)
    check_search(f"sqlite:///{tmp_path}/graft.db", tmp_path, replayed=4)


@pytest.mark.long
def test_a_population_that_was_killed_goes_on_with_all_of_its_lines(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/graft.db"
    often = ("--set", "training.validate_every=10", "--set", "search.stopping.every=20")
    with running(tmp_path, "launch", SPACE, "--steps", "1000", *often, "--workers", "1") as process:
        wait_until(lambda: counts(url, "population").get("pruned", 0) >= 6)
        kill(process)
        process.wait()
    assert raw(url, "SELECT 1 FROM trials WHERE state = 'running' AND parent IS NOT NULL")
    search(tmp_path, "resume", "population", "--workers", "1")
    check_search(url, tmp_path, replayed=2)
