"""The shared part of transformers over tokens: embedding and unembedding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from spaces.plugins.fields import flag, knob
from workers.data.tasks import Batch, Task, TokenTask
from workers.networks.models import check_causality, in_use, require_task
from workers.networks.models._layers import Layered
from workers.numerics.parameters import Parameter, Parameters


@dataclass(frozen=True, kw_only=True)
class TokenTransformer(Layered):
    """The stream starts with tokens' embeddings; logits are its products with the unembedding."""

    tied: bool = flag(False)
    """True if the unembedding is the embedding, transposed."""
    logit_cap: float = knob(0.0, low=0, switch=True)
    """Logits become cap * tanh(logits / cap); 0: they stay (Gemma 2, modded-nanogpt)."""

    def check(self, task: Task) -> None:
        check_causality(require_task(TokenTask, task, self), self, causal=self.causal)
        super().check(task)

    def input_parameters(self, task: Task) -> Mapping[str, Parameter]:
        tokens = require_task(TokenTask, task, self).tokens
        return {"embedding": Parameter(shape=(tokens, self.width), start=self.starts.embedding)}

    def output_parameters(self, task: Task) -> Mapping[str, Parameter]:
        tokens = require_task(TokenTask, task, self).tokens
        unembedding = Parameter(shape=(self.width, tokens), start=self.starts.unembedding)
        return {} if self.tied else {"unembedding": unembedding}

    def read(self, parameters: Parameters, batch: Batch) -> Tensor:
        return nn.functional.embedding(batch["inputs"], parameters["embedding"])

    def write(self, parameters: Parameters, stream: Tensor) -> Tensor:
        logits = stream @ (parameters["embedding"].mT if self.tied else parameters["unembedding"])
        return self.logit_cap * (logits / self.logit_cap).tanh() if in_use(self.logit_cap) else logits
