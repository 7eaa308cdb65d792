"""A task with two sizes and a rule between them."""

from dataclasses import dataclass

from spaces.errors import PluginError
from spaces.plugins.fields import size
from tests.support.fake_plugins.tasks import Task


@dataclass(frozen=True, kw_only=True)
class Copy(Task):
    """A task with two sizes and a rule between them."""

    length: int = size(low=2)
    vocabulary: int = size(low=3)

    def __post_init__(self) -> None:
        if self.length >= self.vocabulary:
            raise PluginError(f"length {self.length} must be below vocabulary {self.vocabulary}")
