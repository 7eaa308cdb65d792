"""A trained trial as a torch module, which answers as it did when it was validated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, final

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from spaces.errors import StudyError
from spaces.messages import no_such
from spaces.plugins import name_of
from spaces.records import Trial
from workers.data.tasks import Batch, is_given
from workers.engine.pack.lane_data import draw_sets_of
from workers.engine.pack.lane_tensors import evaluation_seed_of
from workers.networks.models import Model
from workers.training.recipe import Recipe, evaluate, layout_of, summarise


class AttentionMaps(NamedTuple):
    """The attention on the first sequences of an evaluation set."""

    layers: Sequence[NDArray[Any]]
    """The weights [N, h, q, k] of each layer."""
    inputs: NDArray[Any]
    """Tokens [N, k], or numbers [N, k, f]."""
    given: NDArray[Any]
    """True [N, k] at inputs that are no padding."""


@final
class TrainedModel(nn.Module):
    """The model of one trial with the weights that it learned.

    Its parameters have their names in a safetensors file: `layers.0.output` is the attribute
    `output` of the submodule `layers.0`.
    """

    def __init__(self, trial: Trial, weights: Mapping[str, Tensor]) -> None:
        """`weights`: by name, without padding."""
        super().__init__()
        self.recipe = Recipe.of(trial.config)
        """The trial's plug-ins: task, model, optimizer."""
        self._seed = evaluation_seed_of(trial)
        self._layout = layout_of(self.recipe)
        for name, tensor in weights.items():
            *folders, last = name.split(".")
            module: nn.Module = self
            for folder in folders:
                if not hasattr(module, folder):
                    module.add_module(folder, nn.Module())
                module = module.get_submodule(folder)
            module.register_parameter(last, nn.Parameter(tensor.detach().clone().to(self.recipe.dtype)))

    def forward(self, batch: Tensor | Batch) -> Tensor:
        """Return the outputs for a batch without lane axis, or for its `inputs` alone."""
        whole: Batch = {"inputs": batch} if isinstance(batch, Tensor) else dict(batch)

        def answer(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {"outputs": self._model().outputs(parameters, whole, {})}

        flat = self._layout.join(dict(self.named_parameters()))
        return self.recipe.learning.evaluate(self._layout, flat, answer)["outputs"]

    def batches(self) -> dict[str, Batch]:
        """Return the trial's evaluation sets by condition; the validation set's is empty."""
        return draw_sets_of(self.recipe, self._seed)

    def batch(self, condition: str = "") -> Batch:
        """Return one of `batches`; raises StudyError with the choices for another condition."""
        batches = self.batches()
        if condition not in batches:
            raise StudyError(no_such("condition of this task", condition, filter(None, batches)))
        return batches[condition]

    @torch.no_grad()
    def metrics(self, condition: str = "") -> dict[str, float]:
        """Return the metrics on one of these sets, as validation reports them."""
        flat = self._layout.join(dict(self.named_parameters()))
        metrics = evaluate(self.recipe, self._layout, self._model(), flat, self.batch(condition))
        means = {name: values.double().mean().item() for name, values in metrics.items()}
        return dict(summarise(self.recipe, means))

    @torch.no_grad()
    def attention(self, condition: str = "", count: int = 32) -> AttentionMaps:
        """Return attention on the first `count` sequences of a batch, the mean over models.

        `condition` may end with an evaluation's label, as metrics' do: `items=64 scorer=trained`.
        Raises StudyError for an unknown condition, and for a model that has no attention to show.
        """
        words = condition.split()
        labels = self.recipe.model.evaluations()
        label = max((name for name in labels if set(name.split()) <= set(words)), key=len)
        whole = self.batch(" ".join(word for word in words if word not in label.split()))
        batch = {name: tensor[:count] for name, tensor in whole.items()}

        def attend(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {str(at): layer.weights for at, layer in enumerate(labels[label].attention(parameters, batch))}

        flat = self._layout.join(dict(self.named_parameters()))
        weights = self.recipe.learning.evaluate(self._layout, flat, attend)
        if not weights:
            raise StudyError(f"model.name: {name_of(self.recipe.model)!r} has no weights of attention to show")
        layers = [weights[name].numpy() for name in sorted(weights, key=int)]
        return AttentionMaps(layers, batch["inputs"].numpy(), is_given(batch).numpy())

    def _model(self) -> Model:
        """Return the model that is validated, whose scorers may differ from training's."""
        return self.recipe.model.evaluations()[""]


def trained_model(trial: Trial, weights: Mapping[str, Any]) -> TrainedModel:
    """Build the model from weights as arrays, as of `workers.engine.retraining.weights`."""
    return TrainedModel(trial, {name: torch.as_tensor(weights[name]) for name in weights}).eval()
