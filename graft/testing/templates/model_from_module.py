"""A model: a torch.nn.Module, called with the trial's own parameters."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from spaces.plugins.fields import size
from workers.data.tasks import TokenTask
from workers.networks.modules import ModuleModel


class Network(nn.Module):
    """A residual GRU over embedded tokens. Replace it by a module of yours or an imported one."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.cell = nn.GRUCell(width, width)
        self.norm = nn.LayerNorm(width)
        self.readout = nn.Linear(width, tokens)

    def forward(self, inputs: Tensor) -> Tensor:
        stream = self.embedding(inputs)  # [sequences, length, width]
        state, states = stream.new_zeros(stream.shape[0], stream.shape[2]), list[Tensor]()
        for position in stream.unbind(1):
            state = self.cell(position, state)
            states.append(state)
        return self.readout(self.norm(stream + torch.stack(states, 1)))


@dataclass(frozen=True, kw_only=True)
class Example(ModuleModel):
    """A gated recurrent network over tokens, as torch has it. Source: Cho et al. 2014."""

    width: int = size(16)

    @property
    def causal(self) -> bool:
        # Whether what it says at a position depends on the inputs up to that position alone.
        return True

    def module(self, task: TokenTask) -> nn.Module:
        return Network(task.tokens, self.width)
