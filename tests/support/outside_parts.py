"""Scorers and an activation that are in no package, as a researcher writes them into files."""

from __future__ import annotations

from pathlib import Path

SCORER = '''
"""An own scorer."""

from dataclasses import dataclass

import torch
from torch import Tensor

from spaces.plugins.fields import knob
from workers.networks.scorers import LogitScorer, masked_softmax, per_head
from workers.numerics.parameters import Constant, Parameter, Parameters


@dataclass(frozen=True, kw_only=True)
class Bent(LogitScorer):
    """softmax(w asinh(z) / sharpness), w learned."""

    sharpness: float = knob(0.8, low=0, open_low=True)

    def parameters(self, heads: int):
        return {"w": Parameter(shape=(heads,), start=Constant(value=1.3), decay=False)}

    def weigh(self, logits: Tensor, visible: Tensor, learned: Parameters) -> Tensor:
        size = torch.log(logits.abs() + (logits.square() + 1).sqrt())
        return masked_softmax(per_head(learned["w"]) * size * logits.sign() / self.sharpness, visible)
'''

ACTIVATION = '''
"""An own activation."""

from dataclasses import dataclass

from torch import Tensor

from spaces.plugins.fields import knob
from workers.networks.activations import Activation
from workers.numerics.parameters import Constant, Parameter, Parameters


@dataclass(frozen=True, kw_only=True)
class Curved(Activation):
    """x sigmoid(w x) + bend sin(x), w learned."""

    bend: float = knob(0.3)

    def parameters(self):
        return {"w": Parameter(shape=(), start=Constant(value=1.2), decay=False)}

    def apply(self, values: Tensor, learned: Parameters) -> Tensor:
        return values * (learned["w"] * values).sigmoid() + self.bend * values.sin()
'''

KERNEL = '''
"""An own scorer of features."""

from dataclasses import dataclass

import torch
from torch import Tensor

from spaces.plugins.fields import knob, part
from workers.networks.activations import Activation
from workers.networks.scorers import KernelScorer, per_head
from workers.numerics.parameters import Constant, Parameter, Parameters


@dataclass(frozen=True, kw_only=True)
class Near(KernelScorer):
    """A power of 1 + w (phi(q) . phi(k) / (1 + distance))^2 over its sum, w learned."""

    power: float = knob(1.0)
    phi: Activation = part(Activation, "gelu")

    @property
    def features(self) -> Activation:
        return self.phi

    def parameters(self, heads: int):
        return {**super().parameters(heads), "w": Parameter(shape=(heads,), start=Constant(value=0.7), decay=False)}

    def placing(self, queries: int, keys: int, device: torch.device) -> Tensor:
        rows, columns = (torch.arange(count, device=device) for count in (queries, keys))
        return 1 / (1 + (rows[:, None] - columns).abs().double())

    def weigh(self, products: Tensor, visible: Tensor, learned: Parameters) -> Tensor:
        kernel = (1 + per_head(learned["w"]) * products.square()) ** self.power
        kernel = kernel.masked_fill(~visible, 0.0)
        return kernel / kernel.sum(-1, keepdim=True)
'''


def write_kernel(folder: Path) -> str:
    """Write the scorer `near`; returns its file."""
    (folder / "near.py").write_text(KERNEL)
    return str(folder / "near.py")


def write_parts(folder: Path) -> list[str]:
    """Write the scorer `bent` and the activation `curved`; returns their files."""
    files = {"bent": SCORER, "curved": ACTIVATION}
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return [str(folder / f"{name}.py") for name in files]
