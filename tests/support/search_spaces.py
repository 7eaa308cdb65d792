"""Small spaces for the tests of search, written in the language, and trials that come to an end."""

from __future__ import annotations

from collections.abc import Callable

from graft.plugins.families import families
from spaces import parse
from spaces.records import Outcome, Trial
from spaces.space import Space

FAMILIES = families()

PLAIN = """
task: {name: set_complement, length: 4, vocabulary: 9}
model: {name: minimal, width: 12, key_width: 6, value_width: 9}
optimizer: {name: adamw, learning_rate: 10 ** uniform(-5, -1), beta1: "uniform(0, 1)", beta2: "uniform(0, 1)"}
averaging: none
"""

CONDITIONAL = """
group: {width: "int(8, 40)"}
task: {name: set_complement, length: 4, vocabulary: 9}
model: {name: minimal, width: $width, key_width: 6, value_width: 8, scorer: {choice: [softmax, average]}}
optimizer: {name: adamw, learning_rate: 10 ** uniform(-5, -1), beta1: "uniform(0, 1)"}
averaging: {choice: [none, {bema: {eta: "uniform(0, 1)", kappa: "uniform(0, 1)"}}]}
"""


def space(
    body: str,
    *,
    sampler: str = "random",
    trials: int = 100,
    group: int = 1,
    seed: int = 0,
    stopping: str = "[]",
    objective: str = "{minimize: tvd/raw}",
    feasible: str = "[]",
) -> Space:
    """Return a space with this body; `sampler`, `stopping`, `objective` and `feasible` as YAML."""
    search = f"{{sampler: {sampler}, stopping: {stopping}, trials: {trials}, group: {group}, seed: {seed}, "
    search += f"objective: {objective}, feasible: {feasible}}}"
    text = f"study: test\n{body}training: {{steps: 100}}\nsearch: {search}\n"
    return parse(text, "test.yaml", FAMILIES, {})


def ended(trial: Trial, objective: float | None) -> Outcome:
    """Return the trial's outcome: finished with this objective, or diverged."""
    state = "diverged" if objective is None else "finished"
    return Outcome(number=trial.number, group=trial.group, draws=trial.draws, objective=objective, state=state)


def bowl(trial: Trial) -> float:
    """Return a smooth objective over the three draws of PLAIN: 0 at the best, which lies off the middle."""
    best = {"optimizer.learning_rate": 0.8, "optimizer.beta1": 0.3, "optimizer.beta2": 0.6}
    return sum((trial.draws[name] - u) ** 2 for name, u in best.items())


def search_once(space: Space, objective: Callable[[Trial], float | None], *, lanes: int = 1) -> list[float]:
    """Run a whole search, `lanes` trials at a time; the objectives in the order of numbers (diverged: left out)."""
    strategy = space.search.sampler.begin(space, [])
    values: list[float] = []
    for first in range(0, space.search.trials, lanes):
        outcomes = [ended(trial, objective(trial)) for trial in strategy.ask(range(first, first + lanes))]
        strategy.tell(outcomes)
        values += [outcome.objective for outcome in outcomes if outcome.objective is not None]
    return values
