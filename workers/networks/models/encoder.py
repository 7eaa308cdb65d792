"""The BERT-style transformer over tokens: every position sees both sides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from workers.data.tasks import Task
from workers.data.tasks.masked_language import MaskedLanguage
from workers.networks.models import check_padding
from workers.networks.models._tokens import TokenTransformer


@final
@dataclass(frozen=True, kw_only=True)
class Encoder(TokenTransformer):
    """The transformer without the causal mask, for masked language modelling (Devlin et al. 2019).

    The unembedding predicts masked tokens; padding is not seen.
    """

    def check(self, task: Task) -> None:
        super().check(task)
        if isinstance(task, MaskedLanguage) and task.probes:
            check_padding(self.scorer, self)

    @property
    def causal(self) -> bool:
        return False
