"""`search export --to huggingface`: what a fresh process loads and computes, against the trial's own model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

import graft
from graft.exports.cutting.plans import TAIL, list_parts, plan_of
from graft.exports.cutting.shaking import shake
from graft.exports.huggingface import evaluation, exporting
from graft.exports.huggingface.card import write_card
from graft.exports.huggingface.evaluation import Asked, Harness, evaluate_folder, evaluate_pretrained, to_frame
from graft.plugins.collecting import plugins_asked_for
from graft.retraining.restored import RestoredTrial
from spaces import plugins
from spaces.errors import StudyError
from spaces.plugins.active import current, using
from spaces.settings import Objective
from tests.support.inside import called
from tests.support.trials import config, trial
from workers.engine.trained_model import trained_model
from workers.networks.activations import Activation
from workers.networks.models import Model
from workers.networks.positions import Position
from workers.networks.scorers import Scorer
from workers.training.recipe import Recipe, layout_of

GPT = {"name": "transformer", "width": 24, "depth": 2, "heads": 4, "mlp_multiple": 2}
MINIMAL = {"name": "minimal", "width": 12, "key_width": 5, "value_width": 9}
OTHER = {"tied": True, "pre_norm": False, "norm": "rms_norm", "query_key_norm": True, "canon": "ABCD", "logit_cap": 3.0}
MODELS = [
    {**GPT, "scorer": {"name": "linear"}, "activation": {"name": "polynomial"}},  # their classes share names
    {**GPT, **OTHER, "bias": False},
    MINIMAL,
    {**MINIMAL, "scorer": {"name": "cosformer"}},
    {**GPT, "scorer": {"name": "tanh"}, "activation": {"name": "tanh"}},
    *({**GPT, field: part} for family, field in ((Scorer, "scorer"), (Activation, "activation"), (Position, "position"))
      for part in plugins.examples(family)),
]  # fmt: skip


def name_of(model: dict[str, Any]) -> str:
    return " ".join([model["name"], *(part["name"] for part in model.values() if isinstance(part, dict))])


def taken_out(model: Model) -> tuple[str, Any]:
    """Return the text of a model's file, and the model that it builds, in a module that knows nothing of ours."""
    shaken = shake(dict.fromkeys(map(type, list_parts(model))), ["outputs"])
    text = shaken.text + TAIL.format(classes=", ".join(shaken.names.values()))
    module = types.ModuleType("taken_out")
    sys.modules[module.__name__] = module
    try:
        exec(compile(text, "taken_out.py", "exec"), vars(module))
    finally:
        del sys.modules[module.__name__]
    return text, module.build(plan_of(model, shaken.names))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("model", MODELS, ids=name_of)
def test_what_is_taken_out_of_graft_computes_the_same_bits(model: dict[str, Any]) -> None:
    recipe = Recipe.of({**config(dtype="float32"), "model": model})
    evaluation = recipe.model.evaluations()[""]
    text, other = taken_out(evaluation)
    layout = layout_of(recipe)
    start = layout.split(layout.initial(torch.tensor([3]))[0].float())
    named = {name: 4 * tensor if tensor.ndim > 1 else tensor for name, tensor in start.items()}  # so that forms differ
    batch = {"inputs": torch.randint(0, 9, (3, 7), generator=torch.Generator().manual_seed(0))}
    expected = evaluation.outputs(named, batch, {})
    assert float(expected.std()) > 1e-3
    assert torch.equal(other.outputs(named, batch, {}), expected)
    assert not [line for line in text.splitlines() if line.startswith(("import graft", "from graft", "from workers",
                                                                       "from spaces"))]  # fmt: skip


def test_what_a_forward_pass_does_not_need_stays_behind() -> None:
    text, _ = taken_out(Recipe.of({**config(), "model": GPT}).model)
    assert "class Softmax" in text
    for left in ("def check", "def parameters", "dropout_sites", "native", "SignedAveraging", "PluginError", "knob("):
        assert left not in text


