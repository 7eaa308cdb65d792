"""A scorer without fields."""

from dataclasses import dataclass

from tests.support.fake_plugins.scorers import Scorer


@dataclass(frozen=True, kw_only=True)
class Softmax(Scorer):
    """A scorer without fields."""
