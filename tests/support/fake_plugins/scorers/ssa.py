"""A scorer with a required knob."""

from dataclasses import dataclass

from spaces.plugins.fields import knob
from tests.support.fake_plugins.scorers import Scorer


@dataclass(frozen=True, kw_only=True)
class Ssa(Scorer):
    """A scorer with a required knob."""

    n: float = knob(low=1)
    b: float = knob(1.0, low=0, open_low=True)
