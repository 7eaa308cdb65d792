"""What stands for a section that is left out."""

from dataclasses import dataclass

from tests.support.fake_plugins.learnings import Learning


@dataclass(frozen=True, kw_only=True)
class Weights(Learning):
    """What stands for a section that is left out."""
