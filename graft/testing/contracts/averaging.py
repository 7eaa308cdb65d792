"""The contract of averages. Legend: P parameters in one flat vector."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import vmap

from graft.testing.common import Configuration, build, equal, random
from spaces import plugins
from workers.training.averaging import Averaging

PATH = random(6, 2, 5)
"""Parameters [P] of two lanes after each of five steps, and before the first."""


def averages(averaging: Averaging, path: Tensor) -> list[Tensor]:
    """Return every variant [P] after the last step of a path [steps + 1, P]."""
    shadow = averaging.start(path[0])
    for step, parameters in enumerate(path[1:]):
        shadow = averaging.update(shadow, parameters, torch.tensor(step))
    last = torch.tensor(len(path) - 1)
    indices = map(torch.tensor, range(len(averaging.variants)))
    return [averaging.average(shadow, path[-1], last, index) for index in indices]


def check_lanes(configuration: Configuration) -> None:
    """Assert that lanes with knobs, stacked by vmap, have the averages that each has alone."""
    averaging: Averaging = build("averaging", configuration)
    factors = torch.tensor([1.0, 0.5], dtype=torch.float64)
    pairs = plugins.knobs(averaging)
    knobs = {path: (value * factors).clamp(min=min(value, 1.0)) for path, value in pairs}

    def one(knobs: dict[str, Tensor], path: Tensor) -> list[Tensor]:
        return averages(plugins.bind(averaging, knobs), path)

    together = vmap(one, in_dims=(0, 1))(knobs, PATH)
    for lane in range(2):
        alone = one({path: values[lane] for path, values in knobs.items()}, PATH[:, lane])
        assert len(alone) == len(averaging.variants), "there are not as many averages as variants"
        for stacked, expected in zip(together, alone, strict=True):
            shape = tuple(expected.shape)
            assert shape == (5,), f"an average of 5 parameters has the shape {shape}"
            equal(stacked[lane], expected, "stacked lanes differ from lanes alone")


def check_constant(configuration: Configuration) -> None:
    """Assert that an average of parameters that never change equals them."""
    still = PATH[:1, 0].expand(6, -1)
    for average in averages(build("averaging", configuration), still):
        equal(average, still[0], "the average of one point is another point")


def check_variants(configuration: Configuration) -> None:
    """Assert that its variants have names that an objective can ask for: ema or bema."""
    averaging: Averaging = build("averaging", configuration)
    names = (variant.name for variant in averaging.variants)
    strange = [name for name in names if name not in Averaging.VARIANTS]
    known = ", ".join(Averaging.VARIANTS)
    assert not strange, f"variant {strange} is none of {known}; what tells it apart is its condition"
