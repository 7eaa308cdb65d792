"""Five tasks of somebody's own, written without a thought for compiled steps, and how each is trained.

`write_task` makes a plug-in file of one of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

_HEAD = '''\
from dataclasses import dataclass
import torch
import torch.nn.functional as F
from spaces.plugins.fields import knob, size
from workers.data.tasks import NextToken, TokenTask, VectorTask
from workers.numerics.tensors import cross_entropy


@dataclass(frozen=True, kw_only=True)
class {title}({base}):
    """{title}, a task of somebody's own."""

    length: int = size(6, low=2)

    def facts(self):
        return {{"chance": 1 / 8}}
'''
_TOKENS = """
    @property
    def tokens(self):
        return 8

    @property
    def context(self):
        return self.length

    def _draw(self, streams, batch):
        return (streams.uniform(batch, self.length) * self.tokens).long()

    def validation(self, streams, batch):
        return self.training(streams, batch, torch.zeros_like(streams.state))
"""
_RIGHT = """
    def metrics(self, outputs, batch):
        right = (outputs.argmax(-1) == batch["targets"]).to(outputs.dtype).mean(-1)
        return {"accuracy": right, "cross_entropy": cross_entropy(outputs, batch["targets"]).mean(-1)}
"""


class OwnTask(NamedTuple):
    """A task's file, the model that trains it, and what is said of its step."""

    base: str
    body: str
    model: str
    metric: str
    step: str


_TRANSFORMER = "{name: transformer, width: 8, depth: 1, heads: 2, mlp_multiple: 1}"
TASKS = {
    # The loss of NextToken, over all positions: nothing is to be said, and it is native.
    "reversed_text": OwnTask(
        "NextToken",
        _TOKENS
        + """
    def training(self, streams, batch, step):
        inputs = self._draw(streams, batch)
        return {"inputs": inputs, "targets": inputs.flip(-1)}
"""
        + _RIGHT,
        _TRANSFORMER,
        "maximize: accuracy/raw",
        "native",
    ),
    # A loss over the last position alone.
    "last_sum": OwnTask(
        "TokenTask",
        _TOKENS
        + """
    def training(self, streams, batch, step):
        inputs = self._draw(streams, batch)
        return {"inputs": inputs, "targets": inputs.sum(-1) % self.tokens}

    def loss(self, outputs, batch):
        return cross_entropy(outputs[:, -1], batch["targets"]).mean()

    def metrics(self, outputs, batch):
        right = (outputs[:, -1].argmax(-1) == batch["targets"]).to(outputs.dtype)
        return {"accuracy": right, "cross_entropy": cross_entropy(outputs[:, -1], batch["targets"])}
""",
        _TRANSFORMER,
        "maximize: accuracy/raw",
        "generated: the loss of own_last_sum",
    ),
    # Smoothed labels, with a strength that trials draw.
    "smoothed_copy": OwnTask(
        "TokenTask",
        "    smoothing: float = knob(0.1, low=0, high=1)\n"
        + _TOKENS
        + """
    def training(self, streams, batch, step):
        inputs = self._draw(streams, batch)
        return {"inputs": inputs, "targets": inputs.roll(1, -1)}

    def loss(self, outputs, batch):
        every = -outputs.log_softmax(-1)
        right = every.gather(-1, batch["targets"][..., None])[..., 0]
        return ((1 - self.smoothing) * right + self.smoothing * every.mean(-1)).mean()
"""
        + _RIGHT,
        _TRANSFORMER,
        "maximize: accuracy/raw",
        "generated: the loss of own_smoothed_copy",
    ),
    # Regression by a robust loss.
    "noisy_line": OwnTask(
        "VectorTask",
        """
    @property
    def features(self):
        return 1

    @property
    def outputs(self):
        return 1

    @property
    def context(self):
        return self.length

    def training(self, streams, batch, step):
        slope = 2 * streams.uniform(batch, 1) - 1
        inputs = 2 * streams.uniform(batch, self.length) - 1
        return {"inputs": inputs[..., None], "targets": (slope * inputs)[..., None]}

    def validation(self, streams, batch):
        return self.training(streams, batch, torch.zeros_like(streams.state))

    def loss(self, outputs, batch):
        return F.huber_loss(outputs, batch["targets"])

    def metrics(self, outputs, batch):
        return {"error": (outputs - batch["targets"]).abs().mean((-2, -1))}
""",
        "{name: regressor, width: 8, depth: 1, heads: 2, mlp_multiple: 1}",
        "minimize: error/raw",
        "traced: the loss of own_noisy_line",
    ),
    # An encoder's: each position sees all others.
    "sorted_places": OwnTask(
        "TokenTask",
        _TOKENS
        + """
    @property
    def causal(self):
        return False

    def training(self, streams, batch, step):
        inputs = self._draw(streams, batch)
        return {"inputs": inputs, "targets": inputs.sort(-1).values}

    def loss(self, outputs, batch):
        near = (outputs.softmax(-1) * torch.arange(8.0, device=outputs.device).to(outputs.dtype)).sum(-1)
        return cross_entropy(outputs, batch["targets"]).mean() + 0.1 * (near - batch["targets"]).square().mean()
"""
        + _RIGHT,
        "{name: encoder, width: 8, depth: 1, heads: 2, mlp_multiple: 1}",
        "maximize: accuracy/raw",
        "generated: the loss of own_sorted_places",
    ),
}


def write_task(folder: Path, name: str) -> Path:
    """Write the plug-in file `own_<name>.py` of a task."""
    task = TASKS[name]
    title = "Own" + "".join(word.capitalize() for word in name.split("_"))
    file = folder / f"own_{name}.py"
    file.write_text(_HEAD.format(title=title, base=task.base) + task.body)
    return file
