"""The strategy of each kind of space: its sampler, or one that asks several samplers in turn."""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatch

from search.samplers import Strategy
from search.steering.experiment_strategy import ExperimentStrategy
from search.steering.transfer_strategy import TransferStrategy
from spaces.experiment import ExperimentSpace
from spaces.records import Outcome
from spaces.space import Space
from spaces.transfer import TransferSpace


@singledispatch
def begin(space: Space, outcomes: Sequence[Outcome]) -> Strategy:
    """Return the strategy of a new or resumed study; `outcomes` as in `Sampler.begin`."""
    return space.search.sampler.begin(space, outcomes)


begin.register(TransferSpace, TransferStrategy)
begin.register(ExperimentSpace, ExperimentStrategy)
