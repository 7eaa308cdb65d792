"""A model: its parameters, and what it says of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding

from spaces.plugins.fields import part, size
from workers.data.tasks import Batch, Task, TokenTask
from workers.networks.models import Model, Site, check_causality, require_task
from workers.networks.scorers import Scorer
from workers.numerics.parameters import Parameter, Parameters, under, within


@dataclass(frozen=True, kw_only=True)
class Example(Model):
    """One head of causal attention over embedded tokens, read out by a table; no positions."""

    width: int = size(16)
    scorer: Scorer = part(Scorer, "softmax")

    @property
    def causal(self) -> bool:
        return True

    def check(self, task: Task) -> None:
        check_causality(require_task(TokenTask, task, self), self, causal=True)

    def parameters(self, task: Task) -> Mapping[str, Parameter]:
        tokens = require_task(TokenTask, task, self).tokens
        return {
            "embedding": Parameter(shape=(tokens, self.width)),
            "query": Parameter(shape=(self.width, self.width), matrices=1),
            "key": Parameter(shape=(self.width, self.width), matrices=1),
            "unembedding": Parameter(shape=(self.width, tokens)),
            **under("scorer", self.scorer.parameters(1)),
        }

    def dropout_sites(self, task: Task, batch: int, length: int) -> Mapping[str, Site]:
        return {}

    def outputs(self, parameters: Parameters, batch: Batch, keep: Mapping[str, Tensor]) -> Tensor:
        # For one trial: inputs [sequences, length]; the engine stacks trials.
        stream = embedding(batch["inputs"], parameters["embedding"])
        # [sequences, 1 head, length, c]
        query, key = (stream[:, None] @ parameters[name] for name in ("query", "key"))
        length = stream.shape[1]
        visible = torch.ones(length, length, dtype=torch.bool, device=stream.device).tril()
        weights = self.scorer.weights(query, key, visible, within("scorer", parameters))[:, 0]
        return (stream + weights @ stream) @ parameters["unembedding"]
