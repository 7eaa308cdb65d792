"""The BERT-style transformer over tokens: every position sees both sides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from workers.networks.models._tokens import TokenTransformer


@final
@dataclass(frozen=True, kw_only=True)
class Encoder(TokenTransformer):
    """The transformer without the causal mask, for masked language modelling (Devlin et al. 2019).

    The unembedding predicts masked tokens; padding is not seen.
    """

    @property
    def causal(self) -> bool:
        return False
