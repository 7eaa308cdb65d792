"""The decision, if a space makes none, whether trials of different sizes share packs by padding."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from spaces.grammar.formulas import Level
from spaces.plugins.protocols import KnowsPadding
from spaces.settings import Search

FEW_STEPS = 10_000
"""Model-steps of one shape that do not pay for its own recording.

A group's recordings of Table 1 of paper 003 take 0.4 s with the native step and 1.8 s with the
traced one on a core (`python -m benchmarks.shapes`), at 4,000 and 1,500 model-steps/s; padding
makes a step 1.1 and 2.7 times as long. So recordings pay off after about 20,000 and 1,600
model-steps.
"""
FEW_TRIALS = 8
"""Trials of one shape at which most of a pack's time is what any number of lanes costs."""


def padding_rule(levels: Collection[Level], search: Search) -> Callable[[Mapping[str, Any]], bool]:
    """Return a function that tells, from a trial's sections, if its sizes are padded.

    `levels` are those of the drawn sizes. Trials are padded whose model allows it and whose shape
    has few trials (FEW_TRIALS) or few model-steps (FEW_STEPS). Only trials that are sure to have
    the same sizes count: a group if all sizes are drawn for the group, the trial alone if one is
    drawn for the trial. If no size is drawn, or one group is the study, nothing is padded, nor
    with diagnostics or accumulation, which know no padding, nor under a stopping policy that
    compares the trials of a pack. The decision depends on the space alone. As a launch may change the
    number of trials and the stopping policies, only new trials are decided about: those that exist
    keep the decision in their stored configuration (`spaces.space.Space.restore`).
    """
    is_grouped = bool(levels) and max(levels) is Level.GROUP
    policies = (policy for policy in search.stopping if isinstance(policy, KnowsPadding))
    is_compared = any(policy.padding_obstacle for policy in policies)
    if not levels or is_compared or (is_grouped and search.trials <= search.group):
        return lambda _: False
    sharing = search.group if is_grouped else 1

    def few(sections: Mapping[str, Any]) -> bool:
        parts, training = (sections["model"], sections["optimizer"]), sections["training"]
        is_common = sharing >= FEW_TRIALS and sharing * training.steps >= FEW_STEPS
        if training.diagnostics or training.accumulate > 1 or is_common:
            return False
        # Asked last, as isinstance of a protocol takes longer than all else here.
        return all(isinstance(part, KnowsPadding) and not part.padding_obstacle for part in parts)

    return few


def follow_space(sections: Mapping[str, Any]) -> bool:
    """Return the space's own decision."""
    return sections["training"].pad_shapes
