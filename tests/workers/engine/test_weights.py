"""Written weights: another program computes with them what Graft does, or they are refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.numpy import load_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from graft.exports.huggingface.exporting import write_tokenizer
from graft.plugins.collecting import plugins_asked_for
from spaces import plugins
from spaces.errors import StudyError
from spaces.plugins.active import using
from spaces.settings import MetricName, Objective
from tests.support.inside import called
from tests.support.trials import config, trial
from workers.data.splits import Split
from workers.engine import retraining
from workers.engine.exporting import check_gpt2, check_variant, variant_of, write_gpt2
from workers.engine.pack import Pack
from workers.engine.retraining import refit_temperature, weights
from workers.engine.trained_model import trained_model
from workers.networks.scorers import Scorer
from workers.networks.scorers.adaptive_temperature import AdaptiveTemperature
from workers.training.recipe import Recipe, layout_of

os.environ["HF_HUB_OFFLINE"] = "1"

MODEL = {"name": "transformer", "width": 12, "depth": 2, "heads": 3, "mlp_multiple": 2}


def settings(**model: Any) -> dict[str, Any]:
    """Return a transformer on the set complement, trained for five steps in float32."""
    return {**config(steps=5, every=5, dtype="float32"), "model": {**MODEL, **model}}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "model",
    [
        {},
        {"tied": True, "activation": {"name": "relu"}, "norm_epsilon": 1e-3},
        {"bias": False, "position": {"name": "none"}, "activation": {"name": "relu_squared"}},
        {"activation": {"name": "gelu", "form": "tanh"}},
        {"scorer": {"name": "softmax", "temperature": 2.5}, "position": {"name": "sinusoidal", "scale": 0.1}},
    ],
    ids=["plain", "tied", "without biases", "tanh", "temperature"],
)
def test_transformers_own_gpt_2_computes_the_same_logits(model: dict[str, Any], tmp_path: Path) -> None:
    from transformers import GPT2LMHeadModel

    candidate = trial(0, settings(**model))
    arrays = weights(candidate, variant="raw", steps=5, device="cpu", watch=lambda _: None)
    arrays = {name: 4 * array if array.ndim == 2 else array for name, array in arrays.items()}  # so that forms differ
    check_gpt2(candidate.config)
    write_gpt2(tmp_path / "gpt2", candidate.config, arrays)
    theirs = GPT2LMHeadModel.from_pretrained(tmp_path / "gpt2").eval()
    inputs = torch.tensor([[0, 3, 5, 1, 7, 2, 8], [6, 2, 1, 0, 4, 3, 5]])
    recipe = Recipe.of(candidate.config)
    named = {name: torch.tensor(array) for name, array in arrays.items()}
    with torch.no_grad():
        expected = recipe.model.outputs(named, {"inputs": inputs}, {})
        torch.testing.assert_close(theirs(inputs).logits, expected, rtol=1e-4, atol=1e-5)
    assert float(expected.std()) > 1e-3


def with_its_own_end(folder: Path) -> str:
    """Return a tokenizer that has GPT-2's token for the end of a text already."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=280, initial_alphabet=alphabet, special_tokens=["<|endoftext|>"])
    tokenizer.train_from_iterator(["once upon a time there was a dog in the garden"] * 3, trainer)
    tokenizer.save(str(folder / "own.json"))
    return str(folder / "own.json")


