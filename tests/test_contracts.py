"""What every plug-in promises, by its own examples: of all families, then of those without a test file of their own."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from search.samplers import Sampler
from search.stopping import Stopping
from spaces import plugins
from tests.test_pack import assert_equal_to_the_bit
from tests.trials import config, trial
from workers.data.corpora import Corpus
from workers.data.tasks import Task
from workers.data.tokenizers import Tokenizer
from workers.data.tokenizers.bpe import BytePairEncoding
from workers.networks.activations import Activation
from workers.networks.diagnostics import Diagnostic
from workers.networks.models import Model
from workers.networks.positions import Position
from workers.networks.scorers import Scorer
from workers.training.averaging import Averaging
from workers.training.learning import Learning
from workers.training.optimizers import Optimizer
from workers.training.schedules import Schedule

FAMILIES: list[type] = [
    Task, Corpus, Tokenizer, Model, Scorer, Activation, Position, Diagnostic,
    Optimizer, Schedule, Averaging, Learning, Sampler, Stopping,
]  # fmt: skip
EXAMPLES = [
    pytest.param(family, configuration, id=f"{plugins.title(family)} {configuration['name']}")
    for family in FAMILIES
    for configuration in plugins.examples(family)
]


@pytest.mark.parametrize("family", FAMILIES)
def test_every_plug_in_of_a_family_has_an_example(family: type) -> None:
    assert {configuration["name"] for configuration in plugins.examples(family)} == set(plugins.names(family))


@pytest.mark.parametrize(("family", "configuration"), EXAMPLES)
def test_an_example_can_be_built_and_built_again_from_what_was_built(
    family: type, configuration: dict[str, Any]
) -> None:
    built: Any = plugins.build(family, configuration)
    assert plugins.name_of(built) == configuration["name"]
    assert plugins.build(family, plugins.config_of(built)) == built
    assert plugins.canonical_json(plugins.structure_of(built))


@pytest.mark.parametrize(("family", "configuration"), EXAMPLES)
def test_a_plug_in_is_a_frozen_dataclass_that_says_what_it_is(family: type, configuration: dict[str, Any]) -> None:
    member: Any = plugins.load(family, configuration["name"])
    assert member.__dataclass_params__.frozen
    assert all(field.kw_only for field in dataclasses.fields(member))
    assert member.__doc__
    assert not member.__doc__.startswith(f"{member.__name__}("), "the docstring that dataclass makes says nothing"


# -- averaging -------------------------------------------------------------------------------------------------------

PATH = torch.randn(6, 2, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
"""Parameters [P] of two lanes after each of five steps, and before the first."""


def averages(averaging: Averaging, path: Tensor) -> list[Tensor]:
    """Every variant [P] after the last step of a path [steps + 1, P]."""
    shadow = averaging.start(path[0])
    for step, parameters in enumerate(path[1:]):
        shadow = averaging.update(shadow, parameters, torch.tensor(step))
    last = torch.tensor(len(path) - 1)
    return [averaging.average(shadow, path[-1], last, torch.tensor(index)) for index in range(len(averaging.variants))]


@pytest.mark.parametrize("configuration", plugins.examples(Averaging), ids=str)
def test_averages_of_lanes_together_are_those_of_lanes_alone(configuration: dict[str, Any]) -> None:
    averaging = plugins.build(Averaging, configuration)
    factors = torch.tensor([1.0, 0.5], dtype=torch.float64)
    knobs = {path: (value * factors).clamp(min=min(value, 1.0)) for path, value in plugins.knobs(averaging)}

    def one(knobs: dict[str, Tensor], path: Tensor) -> list[Tensor]:
        return averages(plugins.bind(averaging, knobs), path)

    together = vmap(one, in_dims=(0, 1))(knobs, PATH) if knobs else vmap(lambda path: one({}, path), in_dims=1)(PATH)
    for lane in range(2):
        alone = one({path: values[lane] for path, values in knobs.items()}, PATH[:, lane])
        assert len(alone) == len(together) == len(averaging.variants)
        for stacked, expected in zip(together, alone, strict=True):
            assert expected.shape == (5,)
            torch.testing.assert_close(stacked[lane], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("configuration", plugins.examples(Averaging), ids=str)
def test_an_average_of_parameters_that_never_change_is_these(configuration: dict[str, Any]) -> None:
    still = PATH[:1, 0].expand(6, -1)
    for average in averages(plugins.build(Averaging, configuration), still):
        torch.testing.assert_close(average, still[0], rtol=1e-12, atol=1e-12)


# -- learning --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("configuration", plugins.examples(Learning), ids=str)
def test_trials_learn_in_a_pack_as_they_do_alone(configuration: dict[str, Any]) -> None:
    spline = {"name": "spline", "knots": 9, "low": -1.0, "high": 1.0}
    settings = {
        **config(steps=8, every=4, batch=4, validation_batch=8, dtype="float32"),
        "task": {"name": "add_mod", "modulus": 13},
        "model": {"name": "transformer", "width": 8, "depth": 1, "heads": 1, "mlp_multiple": 1, "activation": spline},
        "learning": configuration,
    }
    assert_equal_to_the_bit([trial(number, settings) for number in range(4)])


# -- tokenizers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("configuration", plugins.examples(Tokenizer), ids=str)
def test_what_a_tokenizer_writes_it_reads(
    configuration: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An example may name a `tokenizer.json` in the current folder."""
    text = "The cat sat.\nA hat, a mat!\n"
    monkeypatch.chdir(tmp_path)
    Path("tokenizer.json").write_text(BytePairEncoding(vocabulary=270).learn([text]))
    tokenizer = plugins.build(Tokenizer, configuration)
    encoder = tokenizer.encoder(tokenizer.learn([text]))
    tokens = encoder.encode(text)
    assert all(0 <= token < encoder.size for token in tokens)
    assert encoder.decode(tokens) == text
