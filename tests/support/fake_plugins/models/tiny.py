"""A model with a field of every kind."""

from dataclasses import dataclass

from spaces.plugins.fields import flag, knob, option, part, size
from tests.support.fake_plugins.models import Model
from tests.support.fake_plugins.scorers import Scorer


@dataclass(frozen=True, kw_only=True)
class Tiny(Model):
    """A model with a field of every kind."""

    width: int = size()
    scorer: Scorer = part(Scorer, "softmax")
    dropout: float = knob(0.0, low=0, high=1, open_high=True, switch=True)
    temperature: float = knob(1.0, low=0, open_low=True)
    activation: str = option("relu", ("relu", "gelu"))
    tied: bool = flag(False)
