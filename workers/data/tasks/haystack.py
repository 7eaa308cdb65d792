"""Needle in a haystack: the value that follows a marker's first occurrence."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from spaces.plugins.fields import size
from spaces.records import Params
from workers.data.splits import Split, below, draw_in_split, fractions
from workers.data.tasks._completion import Completion, Examples
from workers.numerics.randomness import Streams


@dataclass(frozen=True, kw_only=True)
class Haystack(Completion):
    """m_1 c_1 ... m_k c_k m_u asks for the value c after the first marker m_u (paper 002, Table 1).

    k is uniform on 1 .. `pairs`; markers and values are uniform and may repeat; u is uniform on the
    k pairs. Markers are tokens 0 .. n - 1, also where they are asked for, and values n .. 2 n - 1.
    (Zhong and Andreas 2024 have distinct markers, and other tokens for the question.) c_1 and the
    rest decide the split.

    No separator: the answer follows m_u, as in Table 1 and Zhong and Andreas, though section 3 has
    one in every task. Small models learn without one: with 4 pairs, 16 markers, width 32, batch 128
    and rates .003 and .005 they reach 100 % within 2,000 steps; with one they still guess after
    2,500 (52 to 59 %; post- or pre-norm, one seed each).
    """

    pairs: int = size(10)
    markers: int = size(64, low=16)
    """Number n of different markers, and of different values."""

    @property
    def symbols(self) -> int:
        return 2 * self.markers

    @property
    def context(self) -> int:
        return 2 * self.pairs + 1

    def examples(self, streams: Streams, batch: int, split: Split) -> Examples:
        drawn = fractions(streams, batch, 2 + 2 * self.pairs)
        count, asked, markers, values = drawn.split([1, 1, self.pairs, self.pairs], dim=-1)
        count = below(count, self.pairs) + 1  # [L, N, 1]
        markers = below(markers, self.markers)
        question = markers.gather(-1, below(asked, count))
        values = below(values, self.markers) + self.markers
        index = torch.arange(2 * self.pairs, device=drawn.device)
        body = torch.stack([markers, values], -1).flatten(-2)  # [L, N, 2 pairs]
        others = torch.cat([question, body.masked_fill((index == 1) | (index >= 2 * count), 0)], -1)
        first = draw_in_split(drawn[..., 2 + self.pairs], others, self.markers, split) + self.markers
        body = torch.where(index == 1, first[..., None], body)
        answer = 2 * (markers == question).int().argmax(-1, keepdim=True) + 1
        return Examples(
            input=body,
            output=body.gather(-1, answer),
            input_length=2 * count,
            output_length=1,
            asking=question,
            answer=answer,
        )

    def facts(self) -> Params:
        return {"chance": 1 / self.markers}
