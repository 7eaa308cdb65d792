"""Parentheses: the task whether a string of them is balanced."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spaces.plugins.fields import size
from spaces.records import Params
from workers.data.splits import Split, below, fractions
from workers.data.tasks import Batch
from workers.data.tasks._completion import Completion, Examples
from workers.numerics.randomness import Streams

OPEN, CLOSE, UNBALANCED, BALANCED = range(4)
MUTATIONS = 3


@dataclass(frozen=True, kw_only=True)
class Parentheses(Completion):
    """Is a string of ( and ), tokens 0 and 1, balanced? Token 3: yes, 2: no (paper 002, Table 1).

    Trained on lengths 1 .. `length`, evaluated on `length` + 1 .. 2 `length`: 1-20 and 21-40.
    Validation and test sets are alike.

    After the generator of Zhong and Andreas 2024: a third of the strings are random, of a uniform
    length; the others are balanced, of a uniform number of pairs, and half of these then change
    three times: two places swap (1/4), or one flips (1/4), or nothing happens. Balanced strings are
    uniform among those of their length (Arnold and Sleep, "Uniform Random Generation of Balanced
    Parenthesis Strings", 1980), where theirs come from a grammar. The result's label: 46 % are
    balanced.
    """

    length: int = size(20, low=2)

    @property
    def symbols(self) -> int:
        return 4

    @property
    def context(self) -> int:
        return self.length + 1

    @property
    def longest(self) -> int:
        return 2 * self.length + 1

    def examples(self, streams: Streams, batch: int, split: Split) -> Examples:
        shortest, longest = 1, self.length
        if split is not Split.TRAINING:
            shortest, longest = longest + 1, 2 * longest
        drawn = fractions(streams, batch, 2 + 3 * MUTATIONS + longest)
        kind, size, changes, steps = drawn.split([1, 1, 3 * MUTATIONS, longest], dim=-1)
        kind = below(kind, 3)  # 0: random, 1: balanced, 2: balanced, then changed
        most, least = longest // 2, (shortest + 1) // 2
        pairs = least + below(size, most - least + 1)
        lengths = torch.where(kind == 0, shortest + below(size, longest - shortest + 1), 2 * pairs)
        closing = torch.where(kind == 0, (steps >> 31).bool(), ~_draw_balanced(steps, 2 * pairs))
        for change in changes.split(3, dim=-1):
            closing = torch.where(kind == 2, _corrupt(closing, lengths, change), closing)
        inside = torch.arange(longest, device=closing.device) < lengths
        heights = ((1 - 2 * closing.long()) * inside).cumsum(-1)
        balanced = (heights >= 0).all(-1, keepdim=True) & (heights[..., -1:] == 0)
        label = torch.where(balanced, BALANCED, UNBALANCED)
        return Examples(
            input=closing.long(), output=label, input_length=lengths, output_length=1, asking=self.separator
        )

    def held_out(self, streams: Streams, batch: int, step: Tensor) -> Batch:
        """Return strings of validation's lengths; few, short ones, come up there, too."""
        return self._batch(self.examples(streams, batch, Split.VALIDATION), self.longest)

    def facts(self) -> Params:
        return {"chance": 1 / 2}


def _draw_balanced(steps: Tensor, length: Tensor) -> Tensor:
    """Return True where a uniformly random balanced string of `length` [L, N, 1] opens.

    With r places to come and h open, the share of completions that open is (h+2)(r-h) / (2r (h+1)).
    """
    height, opens = torch.zeros_like(length), list[Tensor]()
    for index, fraction in enumerate(steps.split(1, dim=-1)):
        left = (length - index).clamp(min=1)
        opening = fraction * (2 * left * (height + 1)) < ((height + 2) * (left - height) << 32)
        height = height + 2 * opening.long() - 1
        opens.append(opening)
    return torch.cat(opens, -1)


def _corrupt(closing: Tensor, length: Tensor, change: Tensor) -> Tensor:
    """Return the string after two places swap (1/4), or one flips (1/4); `change` is [L, N, 3]."""
    kind, first, second = change.split(1, dim=-1)
    first, second, kind = below(first, length), below(second, length), below(kind, 4)
    index = torch.arange(closing.shape[-1], device=closing.device)
    differ = closing.gather(-1, first) != closing.gather(-1, second)
    swaps = (kind == 0) & differ & ((index == first) | (index == second))
    return closing ^ (swaps | ((kind == 1) & (index == first)))
