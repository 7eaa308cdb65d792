"""Tasks, models and options of the native layered step, and torch's own gradient of each."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from tests.support.trials import config
from workers.data.tasks import Batch
from workers.engine.step import find_obstacle
from workers.networks.gradients.native_models import NativeModel, native_model
from workers.numerics.randomness import Purpose, SiteStreams, Streams, keep_mask
from workers.training.recipe import Recipe, layout_of

CPU = torch.device("cpu")
ADDITION = {"name": "add_mod", "modulus": 7}
COMPLEMENT = {"name": "set_complement", "length": 6, "vocabulary": 11}
COPYING = {"name": "copying", "length": 6}
LANGUAGE = {"name": "language", "corpus": {"name": "stories", "words": 100_000}, "length": 23}
OTHELLO = {"name": "othello", "length": 17}
TEXT = {"name": "clrs_text", "algorithm": "minimum", "largest": 4, "farthest": 4}
MASKED = {"name": "masked_language", "corpus": {"name": "stories", "words": 100_000}, "length": 19}
AFFINE = {"name": "affine", "points": 9, "curriculum_every": 100}
SOME = {"name": "some", "points": 12, "curriculum_start": 5}
REGRESSION = {"name": "linear_regression", "dimension": 3, "pairs": 8}
SCORERS: list[dict[str, Any]] = [
    {"name": "softmax", "temperature": 0.4},
    {"name": "softmax_learned", "temperature": 0.7},
    {"name": "softmax_evaluation"},
    {"name": "adaptive_temperature"},
    {"name": "length_scaled_softmax", "scale": 0.8},
    {"name": "ssa", "b": 0.7, "n": 1.2},
    {"name": "ssa_fixed", "b": 0.7, "n": 2},
    {"name": "norm_softmax"},
    {"name": "sa_softmax"},
    {"name": "average"},
    {"name": "linear", "temperature": 2},
    {"name": "linearised_softmax", "temperature": 2},
    {"name": "relu"},
    {"name": "square"},
    {"name": "tanh"},
    {"name": "sigmoid"},
    {"name": "polynomial", "power": 3},
    {"name": "polynomial", "power": 2, "keys": "all"},
    {"name": "adaptive_temperature", "phase": "always"},
    {"name": "sparsemax"},
    {"name": "entmax", "alpha": 1.3},
    {"name": "entmax_learned", "alpha": 1.6},
    {"name": "cosformer"},
    {"name": "spline_kernel", "phi": {"name": "relu"}},
    {"name": "spline_kernel"},
    {"name": "spline_kernel", "phi": {"name": "spline", "knots": 9, "low": -1.0, "high": 2.0}},
    {"name": "mixed", "first": {"name": "ssa"}, "second": {"name": "softmax_learned"}},
    {"name": "mixed", "first": {"name": "entmax_learned"}, "second": {"name": "average"}},
]
CROSSED = [scorer for scorer in SCORERS if "phi" not in scorer or scorer["phi"]["name"] == "relu"]
ACTIVATIONS: list[dict[str, Any]] = [
    *({"name": name} for name in ("gelu", "relu", "relu_squared", "tanh", "identity")),
    *({"name": name} for name in ("glu", "geglu", "swiglu", "reglu")),
    {"name": "gelu", "form": "tanh"},
    {"name": "spline"},
    {"name": "spline", "knots": 9, "low": -1.0, "high": 2.0},
]
POSITIONS: list[dict[str, Any]] = [{"name": name} for name in ("learned", "rotary", "sinusoidal", "alibi", "none")]
TASKS: dict[str, list[dict[str, Any]]] = {
    "transformer": [ADDITION, COMPLEMENT, COPYING, LANGUAGE, OTHELLO, TEXT],
    "encoder": [MASKED],
    "regressor": [AFFINE, SOME, REGRESSION],
}


def recipe_of(task: dict[str, Any], model: dict[str, Any], batch: int = 5, dtype: str = "float64") -> Recipe:
    settings = config(steps=9, every=9, dtype=dtype)
    settings["task"], settings["model"], settings["training"]["batch"] = task, {"heads": 2, "width": 12, **model}, batch
    return Recipe.of(settings)


class Case:
    """Lanes of a recipe with random parameters, a batch and dropout's streams."""

    def __init__(self, recipe: Recipe, lanes: int = 2, seed: int = 0) -> None:
        self.recipe, self.layout = recipe, layout_of(recipe)
        self.seeds = torch.arange(lanes) * 7919 + seed
        self.knobs = {
            path: torch.full((lanes,), float(value), dtype=torch.float64) for path, value in recipe.knobs().items()
        }
        noise = Streams.of(self.seeds, Purpose.INITIAL, 1).normal(self.layout.total)
        self.parameters = (2 * self.layout.initial(self.seeds) + 0.15 * noise).to(recipe.dtype)
        steps = torch.zeros(lanes, dtype=torch.int64)
        streams = Streams.of(self.seeds, Purpose.TRAINING_DATA, steps)
        self.batch = recipe.task.training(streams, recipe.training.batch, steps)
        length = self.batch["inputs"].shape[2]
        self.sites = recipe.model.dropout_sites(recipe.task, recipe.training.batch, length)
        self.streams = SiteStreams(seeds=self.seeds, steps=steps)

    def torchs(self) -> tuple[Tensor, Tensor]:
        """Gradient [L, P] and loss [L] by autograd."""
        recipe, layout = self.recipe, self.layout
        bound = recipe.bind(self.knobs).model.dropout_sites(recipe.task, 1, 1)
        keep = {
            name: keep_mask(self.streams[number], torch.as_tensor(bound[name].rate), *site.shape)
            for number, (name, site) in enumerate(self.sites.items())
            if site.rate
        }

        def one(knobs: Batch, flat: Tensor, batch: Batch, keep: Batch) -> tuple[Tensor, Tensor]:
            lane = recipe.bind(knobs)

            def loss(flat: Tensor) -> Tensor:
                return lane.task.loss(lane.model.outputs(layout.split(flat), batch, keep), batch)

            return grad_and_value(loss)(flat)

        return vmap(one)(self.knobs, self.parameters, self.batch, keep)

    def native(self, lanes: slice = slice(None)) -> tuple[Tensor, Tensor]:
        computed = native_of(self.recipe)
        bound = self.recipe.bind({path: values[lanes] for path, values in self.knobs.items()})
        batch = {name: tensor[lanes] for name, tensor in self.batch.items()}
        streams = SiteStreams(seeds=self.streams.seeds[lanes], steps=self.streams.steps[lanes])
        return computed.gradient(bound.model, bound.task, self.parameters[lanes], batch, streams)


