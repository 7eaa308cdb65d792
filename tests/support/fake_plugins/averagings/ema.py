"""An average with one knob."""

from dataclasses import dataclass

from spaces.plugins.fields import knob
from tests.support.fake_plugins.averagings import Averaging


@dataclass(frozen=True, kw_only=True)
class Ema(Averaging):
    """An average with one knob."""

    power: float = knob(low=0)
