"""A policy with a required size."""

from dataclasses import dataclass

from spaces.plugins.fields import size
from tests.support.fake_plugins.stoppings import Stopping


@dataclass(frozen=True, kw_only=True)
class Patience(Stopping):
    """A policy with a required size."""

    steps: int = size()
