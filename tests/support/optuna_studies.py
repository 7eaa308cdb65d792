"""Studies of real spaces in a database, written with the storage API alone, for what other programs read of them."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf, nan

from graft.plugins.families import families
from spaces import parse
from spaces.records import Metric, Report, State, Trial, TrialResult, TrialStart
from spaces.space import Space
from storage import ControlledStudy, NewStudy, Store, open_store

ONE = """
study: one
group: {width: "int(8, 40)"}
task: {name: set_complement, length: 4, vocabulary: 9}
model:
  name: minimal
  width: $width
  key_width: {choice: [4, 6, 12]}
  value_width: 9
  scorer: {choice: [average, {softmax: {temperature: "log_uniform(0.3, 3)"}}]}
  residual_dropout: relu(uniform(-1/2, 1/2))
optimizer: {name: adamw, learning_rate: 10 ** uniform(-5, -1), beta1: "uniform(0.5, 0.9)"}
averaging: none
training: {steps: 40, validate_every: 10}
search: {trials: 60, group: 4, seed: 3, objective: {minimize: tvd/raw}}
"""
TWO = ONE.replace("study: one", "study: two").replace(
    "objective: {minimize: tvd/raw}",
    "objective: [{maximize: tvd/raw}, {minimize: optimizer.learning_rate * model.width}], "
    "feasible: [optimizer.learning_rate <= 0.01]",
)
STATES: dict[int, State] = {
    3: "pruned", 4: "diverged", 5: "failed", 8: "running", 9: "queued", 10: "pruned", 11: "running",
}  # fmt: skip
"""Of some trials; the others have finished."""
STARTED = 30


@dataclass(frozen=True, kw_only=True)
class Written:
    """A database of two studies, `one` and `two`, still held by their controller."""

    url: str
    spaces: dict[str, Space]
    trials: dict[str, list[Trial]]
    studies: dict[str, ControlledStudy]


def value_of(number: int, step: int) -> float:
    """Return the metric of the objective; of trial 4 it is infinite, then no number."""
    if number == 4 and step > 10:
        return inf if step == 20 else nan
    return (number % 7 + 1) / (10 + step)


def steps_of(number: int) -> range:
    """Return the validations of a trial."""
    return range(
        10, {"pruned": 30, "diverged": 40, "failed": 10, "running": 30, "queued": 10}.get(state(number), 50), 10
    )


def state(number: int) -> State:
    return STATES.get(number, "finished")


@contextmanager
def written(url: str) -> Generator[Written]:
    """Yield the database, with trials in every state."""
    spaces = {name: parse(text, name, families()) for name, text in (("one", ONE), ("two", TWO))}
    with open_store(url) as store:
        trials = {name: space.search.sampler.begin(space, []).ask(range(STARTED)) for name, space in spaces.items()}
        studies = {name: _write(store, spaces[name], trials[name]) for name in spaces}
        yield Written(url=url, spaces=spaces, trials=trials, studies=studies)


def _write(store: Store, space: Space, trials: list[Trial]) -> ControlledStudy:
    search = space.search
    new = NewStudy(
        space.name,
        space=space.text,
        space_hash=space.hash,
        objective=search.objective,
        seed=search.seed,
        trials=search.trials,
        version="0.2.0.dev0",
        numerics=1,
        second=search.second,
    )
    study = store.take_control(store.create_study(new), policy="full", objective=search.objective)
    study.set_state("running")
    study.start(trials, "worker-1")
    reports = [
        Report(number=trial.number, fence=1, step=step, metrics=_metrics(trial.number, step))
        for trial in trials
        for step in steps_of(trial.number)
    ]
    study.record(reports)
    study.end([_result(space, trial) for trial in trials if state(trial.number) not in ("running", "queued")])
    study.release([TrialStart(number, 1) for number, name in STATES.items() if name == "queued"])
    return study


def _metrics(number: int, step: int) -> tuple[Metric, ...]:
    return Metric("tvd", "raw", "", value_of(number, step)), Metric("loss", "raw", "length=8", step / 10)


def objective_of(number: int, maximize: bool = False) -> float | None:
    """Of a trial that ended well."""
    values = [value_of(number, step) for step in steps_of(number)]
    return (max if maximize else min)(values) if state(number) in ("finished", "pruned") else None


def _result(space: Space, trial: Trial) -> TrialResult:
    objective = objective_of(trial.number, space.search.second is not None)
    two = space.search.second is not None and objective is not None
    rate, width = trial.params["optimizer.learning_rate"], trial.params["model.width"]
    assert isinstance(rate, float), "it is drawn"
    assert isinstance(width, int), "so is it"
    return TrialResult(
        number=trial.number,
        fence=1,
        state=state(trial.number),
        objective=objective,
        error="a loss is not finite" if objective is None else None,
        # Trial 6 finished without its second objective, of trial 7 a constraint is no finite number.
        second_objective=rate * width if two and trial.number != 6 else None,
        constraints={"optimizer.learning_rate <= 0.01": None if trial.number == 7 else rate - 0.01} if two else None,
    )