BENT = """
from dataclasses import dataclass
from spaces.plugins.fields import knob
from workers.networks.scorers import LogitScorer
%s

@dataclass(frozen=True, kw_only=True)
class Bent(LogitScorer):
    '''Bent.'''
    by: float = knob(0.5)

    def weigh(self, logits, visible, learned):
        kernel = (%s).masked_fill(~visible, 0)
        return kernel / kernel.sum(-1, keepdim=True)
"""


@pytest.mark.parametrize(
    "computing",
    ["bend(logits) * max([1, 2], key=lambda bend: bend)", "bend(logits) * [bend for bend in (1.0, 2.0)][1]"],
)
def test_a_name_that_something_inside_binds_is_the_module_s_outside(tmp_path: Path, computing: str) -> None:
    (tmp_path / "bent.py").write_text(BENT % ("def bend(z):\n    return z.exp()", computing))
    with using(plugins_asked_for([str(tmp_path / "bent.py")])):
        recipe = Recipe.of({**config(dtype="float32"), "model": {**GPT, "scorer": {"name": "bent"}}})
        _, other = taken_out(recipe.model)
        named = layout_of(recipe).split(layout_of(recipe).initial(torch.tensor([3]))[0].float())
        batch = {"inputs": torch.arange(8)[None]}
        assert torch.equal(other.outputs(named, batch, {}), recipe.model.outputs(named, batch, {}))


def test_a_plug_in_that_does_not_run_by_itself_is_refused_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "bent.py").write_text(BENT % ("if True:\n    TWO = 2.0", "(TWO * logits).exp()"))
    with using(plugins_asked_for([str(tmp_path / "bent.py")])):
        bent_trial = trial(0, {**config(dtype="float32"), "model": {**GPT, "scorer": {"name": "bent"}}})
        layout = layout_of(Recipe.of(bent_trial.config))
        start = layout.split(layout.initial(torch.tensor([3]))[0].float())
        learned = {name: tensor.numpy() for name, tensor in start.items()}
        with pytest.raises(StudyError, match=r"does not run by itself: NameError: name 'TWO' is not defined; what"):
            exporting._write(tmp_path, trained_model(bent_trial, learned), learned)  # pyright: ignore[reportPrivateUsage]


def restored_trial(model: dict[str, Any]) -> RestoredTrial:
    return RestoredTrial(
        trial=trial(0, {**config(), "model": model}),
        objective=Objective(direction="minimize", metric="loss", variant="raw"),
        row={},
        metrics=[],
        steps=1,
        trained_on=None,
        outside=current(),
        fingerprints=[],
    )


def test_a_plug_in_that_reads_a_file_is_refused_in_a_line(tmp_path: Path) -> None:
    """Its file is not in the folder that is written."""
    scorer = BENT % ("from spaces.plugins.fields import file", "logits.exp()")
    (tmp_path / "bent.py").write_text(scorer.replace("    by:", "    points: object = file('.py')\n    by:"))
    with using(plugins_asked_for([str(tmp_path / "bent.py")])):
        reading = {"name": "bent", "points": str(tmp_path / "bent.py")}
        for scorer in (reading, {"name": "mixed", "second": reading}):
            with pytest.raises(StudyError, match="trial 0 cannot be a model for Hugging Face: 'bent' from outside rea"):
                exporting.check_model(restored_trial({**GPT, "scorer": scorer}))
        exporting.check_model(restored_trial({**GPT, "scorer": {"name": "mixed"}}))


MODULE = '''
from dataclasses import dataclass
import torch
from workers.networks.modules import ModuleModel

@dataclass(frozen=True, kw_only=True)
class Net(ModuleModel):
    """An embedding and a map."""

    @property
    def causal(self):
        return True

    def module(self, task):
        return torch.nn.Sequential(torch.nn.Embedding(task.tokens, 4), torch.nn.Linear(4, task.tokens))
'''


