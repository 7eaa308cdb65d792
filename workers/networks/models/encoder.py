"""The BERT-style transformer over tokens: every position sees both sides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from workers.networks.models._tokens import TokenTransformer


@final
@dataclass(frozen=True, kw_only=True)
class Encoder(TokenTransformer):
    """The transformer with neither causal mask nor visible padding, as in Devlin et al. 2019."""

    @property
    def causal(self) -> bool:
        return False
