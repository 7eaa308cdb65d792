"""The contract of schedules."""

from __future__ import annotations

import torch
from torch.func import vmap

from graft.testing.common import Configuration, build
from spaces import plugins
from workers.training.schedules import Schedule


def exact(value: float) -> torch.Tensor:
    """Return a knob as the engine has it."""
    return torch.tensor(value, dtype=torch.float64)


def factors(schedule: Schedule, steps: int) -> list[float]:
    """Return the factor of each update in a training of so many steps."""
    bound = plugins.bind(schedule, {path: exact(value) for path, value in plugins.knobs(schedule)})
    return [float(bound.factor(torch.tensor(n), exact(steps))) for n in range(steps)]


def check_range(configuration: Configuration) -> None:
    """No update has a rate of zero or above the peak, however many steps there are."""
    for steps in (1, 2, 7, 500):
        for step, factor in enumerate(factors(build("schedule", configuration), steps)):
            assert 0 < factor <= 1, f"the factor of step {step} of {steps} is {factor}, not in (0, 1]"


def check_lanes(configuration: Configuration) -> None:
    """Assert that lanes, stacked by vmap, have the factors that each has alone."""
    schedule: Schedule = build("schedule", configuration)
    scales = torch.tensor([1.0, 0.5], dtype=torch.float64)
    knobs = {path: value * scales for path, value in plugins.knobs(schedule)}
    step, steps = torch.tensor([3, 8]), torch.tensor([10.0, 12.0], dtype=torch.float64)
    together = vmap(lambda setting, n, all_: plugins.bind(schedule, setting).factor(n, all_))(knobs, step, steps)
    for lane in range(2):
        alone = plugins.bind(schedule, {path: values[lane] for path, values in knobs.items()})
        expected, here = float(alone.factor(step[lane], steps[lane])), float(together[lane])
        assert here == expected, f"lane {lane} has {here} in a stack and {expected} alone"
