"""The BERT-style transformer over tokens: every position sees both sides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from workers.networks.models._tokens import TokenTransformer


@final
@dataclass(frozen=True, kw_only=True)
class Encoder(TokenTransformer):
    """The transformer without the causal mask, as masked language modelling needs it (Devlin et al. 2019).

    Its head is the unembedding, by which masked tokens are told; what lies beyond a sequence's length is not seen.
    """

    @property
    def causal(self) -> bool:
        return False