@pytest.mark.parametrize(("tied", "own_end"), [(True, False), (False, False), (False, True)])
def test_a_language_model_goes_with_its_tokenizer_and_never_says_what_it_has_dropped(
    tied: bool, own_end: bool, tmp_path: Path
) -> None:
    """Text through Hugging Face's tokenizer and model gives the probabilities that Graft's give."""
    from transformers import AutoTokenizer, GPT2LMHeadModel

    learned = {"name": "bpe", "vocabulary": 300}
    read = {"name": "bpe_file", "path": with_its_own_end(tmp_path)}

    task = {
        "name": "language", "corpus": {"name": "stories", "words": 5000}, "length": 12, "rare": 5,
        "tokenizer": read if own_end else learned,
    }  # fmt: skip
    candidate = trial(0, {**settings(tied=tied, pre_norm=True), "task": task, "optimizer": {"name": "adamw"}})
    arrays = weights(candidate, variant="raw", steps=5, device="cpu", watch=lambda _: None)
    write_gpt2(tmp_path / "gpt2", candidate.config, arrays)
    tokenizer, theirs = (kind.from_pretrained(tmp_path / "gpt2") for kind in (AutoTokenizer, GPT2LMHeadModel))
    recipe = Recipe.of(candidate.config)
    text = recipe.task.tokenised
    sentence = text.decode(text.part(Split.VALIDATION, torch.device("cpu"))[:40].long().tolist()[:8])
    ours, named = torch.tensor([text.encode(sentence)]), {name: torch.tensor(array) for name, array in arrays.items()}
    ids = tokenizer(sentence, return_tensors="pt").input_ids
    assert ids.tolist() == [[text.kept[token] for token in ours[0].tolist()]]
    with torch.no_grad():
        expected = recipe.model.outputs(named, {"inputs": ours}, {}).log_softmax(-1)
        logits = theirs(ids).logits.log_softmax(-1)
    size = text.encoder.size
    known = [*text.kept, size]
    assert len(known) < size, "some tokens are dropped"
    torch.testing.assert_close(logits[..., known], expected, rtol=1e-3, atol=1e-3)
    dropped = sorted({*range(size)} - {*text.kept})
    assert float(logits[..., dropped].max()) < -100
    assert tokenizer.eos_token_id == theirs.config.eos_token_id == size


@pytest.mark.parametrize("tokenizer", [{"name": "character"}, {"name": "bpe", "vocabulary": 300}], ids=str)
def test_written_tokenizers_read_capitals_as_a_task_in_lower_case_does(
    tokenizer: dict[str, Any], tmp_path: Path
) -> None:
    task = {
        "name": "language", "corpus": {"name": "stories", "words": 5000}, "length": 12, "rare": 5,
        "tokenizer": tokenizer, "lower_case": True,
    }  # fmt: skip
    candidate = trial(0, {**settings(), "task": task})
    recipe = Recipe.of(candidate.config)
    layout = layout_of(recipe)
    start = layout.split(layout.initial(torch.tensor([1]))[0])
    arrays = {name: tensor.numpy() for name, tensor in start.items()}
    write_gpt2(tmp_path / "gpt2", candidate.config, arrays)
    (tmp_path / "graft").mkdir()
    write_tokenizer(tmp_path / "graft", recipe)
    known = recipe.task.tokenised
    expected = [known.kept[token] for token in known.encode("The Cat")]
    for folder in ("gpt2", "graft"):
        read = Tokenizer.from_file(str(tmp_path / folder / "tokenizer.json"))
        assert read.encode("The Cat").ids == expected


def test_weights_are_those_at_the_end_of_training_and_of_its_average() -> None:
    candidate = trial(0, {**settings(), "averaging": {"name": "bema_grid", "kappas": 2, "etas": 2}})
    pack = Pack(candidate, width=2)
    pack.fill([candidate])
    pack.train(4)
    before = pack.parameters(0)
    arrays = weights(candidate, variant="raw", steps=4, device="cpu", watch=lambda _: None)
    assert all(torch.equal(torch.tensor(arrays[name]), tensor) for name, tensor in before.items())
    average = weights(candidate, variant="bema kappa=0.5 eta=1", steps=5, device="cpu", watch=lambda _: None)
    last = weights(candidate, variant="raw", steps=5, device="cpu", watch=lambda _: None)
    assert any((average[name] != last[name]).any() for name in average)
    assert {name: array.shape for name, array in average.items()} == {
        name: parameter.shape for name, parameter in layout_of(Recipe.of(candidate.config)).parameters.items()
    }
    for objective, label in (
        ("tvd/bema/kappa=0.5 eta=0.5", "bema kappa=0.5 eta=0.5"),
        ("tvd/bema/length=8 kappa=0.5 eta=1", "bema kappa=0.5 eta=1"),
        ("tvd/ema/length=8 kappa=0.5", "ema kappa=0.5"),
        ("tvd/raw/length=8", "raw"),
    ):
        metric, variant, condition = MetricName.of(objective)
        goal = Objective(direction="minimize", metric=metric, variant=variant, condition=condition)
        assert variant_of(goal, candidate.config) == label
    choices = r"--variant: 'ema' is no variant of this trial.* choose one of raw, bema kappa=0\.5 eta"
    with pytest.raises(StudyError, match=choices):
        check_variant(candidate.config, "ema")


