"""Decimal addition, whatever the order of the digits."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from spaces.plugins.fields import size
from spaces.records import Params, Scalar
from workers.data.splits import Split, below, draw_in_split, fractions
from workers.data.tasks._completion import Completion, Examples
from workers.numerics.randomness import Streams

PLUS = 10


@dataclass(frozen=True, kw_only=True)
class Addition(Completion):
    """Two numbers of `digits` digits and their sum (paper 002, Table 1; Zhong and Andreas 2024).

    Digits are tokens 0 .. 9, plus is token 10; a number's first digit is never 0. The sum has no
    leading zeros (Table 1), so it has `digits` tokens or one more, and none that ends it. All of
    them count, also the first, which the code of Zhong and Andreas leaves out. A pair belongs to a
    split in one order, in the other order maybe to another. Always answering 1 is right for 22 %.
    """

    digits: int = size(4, low=2, high=6)

    @final
    @property
    def symbols(self) -> int:
        return 11

    @final
    @property
    def context(self) -> int:
        return 3 * self.digits + 2

    @abstractmethod
    def write(self, numerals: Tensor) -> Tensor:
        """Return numerals [..., n], the least significant digit first, in the order of the task."""

    def examples(self, streams: Streams, batch: int, split: Split) -> Examples:
        drawn = fractions(streams, batch, 2)
        smallest = 10 ** (self.digits - 1)
        first = below(drawn[..., :1], 9 * smallest)
        second = draw_in_split(drawn[..., 1], first, 9 * smallest, split)[..., None]
        total = first + second + 2 * smallest
        left, right = (self.write(_digits(number + smallest, self.digits)) for number in (first, second))
        carried = total >= 10 * smallest  # [L, N, 1]: the sum has one digit more
        short = torch.nn.functional.pad(self.write(_digits(total, self.digits)), (0, 1))
        return Examples(
            input=torch.cat([left, torch.full_like(first, PLUS), right], -1),
            output=torch.where(carried, self.write(_digits(total, self.digits + 1)), short),
            input_length=2 * self.digits + 1,
            output_length=self.digits + carried.long(),
            asking=self.separator,
        )

    @final
    def kin(self) -> Mapping[str, Scalar]:
        """Return the key of additions that differ in the order of digits alone."""
        return {"addition": self.digits}

    def facts(self) -> Params:
        return {"chance": 1 / 10}


def _digits(numbers: Tensor, count: int) -> Tensor:
    """Return the last digits of numbers [..., 1], the least significant first, [..., count]."""
    powers = 10 ** torch.arange(count, device=numbers.device)
    return numbers // powers % 10