def native_of(recipe: Recipe) -> NativeModel:
    model = native_model(recipe.model, recipe.task, recipe.dtype, CPU)
    assert model, find_obstacle(recipe, CPU)
    return model


def assert_torchs(recipe: Recipe, seed: int = 0) -> None:
    case = Case(recipe, seed=seed)
    (gradient, loss), (exact, exact_loss) = case.native(), case.torchs()
    largest = exact.abs().amax(-1)
    assert ((gradient - exact).abs().amax(-1) <= 1e-10 * largest).all()
    torch.testing.assert_close(loss, exact_loss, rtol=1e-10, atol=0)


@st.composite
def models(draw: st.DrawFn) -> dict[str, Any]:
    heads = draw(st.integers(1, 4))
    width = heads * 2 * draw(st.integers(1, 9))
    mlp = draw(st.sampled_from([0, 1, 3, 4]))
    model: dict[str, Any] = {
        "depth": draw(st.integers(1, 3)),
        "heads": heads,
        "width": width,
        "mlp_multiple": mlp,
        "scorer": draw(st.sampled_from(CROSSED[:-2] if heads == 1 else CROSSED)),
        "activation": draw(st.sampled_from(ACTIVATIONS)),
        "activation_per_layer": draw(st.booleans()),
        "position": draw(st.sampled_from(POSITIONS)),
        "pre_norm": draw(st.booleans()),
        "norm": draw(st.sampled_from(["layer_norm", "rms_norm"])),
        "norm_epsilon": draw(st.sampled_from([1e-5, 0.1])),
        "query_key_norm": draw(st.booleans()),
        "bias": draw(st.booleans()),
        "canon": draw(st.sampled_from(["none", "A", "B", "AB"] + ([] if not mlp else ["C", "D", "ABCD"]))),
    }
    if model["scorer"]["name"] in ("cosformer", "spline_kernel") and model["position"]["name"] == "alibi":
        model["position"] = {"name": "rotary"}  # a bias is added to logits
    for site in ("embedding", "attention", "mlp", "weight"):
        model[f"{site}_dropout"] = draw(st.sampled_from([0.0, 0.0, 0.3]))
    return model


@st.composite
def cases(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    name = draw(st.sampled_from([*TASKS, "transformer"]))
    model = {"name": name, **draw(models())}
    if name != "regressor":
        model |= {"tied": draw(st.booleans()), "logit_cap": draw(st.sampled_from([0.0, 3.0]))}
    return draw(st.sampled_from(TASKS[name])), model
