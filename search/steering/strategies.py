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


def resume(space: Space, ended: Sequence[Outcome], opened: Sequence[Outcome]) -> Strategy:
    """Return the strategy of a study, given the trials that ended, in that order, and open ones.

    No sampler drew the copies of a population, so it is not given them. Without a population the
    numbers after the planned ones are trials by hand, which are learned from.
    """
    outcomes = [*ended, *opened]
    policies = [policy.begin(space.search.objective) for policy in space.search.stopping]
    if any(policy.makes_copies for policy in policies):
        outcomes = [outcome for outcome in outcomes if outcome.number < space.search.trials]
    return begin(space, outcomes)


begin.register(TransferSpace, TransferStrategy)
begin.register(ExperimentSpace, ExperimentStrategy)
