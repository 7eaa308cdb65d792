"""An optimizer of knobs alone."""

from dataclasses import dataclass

from spaces.plugins.fields import knob
from tests.support.fake_plugins.optimizers import Optimizer


@dataclass(frozen=True, kw_only=True)
class Sgd(Optimizer):
    """An optimizer of knobs alone."""

    learning_rate: float = knob(low=0)
    momentum: float = knob(0.0, low=0, high=1, open_high=True)
    warmup: int = knob(0, low=0, integer=True)
