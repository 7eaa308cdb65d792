"""Language modelling: the next token of running text."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from workers.data.tasks import Batch, NextToken
from workers.data.tasks._language import LanguageTask
from workers.data.tasks._probes import Ask, next_token
from workers.numerics.randomness import Streams


@dataclass(frozen=True, kw_only=True)
class Language(LanguageTask, NextToken):
    """Each token of a window of text from those before it (paper 002, section 4).

    The loss is the mean over all positions; `nll`, `perplexity` and `accuracy` are those of the
    second half of the window, which has a context (Appendix B). The paper's perplexity, of the
    training data and all positions, is exp(`loss`). Tokens' frequencies alone give `task.chance`
    (accuracy) and `task.unigram_perplexity`. A sentence of a probe is read after the end of a
    document.
    """

    @property
    def tokens(self) -> int:
        return self.tokenised.end + 1

    @property
    def ask(self) -> Ask:
        return next_token

    def examples(self, windows: Tensor, streams: Streams) -> Batch:
        return {"inputs": windows[..., :-1], "targets": windows[..., 1:]}

    def metric_positions(self, batch: Batch) -> Tensor:
        targets = batch["targets"]
        length = targets.shape[-1]
        return (torch.arange(length, device=targets.device) >= length // 2).expand(targets.shape)
