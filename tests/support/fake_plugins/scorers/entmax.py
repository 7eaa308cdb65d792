"""A scorer with a bounded knob."""

from dataclasses import dataclass

from spaces.plugins.fields import knob
from tests.support.fake_plugins.scorers import Scorer


@dataclass(frozen=True, kw_only=True)
class Entmax(Scorer):
    """A scorer with a bounded knob."""

    alpha: float = knob(1.5, low=1, high=2)