def test_a_torch_module_is_refused_in_a_line(tmp_path: Path) -> None:
    """It is built for a task, which the folder does not have."""
    (tmp_path / "net.py").write_text(MODULE)
    with using(plugins_asked_for([str(tmp_path / "net.py")])):
        restored = restored_trial({"name": "net"})
        with pytest.raises(StudyError, match="trial 0 cannot be a model for Hugging Face: 'net' builds a "):
            exporting.check_model(restored)


@pytest.mark.long  # loading transformers takes seconds
@pytest.mark.parametrize(
    "scorer",
    [{"name": "softmax"}, {"name": "cosformer"}, {"name": "mixed", "first": {"name": "polynomial", "keys": "all"}}],
    ids=lambda scorer: scorer["name"],
)
def test_padding_at_either_end_changes_no_logits(
    scorer: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    padded = trial(0, {**config(), "model": {**GPT, "scorer": scorer}})
    layout = layout_of(Recipe.of(padded.config))
    learned = {name: 3 * part.numpy() for name, part in layout.split(layout.initial(torch.tensor([3]))[0]).items()}
    folder = tmp_path / f"exported_{scorer['name']}"
    folder.mkdir()
    exporting._write(folder, trained_model(padded, learned), learned)  # pyright: ignore[reportPrivateUsage]
    monkeypatch.syspath_prepend(tmp_path)
    loaded = import_module(f"{folder.name}.modeling_graft").GraftForCausalLM.from_pretrained(folder).eval()
    long, short = torch.tensor([[3, 1, 4, 1, 5]]), torch.tensor([[2, 7, 1]])
    filled = torch.cat([long, torch.tensor([[0, 2, 7, 1, 0]])])
    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 1, 1, 1, 0]])
    with torch.no_grad():
        expected = [loaded(inputs).logits[0] for inputs in (long, short)]
        for given in (mask, mask.bool()):
            logits = loaded(filled, attention_mask=given).logits
            torch.testing.assert_close([logits[0], logits[1, 1:4]], expected, rtol=0, atol=1e-12)


