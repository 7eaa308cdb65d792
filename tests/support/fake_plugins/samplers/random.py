"""What stands for a sampler that is left out."""

from dataclasses import dataclass

from tests.support.fake_plugins.samplers import Sampler


@dataclass(frozen=True, kw_only=True)
class RandomSearch(Sampler):
    """What stands for a sampler that is left out."""
