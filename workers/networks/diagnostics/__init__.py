"""Diagnostics of attention on a validation set, written for ONE trial; the engine stacks lanes.

A study asks for them with `training.diagnostics: true`; they are reported like metrics.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor

from spaces import plugins
from workers.data.tasks import Batch
from workers.networks.models import Attention, Model
from workers.numerics.parameters import Parameters


class Diagnostic(ABC):
    """A diagnostic's configuration, a frozen dataclass."""

    @abstractmethod
    def values(self, layers: Sequence[Attention], batch: Batch, outputs: Tensor) -> dict[str, Tensor]:
        """Return name (`layer=0 head=1`; empty: over all) -> one value [N] per sequence.

        `layers`: each layer's attention for the batch [N, ...]; `outputs`: the model's. The result
        is empty if the diagnostic does not apply.
        """


def diagnose(model: Model, parameters: Parameters, batch: Batch, outputs: Tensor) -> dict[str, Tensor]:
    """Return all diagnostics of a model on a batch: name -> one value [N] per sequence."""
    layers = model.attention(parameters, batch)
    diagnostics: dict[str, Tensor] = {}
    for name in plugins.names(Diagnostic):
        diagnostic = plugins.build(Diagnostic, {"name": name})
        for part, values in diagnostic.values(layers, batch, outputs).items():
            diagnostics[f"{name} {part}".strip()] = values
    return diagnostics