def test_models_that_count_all_keys_are_evaluated_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The harness fills up batches, and does not tell a causal model by how much."""
    asked = Asked(harness=Harness(tasks=["dogs"], batch=8), manager=None)
    monkeypatch.setattr(evaluation, "_score", lambda _, asked: asked.harness.batch)
    (tmp_path / "tokenizer.json").touch()
    for settings, batch in (({}, 8), ({"counts_all_keys": True}, 1)):
        (tmp_path / "config.json").write_text(json.dumps(settings))
        assert evaluate_folder(tmp_path, asked) == batch
    monkeypatch.setattr("workers.networks.pretrained.load_pretrained", lambda *_: torch.nn.Identity())
    for scorer, batch in ((None, 8), ({"name": "ssa"}, 8), ({"name": "polynomial", "keys": "all"}, 1)):
        assert evaluate_pretrained(tmp_path, scorer, "float32", asked) == batch


def test_the_card_names_the_folder_that_is_worked_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    restored = restored_trial(MINIMAL)
    write_card(Path(), restored, "tiny", "raw", "written", "torch, transformers and scipy")
    text = (tmp_path / "README.md").read_text()
    assert f'from_pretrained("{tmp_path.name}", trust' in text
    assert "which needs torch, transformers and scipy and nothing of Graft:" in text


def test_packages_that_a_plug_in_imports_are_needed(tmp_path: Path) -> None:
    (tmp_path / "bent.py").write_text(BENT % ("import math\nimport scipy", "logits.exp() * math.pi * scipy.pi"))
    with using(plugins_asked_for([str(tmp_path / "bent.py")])):
        model = Recipe.of({**config(dtype="float32"), "model": {**GPT, "scorer": {"name": "bent"}}}).model
        shaken = shake(dict.fromkeys(map(type, list_parts(model))), ["outputs"])
    assert shaken.needed("torch", "transformers") == "torch, transformers and scipy"


@pytest.mark.long
def test_a_plug_in_from_outside_goes_with_the_file_that_it_imports(tmp_path: Path) -> None:
    (tmp_path / "bends.py").write_text("import torch\n\nPOWER = 3\n\ndef bend(z):\n    return torch.exp(z) ** POWER\n")
    (tmp_path / "bent.py").write_text(BENT % ("from bends import bend", "bend(self.by * logits)"))
    with using(plugins_asked_for([str(tmp_path / "bent.py")])):
        recipe = Recipe.of({**config(dtype="float32"), "model": {**GPT, "scorer": {"name": "bent"}}})
        text, other = taken_out(recipe.model)
        named = layout_of(recipe).split(layout_of(recipe).initial(torch.tensor([3]))[0].float())
        batch = {"inputs": torch.arange(8)[None]}
        assert torch.equal(other.outputs(named, batch, {}), recipe.model.outputs(named, batch, {}))
    assert "POWER = 3" in text
    assert "import bends" not in text


# ------------------------------------------------------------------------------------------------------- the program

SPACE = """
study: tiny
task: {name: language, corpus: {stories: {words: 5000}}, length: 32, rare: 5, tokenizer: %s}
model: {name: transformer, width: 12, depth: 2, heads: 2, mlp_multiple: 2, scorer: ssa, tied: %s}
optimizer: {name: adamw, learning_rate: "log_uniform(1e-3, 1e-2)"}
averaging: ema
training: {steps: 6, batch: 8, validate_every: 3, validation_batch: 20}
search: {sampler: random, trials: 2, objective: {minimize: perplexity/ema}}
"""

FRESH = """
import json, sys, torch
torch.set_num_threads(1)
from transformers import AutoModelForCausalLM, AutoTokenizer
folder, given, found, again = sys.argv[1:]
load = lambda path: AutoModelForCausalLM.from_pretrained(path, trust_remote_code=True, output_loading_info=True)
model, loading = load(folder)
assert not any(loading.values()), loading
inputs = torch.load(given)
with torch.no_grad():
    logits = model(inputs).logits
    loss = model(inputs, labels=inputs).loss
model.save_pretrained(again)
twice, loading = load(again)
assert not any(loading.values()), loading
with torch.no_grad():
    assert torch.equal(twice(inputs).logits, logits)
tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True, padding_side="left")
texts = ["the dog", "a dog was in the garden"]
go_on = lambda given: model.generate(**given, max_new_tokens=3, do_sample=False)[:, -3:]
alone = [go_on(tokenizer(text, return_tensors="pt"))[0] for text in texts]
both = go_on(tokenizer(texts, return_tensors="pt", padding=True))
assert torch.equal(both, torch.stack(alone)), (both, alone)
ids = tokenizer(texts[1]).input_ids
assert tokenizer.decode(ids) == texts[1]
try:
    model(inputs.repeat(1, 2))
except ValueError as error:
    assert "32 positions" in str(error)
else:
    raise AssertionError("positions that were not learned")
