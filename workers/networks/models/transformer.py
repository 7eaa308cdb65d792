"""The GPT-style transformer over tokens: every position sees those up to itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from workers.networks.models._tokens import TokenTransformer


@final
@dataclass(frozen=True, kw_only=True)
class Transformer(TokenTransformer):
    """A decoder-only transformer like GPT-2; with `pre_norm: false`, as in paper 002 (Appendix B).

    Logits at a position are those of the next token.
    """

    @property
    def causal(self) -> bool:
        return True
