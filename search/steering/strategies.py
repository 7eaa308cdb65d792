"""Which strategy a kind of space has: its sampler alone, or one that asks several samplers in turn."""

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
    """Return the strategy of a study that is new or resumed; `outcomes` as `Sampler.begin` has it."""
    return space.search.sampler.begin(space, outcomes)


begin.register(TransferSpace, TransferStrategy)
begin.register(ExperimentSpace, ExperimentStrategy)