ours = [name for name in sys.modules if name.partition(".")[0] in ("graft", "workers", "spaces", "search")]
assert not ours, ours
torch.save({"logits": logits, "loss": loss, "ids": ids}, found)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("tokenizer", "tied"),
    [("{bpe: {vocabulary: 300}}", "true"), pytest.param("character", "false", marks=pytest.mark.slow)],
)
def test_a_fresh_process_computes_the_logits_of_the_trained_model(
    tokenizer: str, tied: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """To the bit, once more after saving; padding before a text changes nothing that is generated."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(SPACE % (tokenizer, tied))
    assert called(monkeypatch, capfd, "launch", "tiny.yaml", "--executor=inline")[0] == 0
    status, _, said = called(monkeypatch, capfd, "export", "tiny", 1, "--to", "huggingface", "-o", "model")
    assert status == 0, said
    assert said.endswith("after step 6, ema; logits equal to the bit\n")
    model = graft.open(str(tmp_path / "graft.db"))["tiny"].model(1)
    known, inputs = model.recipe.task.tokenised, model.batch()["inputs"][:5]
    ids = torch.tensor([*known.kept, known.encoder.size])
    torch.save(ids[inputs], tmp_path / "given.pt")
    command = [sys.executable, "-c", FRESH, "model", "given.pt", "found.pt", "again"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=tmp_path, env={**environment, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    outputs = torch.load(tmp_path / "found.pt")
    with torch.no_grad():
        expected = model(inputs)
    assert torch.equal(outputs["logits"][..., ids], expected)
    dropped = sorted({*range(known.encoder.size)} - {*known.kept})
    assert (outputs["logits"][..., dropped] == -1e4).all()
    losses = -expected[:, :-1].log_softmax(-1).gather(-1, inputs[:, 1:, None])
    assert float(outputs["loss"]) == pytest.approx(float(losses.mean()), rel=1e-4)
    text = "a dog was in the garden"
    assert outputs["ids"] == [*known.encoder.encode(text)]
    assert (
        "search export tiny 1 --to huggingface --variant 'ema' -o model" in (tmp_path / "model/README.md").read_text()
    )
    assert json.loads((tmp_path / "model/config.json").read_text())["auto_map"]["AutoModelForCausalLM"]


REFUSED = """
study: masked
task: {name: masked_language, corpus: {stories: {words: 5000}}, length: 12, rare: 5, tokenizer: character}
model: {name: encoder, width: 8, depth: 1, heads: 2, mlp_multiple: 2}
optimizer: {name: adamw}
training: {steps: 2, batch: 4, validate_every: 2, validation_batch: 4}
search: {sampler: random, trials: 1, objective: {minimize: perplexity/raw}}
"""


@pytest.mark.long
def test_what_cannot_be_exported_is_refused_in_a_line_and_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "masked.yaml").write_text(REFUSED)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert called(monkeypatch, capfd, "launch", "masked.yaml", "--executor=inline")[0] == 0
    for arguments, reason in [
        (
            (0, "--to", "huggingface", "-o", "x"),
            "its model encoder on the task masked_language does not go from tokens",
        ),
        (("--to", "huggingface", "-o", "x"), "--to huggingface needs the number of a trial, STUDY N"),
        ((0, "--to", "huggingface", "-o", "full"), "full exists and is not empty"),
        ((0, "--to", "huggingface", "-o", "x", "--variant", "emma"), "--variant: 'emma' is no variant of this trial"),
        ((0, "--to", "huggingface", "-o", "x", "--force"), "--force does not replace a folder"),
        ((0, "-o", "x.csv", "--variant", "raw"), "--variant and --device are of a model"),
        ((0, "--to", "huggingfaces", "-o", "x"), "'huggingfaces' must be one of optuna"),
        ((7, "--to", "huggingface", "-o", "x"), "trial 7"),
    ]:
        status, _, error = called(monkeypatch, capfd, "export", "masked", *arguments)
        assert (status, error.count("\n")) == (2, 1), error
        assert reason in error
        assert not (tmp_path / "x").exists()


# ------------------------------------------------------------------------------------------------------ the harness

TASK = """
task: dogs
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/dogs.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{start}}"
doc_to_choice: "{{ends}}"
doc_to_target: right
target_delimiter: ""
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
metadata: {version: 1}
"""


def test_results_of_the_harness_become_rows() -> None:
    given = {
        "results": {"a": {"alias": "a", "acc,none": 0.25, "acc_stderr,none": 0.1, "name": "a", "f1,strict": 1},
                    "b": {"ppl,none": 9.0, "ppl_stderr,none": "N/A", "sample_len": 3}},
        "n-samples": {"a": {"original": 9, "effective": 4}},
    }  # fmt: skip
    assert to_frame(given).rows() == [
        ("a", "acc", "none", 0.25, 0.1, 4), ("a", "f1", "strict", 1.0, None, 4), ("b", "ppl", "none", 9.0, None, None),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([], "lm_eval is not installed: pip install 'graft-search[evaluate]'"),
        (["lm_eval"], "lm_eval is installed without accelerate, which reads models of Hugging Face: pip install"),
    ],
)
def test_an_evaluation_without_the_harness_or_a_part_of_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], parts: list[str], words: str
) -> None:
    """lm_eval alone, as pip installs it without `[hf]`, is found; its models fail to import."""

    def import_nothing(name: str) -> Any:
        raise ModuleNotFoundError("No module named 'accelerate'", name="accelerate")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("graft.exports.interchange.extras.find_spec", lambda name: name if name in parts else None)
    monkeypatch.setattr("graft.exports.huggingface.evaluation.import_module", import_nothing)
    status, out, error = called(monkeypatch, capfd, "evaluate", "tiny", 1, "--tasks", "dogs")
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert error.startswith(f"error: {words}")


def test_an_evaluation_without_tasks_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """An option of a group that has no default must be given."""
    status, _, error = called(monkeypatch, capfd, "evaluate", "tiny", 1)
    assert (status, error) == (2, "error: Missing option '--tasks'; see `search evaluate --help`\n")


@pytest.mark.long
def test_the_harness_scores_a_trial_on_a_task_of_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The accuracy is the one that the trial's own logits give, its error that of a mean of so many examples."""
    pytest.importorskip("lm_eval", reason="the extra `evaluate` is not installed")
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(SPACE % ("character", "false"))
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "dogs.yaml").write_text(TASK.replace("FOLDER", str(tmp_path)))
    texts = [("the", " dog", " cat"), ("a do", "g", "t"), ("it", " is", " was"), ("one", "e", "s"), ("h", "e", "a")]
    lines = [json.dumps({"start": a, "ends": [b, c], "right": n % 2}) for n, (a, b, c) in enumerate(texts)]
    (tmp_path / "dogs.jsonl").write_text("\n".join(lines) + "\n")
    assert called(monkeypatch, capfd, "launch", "tiny.yaml", "--executor=inline")[0] == 0
    status, out, error = called(
        monkeypatch, capfd, "evaluate", "tiny", 1, "--tasks", "dogs", "--include", "tasks", "--format", "json",
        "-o", "found.json",
    )  # fmt: skip
    assert status == 0, error
    [row] = json.loads(out)
    model = graft.open(str(tmp_path / "graft.db"))["tiny"].model(1)
    text = model.recipe.task.tokenised

    def score(start: str, end: str) -> float:
        given, asked = text.encode(start), text.encode(end)
        ids = torch.tensor([[*given, *asked]])
        with torch.no_grad():
            log_probabilities = model(ids[:, :-1]).log_softmax(-1)[0, len(given) - 1 :]
        return float(log_probabilities.gather(-1, torch.tensor(asked)[:, None]).sum())

    right = [(score(a, c) > score(a, b)) == bool(n % 2) for n, (a, b, c) in enumerate(texts)]
    share = sum(right) / len(right)
    assert (row["task"], row["metric"], row["samples"], row["value"]) == ("dogs", "acc", 5, pytest.approx(share))
    assert row["standard_error"] == pytest.approx((share * (1 - share) / 4) ** 0.5)
    written = json.loads((tmp_path / "found.json").read_text())
    assert (written["study"], written["trial"], written["results"]) == ("tiny", 1, [row])
    for arguments, reason in [
        (("tiny", 1, "--tasks", "cats", "--include", "tasks"), "has no task 'cats'"),
        (("--tasks", "dogs"), "evaluate needs a trial, STUDY N, or --pretrained FOLDER"),
        (("tiny", 1, "--tasks", "dogs", "--scorer", "ssa"), "--scorer goes with --pretrained"),
    ]:
        status, _, error = called(monkeypatch, capfd, "evaluate", *arguments)
        assert status == 2
        assert reason in error
