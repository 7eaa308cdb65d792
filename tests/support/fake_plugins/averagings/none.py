"""What stands for a section that is left out."""

from dataclasses import dataclass

from tests.support.fake_plugins.averagings import Averaging


@dataclass(frozen=True, kw_only=True)
class NoAveraging(Averaging):
    """What stands for a section that is left out."""
