"""Masked language modelling: the hidden tokens of a text."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spaces.errors import PluginError
from spaces.plugins.fields import knob, option
from workers.data.splits import below, fractions
from workers.data.tasks import Batch, SomeTokens
from workers.data.tasks._language import LanguageTask
from workers.data.tasks._probes import Ask, one_masked, whole
from workers.numerics.randomness import Streams

_WAYS: dict[str, Ask] = {"one_masked": one_masked, "whole": whole}


@dataclass(frozen=True, kw_only=True)
class MaskedLanguage(LanguageTask, SomeTokens):
    """Hidden tokens of a window of text from all the others, as in BERT and RoBERTa.

    Of a window's s tokens `share` * s, rounded up or down at random and at least one, are drawn
    anew each time. In their places stand the mask, with probability `random` a uniformly random
    token, or with `leave_unmasked` (0 in BabyBERTa, Huebner et al. 2021) the token itself. Loss and
    metrics are means over these. It needs a model that sees both sides.

    A probe's sentence, between two ends of documents, is evaluated by `probe_way`: `one_masked`
    hides one token after the other (BabyBERTa's "mlm" with the sum), `whole` none (its "holistic"
    score with the mean). Source: Devlin et al. 2019, section 3.1; Liu et al. 2019, section 4.1.
    """

    share: float = knob(0.15, low=0, high=1, open_low=True)
    leave_unmasked: float = knob(0.1, low=0, high=1)
    random: float = knob(0.1, low=0, high=1)
    probe_way: str = option("one_masked", tuple(_WAYS))

    def __post_init__(self) -> None:
        if self.leave_unmasked + self.random > 1:
            raise PluginError(
                f"task.leave_unmasked: {self.leave_unmasked} and task.random {self.random} must be 1 at most together"
            )

    @property
    def tokens(self) -> int:
        return self.mask + 1

    @property
    def mask(self) -> int:
        """The token that hides another, v + 1."""
        return self.tokenised.end + 1

    @property
    def causal(self) -> bool:
        return False

    @property
    def ask(self) -> Ask:
        return _WAYS[self.probe_way]

    def examples(self, windows: Tensor, streams: Streams) -> Batch:
        """Return `inputs` with hidden tokens, `targets`, and `wanted` [L, N, s], True at these."""
        targets = windows[..., 1:]
        rows, length = targets.shape[1:]
        rounding, fate, other = fractions(streams, rows, 1 + 2 * length).split([1, length, length], dim=-1)
        count = (_per_lane(self.share, rounding) * length + rounding.double() / 2**32).floor().clamp(1, length)
        order = Streams(state=streams.state + 1).permutations(rows, length, length)
        wanted = order < count
        fate = fate.double() / 2**32
        shown = torch.where(fate < _per_lane(self.random, fate), below(other, self.tokenised.end), self.mask)
        shown = torch.where(fate >= 1 - _per_lane(self.leave_unmasked, fate), targets, shown)
        return {"inputs": torch.where(wanted, shown, targets), "targets": targets, "wanted": wanted}

    def metric_positions(self, batch: Batch) -> Tensor:
        return batch["wanted"]


def _per_lane(knob: float | Tensor, like: Tensor) -> Tensor:
    """Return a knob as [L, 1, 1] float64, or [1, 1, 1] outside the engine."""
    return torch.as_tensor(knob, dtype=torch.float64, device=like.device).view(-1, 1, 1)
