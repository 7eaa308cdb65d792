"""A sampler with a size."""

from dataclasses import dataclass

from spaces.plugins.fields import size
from tests.support.fake_plugins.samplers import Sampler


@dataclass(frozen=True, kw_only=True)
class Grid(Sampler):
    """A sampler with a size."""

    points: int = size(3)
