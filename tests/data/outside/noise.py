"""What the task beside this file imports: a local file, stored with it."""

from torch import Tensor

from workers.numerics.randomness import Streams

SCALE = 0.5


def steps_of(streams: Streams, batch: int, length: int) -> Tensor:
    """[L, batch, length] steps of a random walk."""
    return SCALE * streams.normal(batch, length)
