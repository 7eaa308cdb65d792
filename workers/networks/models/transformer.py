"""The GPT-style transformer over tokens: every position sees those up to itself.

Layers are in `_layers`, their parts in `_blocks`, embeddings in `_tokens`; all are written for one
trial, and the engine stacks lanes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from workers.networks.models._tokens import TokenTransformer


@final
@dataclass(frozen=True, kw_only=True)
class Transformer(TokenTransformer):
    """A decoder-only transformer like GPT-2.

    `pre_norm: false` gives the model of paper 002, Appendix B (docs/experiments/papers.md). Logits at
    a position are those of the next token.
    """

    @property
    def causal(self) -> bool:
        return True