def test_an_architecture_that_is_not_gpt_2_is_refused_with_all_reasons() -> None:
    model = {
        "pre_norm": False, "norm": "rms_norm", "query_key_norm": True, "canon": "AB", "logit_cap": 3.0,
        "scorer": {"name": "ssa"}, "activation": {"name": "swiglu"}, "position": {"name": "rotary"},
    }  # fmt: skip
    with pytest.raises(StudyError) as refusal:
        check_gpt2({**settings(**model), "model": {**MODEL, **model, "heads": 2}})
    for reason in ("pre_norm", "norm is rms_norm", "query_key_norm", "canon is AB", "logit_cap is 3", "scorer is ssa",
                   "activation is swiglu", "position is rotary"):  # fmt: skip
        assert f"model.{reason}" in str(refusal.value)
    with pytest.raises(StudyError, match=r"no GPT-2: model\.name is minimal, must be transformer"):
        check_gpt2(config())


def test_a_scorer_that_derives_from_softmax_is_no_gpt_2s(tmp_path: Path) -> None:
    lines = ["from workers.networks.scorers.softmax import Softmax", "class Sharper(Softmax):", "    pass"]
    (tmp_path / "sharper.py").write_text("\n".join(lines))
    message = r"model\.scorer is sharper, must be softmax"
    with using(plugins_asked_for([str(tmp_path / "sharper.py")])), pytest.raises(StudyError, match=message):
        check_gpt2(settings(scorer={"name": "sharper"}))


Search = Callable[..., str]


@pytest.fixture
def search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Search:
    """Run the program in a folder of its own; what it printed on stdout, or its one line on stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, status: int = 0) -> str:
        code, out, err = called(monkeypatch, capfd, *arguments)
        assert code == status, err
        return err if status else out

    return run


SPACE = """
study: tiny
task: {name: add_mod, modulus: 17}
model: {name: transformer, width: 8, depth: 1, heads: 2, mlp_multiple: 2}
optimizer: {name: adamw, learning_rate: {log_uniform: [1.0e-3, 1.0e-2]}}
averaging: ema
training: {steps: 6, batch: 8, validate_every: 3, validation_batch: 20}
search: {sampler: random, trials: 2, objective: {maximize: accuracy/raw}}
"""


def test_the_command_writes_what_a_study_trained(search: Search, tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(SPACE)
    search("launch", "tiny.yaml")
    said = search("weights", "tiny", "1", "-o", "one.safetensors", "--variant", "ema")
    assert said.startswith("one.safetensors: ")
    assert "parameters of trial 1 after step 6, ema" in said
    assert load_file(tmp_path / "one.safetensors")["embedding"].shape == (19, 8)
    search("weights", "tiny", "0", "-o", "gpt2", "--format", "gpt2")
    assert json.loads((tmp_path / "gpt2" / "config.json").read_text())["vocab_size"] == 19
    for arguments, reason in [
        (["1", "-o", "one.safetensors"], "--output: one.safetensors exists; name another or add --force"),
        (["7", "-o", "x"], "trial 7"),
        (["1", "-o", "x", "--format", "onnx"], "--format: 'onnx' must be one of safetensors, gpt2"),
        (
            ["1", "-o", "x", "--variant", "bema"],
            "--variant: 'bema' is no variant of this trial, did you mean 'ema'? choose one of raw, ema",
        ),
        (["1", "-o", "nowhere/x"], "--output: nowhere/x: there is no folder nowhere"),
        (["1", "-o", "gpt2", "--force"], "--output: gpt2 is a folder; --format safetensors writes a file"),
        (["1", "-o", "one.safetensors", "--force", "--format", "gpt2"], "is a file; --format gpt2 writes a folder"),
    ]:
        assert reason in search("weights", "tiny", *arguments, status=2)
        assert not (tmp_path / "x").exists()


HAYSTACK = {"name": "haystack", "pairs": 4, "markers": 16}


@pytest.mark.parametrize("position", ["learned", "alibi"])
def test_a_refit_reads_each_query_where_its_sequence_asks_with_the_biases_of_positions(
    position: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Softmax of the logits that are fitted is the model's own attention; padding is on the right."""
    fitted: list[torch.Tensor] = []

    def keep(logits: torch.Tensor, target: torch.Tensor) -> None:
        fitted.extend([logits, target])
        raise ValueError("kept")

    monkeypatch.setattr(retraining, "best_temperatures", keep)
    candidate = trial(0, {**settings(position={"name": position}), "task": HAYSTACK})
    with pytest.raises(StudyError, match="kept"):
        refit_temperature(candidate, condition="", steps=5, device="cpu", watch=lambda _: None)
    arrays = weights(candidate, variant="raw", steps=5, device="cpu", watch=lambda _: None)
    trained = trained_model(candidate, arrays)
    batch = trained.batch()
    layers = trained.recipe.model.attention(dict(trained.named_parameters()), batch)
    shown = layers[-1].weights  # [N, h, q, k]
    asked = [row.tolist().index(True) for row in batch["wanted"]]
    assert min(asked) < max(asked) == shown.shape[2] - 1
    expected = torch.cat([shown[number, :, at] for number, at in enumerate(asked)])
    torch.testing.assert_close(fitted[0].softmax(-1), expected, rtol=1e-5, atol=1e-7)
    assert bool(batch["relevant"].repeat_interleave(shown.shape[1], 0).gather(1, fitted[1][:, None]).all())


