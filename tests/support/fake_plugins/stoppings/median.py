"""A policy without required fields."""

from dataclasses import dataclass

from spaces.plugins.fields import size
from tests.support.fake_plugins.stoppings import Stopping


@dataclass(frozen=True, kw_only=True)
class Median(Stopping):
    """A policy without required fields."""

    grace: int = size(5)
