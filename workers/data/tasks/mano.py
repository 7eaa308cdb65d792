"""Mano: nested arithmetic modulo a prime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from spaces.plugins.fields import size
from spaces.records import Params
from workers.data.splits import Split, below, draw_in_split, fractions
from workers.data.tasks import Batch
from workers.data.tasks._completion import Completion, Examples
from workers.data.tasks._expressions import PAD, Forms, forms
from workers.numerics.randomness import GOLDEN, Streams, mix
from workers.numerics.tensors import constant


@dataclass(frozen=True, kw_only=True)
class Mano(Completion):
    """Nested +, - and * modulo n, in infix notation: (2-(6-1))*3 gives 5 (paper 002, Table 1).

    Scaled down from Allen-Zhu 2025 as paper 002 does: n = 7, 1 to 3 operations, no token for their
    number, 100,000 training examples. The number of operations is uniform; of m operations the left
    part has 0 .. m - 1, uniform. Numbers are tokens 0 .. n - 1, then + - * ( and ).

    The training set is the same for all trials, and batches draw from it with replacement; it
    repeats short expressions and has a tenth of the 324,135 with three operations. An example's
    first two numbers and the rest decide its split (`draw_in_split`), so that validation and test
    are disjoint from training for every number of operations: of the 147 expressions with one
    operation, 129 are trained on, 9 validated and 9 tested. (A test set disjoint from 100,000 drawn
    examples, as paper 002 has it, has next to none of one and two operations.) The test set of each
    number of operations is a condition, `operations=3`. Always answering 0 is right for 20 % in
    training.
    """

    modulus: int = size(7, low=5, high=1000)
    operations: int = size(3, low=1, high=5)
    training_examples: int = size(100_000)

    @property
    def symbols(self) -> int:
        return self.modulus + 5

    @property
    def context(self) -> int:
        return forms(self.operations).longest + 1

    def examples(self, streams: Streams, batch: int, split: Split) -> Examples:
        if split is not Split.TRAINING:
            return self._examples(fractions(streams, batch, self._fractions), split)
        chosen = below(fractions(streams, batch), self.training_examples)  # [L, N]
        fixed = Streams(state=mix(chosen.flatten() * GOLDEN))  # one stream for each example
        return self._examples(fractions(fixed, self._fractions).view(*chosen.shape, -1), split)

    def shifted_sets(self, streams: Streams, batch: int) -> Mapping[str, Batch]:
        form, rest = fractions(streams, batch, self._fractions).split([1, self._fractions - 1], dim=-1)
        sets: dict[str, Batch] = {}
        for smaller in range(self.operations):  # forms of fewer operations lie below
            inside = (form + (smaller << 32) + self.operations - 1) // self.operations
            examples = self._examples(torch.cat([inside, rest], -1), Split.TEST)
            sets[f"operations={smaller + 1}"] = self.evaluation_set(examples)
        return sets

    def facts(self) -> Params:
        return {"chance": 1 / self.modulus}

    @property
    def _fractions(self) -> int:
        """Numbers that make an example: form, operators, first two numbers, other numbers."""
        return 2 * self.operations + 1

    def _examples(self, drawn: Tensor, split: Split) -> Examples:
        table = forms(self.operations, drawn.device)
        form, operators, two, numbers = drawn.split([1, self.operations, 1, self.operations - 1], dim=-1)
        form = torch.bucketize(form[..., 0].contiguous(), table.bounds, right=True)  # [L, N]
        operators, numbers = below(operators, 3), below(numbers, self.modulus)
        others = self._text(table, form, operators, torch.nn.functional.pad(numbers, (2, 0)))
        pair = draw_in_split(two[..., 0], others, self.modulus**2, split)
        numbers = torch.cat([(pair // self.modulus)[..., None], (pair % self.modulus)[..., None], numbers], -1)
        return Examples(
            input=self._text(table, form, operators, numbers),
            output=self._values(table, form, operators, numbers),
            input_length=table.lengths[form][..., None],
            output_length=1,
            asking=self.separator,
        )

    def _text(self, table: Forms, form: Tensor, operators: Tensor, numbers: Tensor) -> Tensor:
        """Return the expression, then padding, [L, N, a]."""
        rest = constant((self.modulus + 3, self.modulus + 4, self.padding), form.device)
        palette = torch.cat([numbers, operators + self.modulus, rest.expand(*form.shape, PAD)], -1)
        return palette.gather(-1, table.text[form])

    def _values(self, table: Forms, form: Tensor, operators: Tensor, numbers: Tensor) -> Tensor:
        """Return the value mod n, [L, N, 1]."""
        known = numbers
        for step, operator in enumerate(operators.split(1, dim=-1)):
            sides = known.gather(-1, table.steps[form][..., step, :])
            left, right = sides.split(1, dim=-1)
            results = torch.cat([left + right, left - right, left * right], -1) % self.modulus
            known = torch.cat([known, results.gather(-1, operator)], -1)
        return known.gather(-1, table.results[form][..., None])
