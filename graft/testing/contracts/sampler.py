"""The contract of samplers, on a space with groups of four, choices and conditional draws."""

from __future__ import annotations

from collections.abc import Sequence

from graft.plugins.families import families
from graft.testing.common import Configuration, DoesNotApply, build
from search.samplers import Sampler
from spaces import parse
from spaces.plugins import canonical_json
from spaces.records import Outcome, Trial
from spaces.space import Space

TRIALS = 20
_SPACE = """
study: contract
group: {{width: "int(8, 40)"}}
task: {{name: set_complement, length: 4, vocabulary: 9}}
model: {{name: minimal, width: $width, key_width: 6, value_width: 8, scorer: {{choice: [softmax, average]}}}}
optimizer: {{name: adamw, learning_rate: 10 ** uniform(-5, -1), beta1: "uniform(0, 1)"}}
averaging: {{choice: [none, {{bema: {{eta: "uniform(0, 1)", kappa: "uniform(0, 1)"}}}}]}}
training: {{steps: 100}}
search: {{sampler: {sampler}, trials: {trials}, group: {group}, seed: 0, objective: {{{direction}: tvd/raw}}}}
"""


def space_with(configuration: Configuration, *, group: int = 4, direction: str = "minimize") -> Space:
    """Return the space, searched by a sampler."""
    sampler = canonical_json(dict(configuration))  # JSON is YAML
    text = _SPACE.format(sampler=sampler, trials=TRIALS, group=group, direction=direction)
    return parse(text, "the space of the contract", families())


def outcome_of(trial: Trial, objective: float | None) -> Outcome:
    """Return the outcome of a trial; None if it diverged."""
    state = "diverged" if objective is None else "finished"
    return Outcome(number=trial.number, group=trial.group, draws=trial.draws, objective=objective, state=state)


def run(space: Space, outcomes: Sequence[Outcome] = (), numbers: range = range(TRIALS), sign: float = 1) -> list[Trial]:
    """Run a search of two lanes; every fifth trial diverges, others score by their draws."""
    strategy = space.search.sampler.begin(space, outcomes)
    trials: list[Trial] = []
    for first in range(numbers.start, numbers.stop, 2):
        asked = strategy.ask(range(first, min(first + 2, numbers.stop)))
        trials += asked
        strategy.tell([_outcome(trial, sign) for trial in asked])
    return trials


def _outcome(trial: Trial, sign: float = 1) -> Outcome:
    return outcome_of(trial, None if trial.number % 5 == 0 else sign * sum(trial.draws.values()))


def _learns(configuration: Configuration) -> bool:
    sampler: Sampler = build("sampler", configuration)
    return sampler.learns


def check_coordinates(configuration: Configuration) -> None:
    """Assert that trials come in order, with coordinates in [0, 1) that make them again."""
    here = space_with(configuration)
    trials = run(here)
    numbers = [trial.number for trial in trials]
    assert numbers == list(range(TRIALS)), "a number was left out or came out of order"
    for trial in trials:
        outside = {name: u for name, u in trial.draws.items() if not 0.0 <= u < 1.0}
        assert not outside, f"trial {trial.number}: coordinates are in [0, 1), these are not: {outside}"
        names = {name.removesuffix("#2") for name in trial.draws}
        branch = {"averaging.eta", "averaging.kappa"} & names
        took = trial.config["averaging"]["name"] == "bema"
        assert bool(branch) == took, f"trial {trial.number}: draws of an option that was not taken"
        again = here.resolve(trial.number, trial.draws)
        assert again == trial, f"trial {trial.number} is another one of its draws"


def check_groups(configuration: Configuration) -> None:
    """Assert that the trials of a group share the group's draws."""
    widths = [trial.draws["group.width"] for trial in run(space_with(configuration))]
    for first in range(0, TRIALS, 4):
        draws = set(widths[first : first + 4])
        assert len(draws) == 1, f"trials {first} to {first + 3} are a group, but their group's draw is {sorted(draws)}"


def check_seed(configuration: Configuration) -> None:
    """Assert that the same seed and outcomes give the same trials."""
    here = space_with(configuration)
    outcomes = [_outcome(trial) for trial in run(here, numbers=range(16))]
    later = range(16, TRIALS)
    trials, other = (run(here, outcomes, later) for _ in range(2))
    assert trials == other, "it is not a function of seed and outcomes"


def check_restart(configuration: Configuration) -> None:
    """Assert that a restarted sampler repeats no trial if it learns, and else goes on unchanged."""
    if not _learns(configuration):
        here = space_with(configuration)
        later = run(here, numbers=range(11, TRIALS))
        assert later == run(here)[11:], "trials depend on those before: learns = True?"
        return
    here = space_with(configuration, group=1)
    before = run(here, numbers=range(4))
    after = run(here, [_outcome(trial) for trial in before], range(4, 8))
    draws = [{tuple(trial.draws.items()) for trial in some} for some in (before, after)]
    assert not draws[0] & draws[1], "a trial that was tried before the restart is tried again"


def check_open_groups(configuration: Configuration) -> None:
    """Assert that after a restart a group whose trials are still open keeps its draws."""
    if not _learns(configuration):
        raise DoesNotApply("it does not learn")
    here = space_with(configuration)
    [first] = run(here, numbers=range(1))
    queued = Outcome(number=0, group=0, draws=first.draws, objective=None, state="queued")
    width = run(here, [queued], range(1, 2))[0].draws["group.width"]
    assert width == first.draws["group.width"], "the group of a trial that waits has other draws after a restart"


def check_divergence(configuration: Configuration) -> None:
    """Assert that a search in which every trial diverges goes on."""
    here = space_with(configuration)
    strategy = here.search.sampler.begin(here, [])
    for first in range(0, TRIALS, 4):
        strategy.tell([outcome_of(trial, None) for trial in strategy.ask(range(first, first + 4))])


def check_direction(configuration: Configuration) -> None:
    """Assert that maximizing is minimizing the negative."""
    if not _learns(configuration):
        raise DoesNotApply("it does not learn")
    words = ("minimize", "maximize")
    least, most = (space_with(configuration, group=1, direction=word) for word in words)
    runs = run(least), run(most, sign=-1)
    draws = [[trial.draws for trial in trials] for trials in runs]
    assert draws[0] == draws[1], "it takes other trials where the objective's sign and direction are turned"
