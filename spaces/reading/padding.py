"""Decides, where a space does not, if trials of different sizes share packs by zero padding."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from spaces.grammar.formulas import Level
from spaces.plugins.protocols import KnowsPadding
from spaces.settings import Search

FEW_STEPS = 10_000
"""Model-steps of one shape that do not pay for its own recording.

Of Table 1 of paper 003 a group's recordings take 0.4 s with the native step and 1.8 s with the traced one on a core
(`python -m benchmarks.shapes`), at 4,000 and 1,500 model-steps/s; padding makes a step 1.1 and 2.7 times as long. So
recordings pay off after about 20,000 and 1,600 model-steps.
"""
FEW_TRIALS = 8
"""Trials of one shape at which most of a pack's time is what any number of lanes costs."""


def padding_rule(levels: Collection[Level], search: Search) -> Callable[[Mapping[str, Any]], bool]:
    """Return the function that decides from a trial's sections whether its sizes are padded; `levels` are those of
    the drawn sizes.

    Padded are trials whose model allows it and whose shape has few trials (FEW_TRIALS) or few model-steps (FEW_STEPS).
    Those counted are sure to have the same sizes: a group where all sizes are drawn for the group, the trial alone
    where one is drawn for the trial. Where no size is drawn, and where one group is the study, nothing is padded. It is
    a function of the space alone, never of time measured or of other trials, so that a replay decides alike. Nor is
    anything padded under a stopping policy that compares the trials of a pack, which would then be of many sizes.
    """
    if any(isinstance(policy, KnowsPadding) and policy.padding_obstacle for policy in search.stopping):
        return _never
    if not levels or (max(levels) is Level.GROUP and search.trials <= search.group):
        return _never
    sharing = search.group if max(levels) is Level.GROUP else 1

    def few(sections: Mapping[str, Any]) -> bool:
        parts, training = (sections["model"], sections["optimizer"]), sections["training"]
        if training.diagnostics or (sharing >= FEW_TRIALS and sharing * training.steps >= FEW_STEPS):
            return False
        # Asked last, as isinstance of a protocol takes longer than all else that is decided for a draw.
        return all(isinstance(part, KnowsPadding) and not part.padding_obstacle for part in parts)

    return few


def follow_space(sections: Mapping[str, Any]) -> bool:
    """Decide as the space itself says."""
    return sections["training"].pad_shapes


def _never(_: Mapping[str, Any]) -> bool:
    return False
