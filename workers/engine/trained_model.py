"""A trained trial as a torch module: called on a batch it answers as it did when it was validated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor, nn

from spaces.errors import StudyError
from spaces.messages import no_such
from spaces.records import Trial
from workers.data.tasks import Batch
from workers.engine.pack.lane_tensors import evaluation_seed_of
from workers.networks.models import Model
from workers.training.recipe import Recipe, evaluate, evaluation_sets, layout_of


@final
class TrainedModel(nn.Module):
    """The model of one trial with the weights that it learned.

    Its parameters have the names that they have in a safetensors file: `layers.0.output` is the attribute `output` of
    `layers[0]`'s submodule.
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
        """What the model says of a batch, without its lane axis: logits or numbers, as `Model.outputs` has it.

        A tensor [N, s, ...] stands for `{"inputs": tensor}`; sets need `lengths` and `query`, too.
        """
        whole: Batch = {"inputs": batch} if isinstance(batch, Tensor) else dict(batch)

        def answer(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {"outputs": self._model().outputs(parameters, whole, {})}

        flat = self._layout.join(dict(self.named_parameters()))
        return self.recipe.learning.evaluate(self._layout, flat, answer)["outputs"]

    def batches(self) -> dict[str, Batch]:
        """The sets that the trial was evaluated on, by condition; under the empty one the validation set."""
        count = self.recipe.training.validation_batch
        sets = evaluation_sets(self.recipe.task, torch.tensor([self._seed]), count)
        return {condition: {name: tensor[0] for name, tensor in whole.items()} for condition, whole in sets.items()}

    def batch(self, condition: str = "") -> Batch:
        """One of `batches`; raises StudyError with the choices if there is none of this condition."""
        found = self.batches()
        if condition not in found:
            raise StudyError(no_such("condition of this task", condition, filter(None, found)))
        return found[condition]

    @torch.no_grad()
    def metrics(self, condition: str = "") -> dict[str, float]:
        """The metrics on one of these sets, as validation reports them."""
        flat = self._layout.join(dict(self.named_parameters()))
        found = evaluate(self.recipe, self._layout, self._model(), flat, self.batch(condition))
        means = {name: values.double().mean().item() for name, values in found.items()}
        return dict(self.recipe.task.summary(means))

    def _model(self) -> Model:
        """The model that is validated: some scorers are others then than in training."""
        return self.recipe.model.evaluations()[""]


def trained_model(trial: Trial, weights: Mapping[str, Any]) -> TrainedModel:
    """From weights as arrays, as `workers.engine.replay.weights` gives them."""
    return TrainedModel(trial, {name: torch.as_tensor(array) for name, array in weights.items()}).eval()