def test_a_refit_of_several_models_is_refused_before_it_trains() -> None:
    spline = {"activation": {"name": "spline", "knots": 9}}
    learning = {"name": "architecture", "models": 2, "held_out_one_in": 0}
    candidate = trial(3, {**settings(**spline), "task": HAYSTACK, "learning": learning})
    with pytest.raises(StudyError, match=r"^trial 3 has learning architecture: it is several models$"):
        refit_temperature(candidate, condition="", steps=5, device="cpu", watch=lambda _: pytest.fail("trains"))


@pytest.mark.long
def test_adaptive_temperature_is_refitted_to_a_stored_trial(search: Search, tmp_path: Path) -> None:
    """What is printed can stand in a space."""
    (tmp_path / "find.yaml").write_text(FIND)
    search("launch", "find.yaml")
    [(name, fields)] = yaml.safe_load(search("refit", "find", "0", "--condition", "items=32")).items()
    scorer = plugins.build(Scorer, {"name": name, **fields})
    assert isinstance(scorer, AdaptiveTemperature)
    assert all(abs(value) > 1e-9 for value in (scorer.a4, scorer.a3, scorer.a2, scorer.a1, scorer.a0))
    search("report", "temperature", "find", "0", "--condition", "items=32", "-o", "fit.html")
    page = (tmp_path / "fit.html").read_text()
    assert "Temperature of trial 0 of find, items=32" in page
    assert f"{scorer.a0:.3g})" in page.replace("+ -", "- ").replace("- -", "-") or f"{abs(scorer.a0):.3g})" in page
    assert page.count("<svg") == 1
    refused = search("refit", "find", "0", "--condition", "items=7", status=2)
    assert "'items=7' is no condition of this task, did you mean 'items=32'?" in refused
    assert "trial 9" in search("refit", "find", "9", status=2)


FIND = """
study: find
task: {name: max_retrieval, largest: 32}
model: {name: attention_pooling, width: 16}
optimizer: {name: adam, learning_rate: 0.003, schedule: constant}
averaging: none
training: {steps: 800, batch: 32, validate_every: 800, validation_batch: 200}
search: {sampler: random, trials: 1, objective: {maximize: accuracy/raw}}
"""
