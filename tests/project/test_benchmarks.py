"""The benchmarks compare like with like, and run where they should."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from torch import Tensor, nn

import spaces
from benchmarks import scale, shares
from benchmarks.engine import SHAPES, bytes_per_step, flops_per_step
from benchmarks.options import words_of
from benchmarks.peers import steps
from benchmarks.peers.__main__ import PEERS, Result, ratios
from benchmarks.peers.add_mod import Gpt
from benchmarks.peers.cases import CASES
from benchmarks.peers.catalogue import PROBLEMS
from benchmarks.peers.commands import seconds_of
from benchmarks.peers.graft_peer import space
from benchmarks.peers.layered import Plain, loss_of
from benchmarks.peers.loop_peer import TABLES, Loop, connect, run_trial
from benchmarks.peers.plain import Bema, PlainTrial
from benchmarks.peers.plan import Dropout, Plan, values
from benchmarks.peers.problem import Batch
from benchmarks.peers.ray_peer import trained
from benchmarks.peers.results import Results
from benchmarks.peers.set_complement import Minimal
from benchmarks.peers.steps import compare
from graft.launching.enrolling import enrol
from graft.plugins.families import families
from spaces.records import Directives, Trial
from spaces.space import Space
from storage import open_reader
from tests.support.trials import FIRST_STEP
from workers.numerics.randomness import Purpose, Streams
from workers.training.averaging import bema
from workers.training.recipe import Recipe, layout_of

ROOT = Path(__file__).parents[2]
BLOCKER = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(name + " is blocked")

sys.meta_path.insert(0, Blocker())
"""
BEYOND_TORCH = [
    "alembic",
    "cmaes",
    "matplotlib",
    "optuna",
    "polars",
    "ray",
    "rich",
    "scipy",
    "sqlalchemy",
    "typer",
    "yaml",
]


def searched(task: str, dropout: Dropout = "off", **sizes: int) -> Space:
    """Return the space that Graft is given."""
    plan = Plan(task=task, dropout=dropout, **{"trials": 5, "steps": 8, **sizes})
    return spaces.parse(json.dumps(space(plan)), "the peers' space", families(), {})


def drawn(task: str, dropout: Dropout = "off") -> Trial:
    return sampled(searched(task, dropout), 3)


def sampled(space: Space, number: int) -> Trial:
    return space.sample(number, lambda draw: random.Random(f"{draw.name}/{number}").random())


def python(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True
    )


# -- the same work ---------------------------------------------------------------------------------------------------


def load_minimal(model: Minimal, named: dict[str, Tensor]) -> None:
    columns = torch.cat([named["query"], named["key"], named["value"]], dim=1)
    model.embedding.weight.copy_(named["embedding"])
    model.norm.weight.copy_(named["norm"])
    model.query_key_value.weight.copy_(columns.T)
    model.output.weight.copy_(named["output"].T)
    model.unembedding.weight.copy_(named["unembedding"].T)


def load_gpt(model: Gpt, named: dict[str, Tensor]) -> None:
    """Linear layers are transposed here, and biases have names of their own there."""
    ours = {"embedding.weight": named["embedding"], "position": named["position.table"]}
    ours["unembedding.weight"] = named["unembedding"].T
    for name, value in named.items():
        if name.startswith("layers."):
            kind = "bias" if name.endswith("_bias") else "weight"
            ours[f"{name.removesuffix('_bias')}.{kind}"] = value.T if value.ndim == 2 else value
    model.load_state_dict(ours)


LOAD: dict[str, Callable[[Any, dict[str, Tensor]], None]] = {"set_complement": load_minimal, "add_mod": load_gpt}


def plain_batch(task: str, batch: dict[str, Tensor]) -> Batch:
    """One lane of a batch of Graft's, as plain PyTorch has it."""
    inputs, targets = batch["inputs"][0], batch.get("targets", batch["inputs"])[0]
    return inputs, targets[:, -1] if task == "add_mod" else targets


@pytest.mark.parametrize("task", PROBLEMS)
def test_the_plain_model_is_the_same_function(task: str) -> None:
    problem, trial = PROBLEMS[task], drawn(task)
    recipe = Recipe.of(trial.config)
    layout = layout_of(recipe)
    start = layout.initial(torch.tensor([trial.seed]))[0]
    noise = torch.randn(layout.total, generator=torch.Generator().manual_seed(2))  # attention far from uniform
    named = layout.split(start.float() + 0.2 * noise)
    model = problem.model({"model.norm_epsilon": trial.config["model"]["norm_epsilon"]})
    with torch.no_grad():
        LOAD[task](model, named)
    batch = recipe.task.training(Streams.of(torch.tensor([7]), Purpose.TRAINING_DATA, 0), 32, FIRST_STEP)
    with torch.no_grad():
        expected, logits = recipe.model.outputs(named, {"inputs": batch["inputs"][0]}, {}), model(batch["inputs"][0])
    assert expected.std() > 0.1
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)


LAYERED = [name for name, case in CASES.items() if "quick/" in name and {"width", "name"} <= case.model.keys()]


@pytest.mark.parametrize("name", LAYERED)
def test_the_plain_transformer_of_a_case_is_the_same_function(name: str) -> None:
    """By its loss on a batch, with weights of a size at which attention is far from uniform."""
    recipe = Recipe.of(CASES[name].config())
    layout = layout_of(recipe)
    drawn_batch = recipe.task.training(Streams.of(torch.tensor([7]), Purpose.TRAINING_DATA, 0), 4, FIRST_STEP)
    batch = {key: tensor[0] for key, tensor in drawn_batch.items()}
    noise = torch.randn(layout.total, generator=torch.Generator().manual_seed(2))
    named = layout.split(layout.initial(torch.tensor([3]))[0].float() + 0.2 * noise)
    plain = Plain(recipe, batch)
    with torch.no_grad():
        plain.load_state_dict(plain_names(named, batch["inputs"].shape[1]))
    loss = loss_of(recipe, batch, plain)()
    torch.testing.assert_close(loss, recipe.task.loss(recipe.model.outputs(named, batch, {}), batch))


PLAIN_NAMES = {
    "embedding": "read",
    "read_in": "read",
    "mlp_in": "mlp.0",
    "mlp_out": "mlp.2",
    "unembedding": "write",
    "read_out": "write",
}


def plain_names(named: dict[str, Tensor], length: int) -> dict[str, Tensor]:
    """Parameters as the plain transformer has them, for inputs of this length; linear maps are transposed there."""
    parameters = dict[str, Tensor]()
    for name, value in named.items():
        layer, _, leaf = name.rpartition(".")
        if name == "position.table":
            parameters["position"] = value[:length]
            continue
        kind = "bias" if leaf.endswith("_bias") else "weight"
        leaf = leaf.removesuffix("_bias")
        turned = value.T if value.ndim == 2 and leaf != "embedding" else value
        parameters[".".join(filter(None, [layer, PLAIN_NAMES.get(leaf, leaf), kind]))] = turned
    return parameters if "write.weight" in parameters else {**parameters, "write.weight": parameters["read.weight"]}


@pytest.mark.parametrize("task", PROBLEMS)
def test_weight_decay_applies_to_as_many_parameters(task: str) -> None:
    recipe = Recipe.of(drawn(task).config)
    layout = layout_of(recipe)
    model = PROBLEMS[task].model({})
    assert sum(p.numel() for p in model.parameters()) == layout.total
    assert sum(p.numel() for p in model.decayed()) == int(layout.decays.sum())


@pytest.mark.parametrize("task", PROBLEMS)
def test_losses_and_metrics_of_the_same_logits_agree(task: str) -> None:
    problem, recipe = PROBLEMS[task], Recipe.of(drawn(task).config)
    streams = Streams.of(torch.tensor([5]), Purpose.VALIDATION_DATA, 0)
    training, validation = recipe.task.training(streams, 20, FIRST_STEP), recipe.task.validation(streams, 20)
    logits = random_logits(training, recipe.task.tokens)
    expected = recipe.task.loss(logits, {name: values[0] for name, values in training.items()})
    torch.testing.assert_close(problem.loss(logits, plain_batch(task, training)), expected)
    logits = random_logits(validation, recipe.task.tokens)
    metrics = recipe.task.metrics(logits, {name: values[0] for name, values in validation.items()})
    scores = problem.metrics(logits, plain_batch(task, validation))
    assert {name: value.item() for name, value in scores.items()} == pytest.approx(
        {name: each.mean().item() for name, each in metrics.items()}, abs=1e-6
    )


def random_logits(batch: dict[str, Tensor], tokens: int) -> Tensor:
    return torch.randn(*batch["inputs"][0].shape, tokens, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("task", PROBLEMS)
def test_batches_have_the_shapes_and_tokens_of_the_task(task: str) -> None:
    problem, recipe = PROBLEMS[task], Recipe.of(drawn(task).config)
    streams = Streams.of(torch.tensor([5]), Purpose.TRAINING_DATA, 0)
    assert recipe.training.batch == problem.batch
    for batch, expected in (
        (problem.training("cpu"), recipe.task.training(streams, problem.batch, FIRST_STEP)),
        (problem.validation(64, "cpu"), recipe.task.validation(streams, 64)),
    ):
        assert batch[0].shape == expected["inputs"][0].shape
        assert set(batch[0].unique().tolist()) <= set(range(recipe.task.tokens))


def test_sums_are_right_and_no_pair_is_trained_on_and_validated() -> None:
    problem = PROBLEMS["add_mod"]
    (trained_on, sums), (validated, others) = problem.training("cpu"), problem.validation(0, "cpu")
    for inputs, results in ((trained_on, sums), (validated, others)):
        assert [(a + b) % 97 for a, b, _ in inputs.tolist()] == results.tolist()
    assert not {tuple(row) for row in trained_on.tolist()} & {tuple(row) for row in validated.tolist()}


@pytest.mark.parametrize("dropout", ["table1", "on", "off"])
@pytest.mark.parametrize("task", PROBLEMS)
def test_graft_and_the_peers_draw_from_one_space(task: str, dropout: Dropout) -> None:
    """The same numbers u become the same hyperparameters through the space file and through Python."""
    loaded, draws = searched(task, dropout), PROBLEMS[task].draws(dropout)
    for number in range(20):
        trial = sampled(loaded, number)
        assert len(trial.draws) == len(draws)
        scaled = {path: draw.low + trial.draws[path] * (draw.high - draw.low) for path, draw in draws.items()}
        for path, value in values(draws, scaled).items():
            assert at(trial.config, path) == pytest.approx(value, rel=1e-12), path


def at(config: Any, path: str) -> Any:
    for name in path.split("."):
        config = config[name]
    return config


def test_the_averages_of_the_peers_are_graft_s() -> None:
    parameter = nn.Parameter(torch.randn(7, dtype=torch.float64))
    path = torch.randn(6, 7, dtype=torch.float64)
    ours, theirs = Bema([parameter], rho=3.0, kappa=0.6, eta=0.3), bema.Bema(rho=3.0, kappa=0.6, eta=0.3)
    shadow = theirs.start(parameter.detach().clone())
    for step, point in enumerate(path):
        with torch.no_grad():
            parameter.copy_(point)
        ours.update()
        shadow = theirs.update(shadow, point, torch.tensor(step))
    expected = theirs.average(shadow, path[-1], torch.tensor(len(path)), torch.tensor(0))
    torch.testing.assert_close(ours.parameters()[0], expected)


# -- the peers -------------------------------------------------------------------------------------------------------


def knobs(task: str) -> dict[str, float]:
    draws = PROBLEMS[task].draws("on")
    return values(draws, {path: (draw.low + draw.high) / 2 for path, draw in draws.items()})


@pytest.mark.parametrize("task", PROBLEMS)
def test_a_plain_trial_learns_and_validates_when_due(task: str) -> None:
    trial = PlainTrial(PROBLEMS[task], knobs(task), seed=0, steps=25, device="cpu")
    reports = list(trial.reports(every=10, validation_batch=64))
    assert [step for step, _ in reports] == [10, 20, 25]
    assert reports[-1][1]["loss"] < reports[0][1]["loss"]
    metric, _, _ = PROBLEMS[task].objective.partition("/")
    assert {f"{metric}/raw", f"{metric}/bema", "loss"} <= reports[-1][1].keys()


def test_a_trial_of_the_loop_is_found_in_its_database(tmp_path: Path) -> None:
    plan = Plan(trials=1, steps=5, validate_every=2, validation_batch=32)
    with connect(tmp_path) as connection:
        connection.executescript(TABLES)
    run_trial(plan, tmp_path, 0)
    (trial,) = Loop().results(tmp_path)
    assert trial.steps == 5
    assert trial.started < trial.finished
    with connect(tmp_path) as connection:
        ((count, last),) = connection.execute("SELECT count(*), max(step) FROM metrics WHERE name = 'tvd/bema'")
        ((objective,),) = connection.execute("SELECT value FROM metrics WHERE name = 'tvd/bema' AND step = 5")
    connection.close()
    assert (count, last) == (3, 5)
    assert objective == trial.objective


def test_a_trial_of_tune_is_read_from_its_last_report(tmp_path: Path) -> None:
    reports = [{"step": step, "started": 1.0, "finished": 2.0 + step, "objective": 0.5 / step} for step in (1, 2)]
    (tmp_path / "result.json").write_text("".join(json.dumps(report) + "\n" for report in reports))
    assert trained(tmp_path / "result.json") == (2, 1.0, 4.0, 0.25)


def test_rates_are_steps_over_seconds() -> None:
    def result(seconds: float, steady: float) -> Result:
        return Result(trials=2, model_steps=600, seconds=seconds, steady_seconds=steady, median_objective=0)

    factors = ratios({"graft": result(10, 6), "loop": result(30, 24), "ray": result(60, 12)})
    assert factors == {"loop": {"end_to_end": 3, "steady": 4}, "ray": {"end_to_end": 6, "steady": 2}}


def test_nothing_of_a_peer_runs_on_after_its_command(tmp_path: Path) -> None:
    program = "import subprocess; print(subprocess.Popen(['sleep', '600']).pid, file=open('child', 'w'))"
    assert seconds_of([sys.executable, "-c", program], tmp_path) > 0
    child = Path(f"/proc/{(tmp_path / 'child').read_text().strip()}/stat")
    deadline = time.monotonic() + 120
    while child.exists() and child.read_text().split()[2] != "Z":
        assert time.monotonic() < deadline, "the peer's process still runs"
        time.sleep(0.01)


def test_a_peer_that_fails_ends_the_benchmark(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"ended with status 3: .*raise SystemExit"):
        seconds_of([sys.executable, "-c", "raise SystemExit(3)"], tmp_path)


def test_a_list_option_names_its_choices() -> None:
    assert words_of(["a", "b"])("b,a") == ["b", "a"]
    with pytest.raises(argparse.ArgumentTypeError, match="'c' must be one of a, b"):
        words_of(["a", "b"])("a,c")


@pytest.mark.long
def test_the_peers_import_without_ray() -> None:
    process = python(BLOCKER.format(blocked=["ray", "optuna"]) + "import benchmarks.peers.__main__\nprint('imported')")
    assert process.stdout == "imported\n", process.stderr


@pytest.mark.slow
@pytest.mark.parametrize("task", PROBLEMS)
def test_one_command_runs_all_peers_side_by_side(task: str) -> None:
    program = "from benchmarks.peers.__main__ import main; main()"
    sizes = ["--trials", "3", "--steps", "6", "--peer-trials", "2", "--processes", "2", "--dropout", "on"]
    process = python(program, "--task", task, *sizes)
    assert process.returncode == 0, process.stderr
    summary = json.loads(process.stdout.splitlines()[-1])
    rates = summary["model_steps_per_second"]
    assert {name: rates[name]["trials"] for name in PEERS} == {"ray": 2, "loop": 2, "graft": 3}
    assert all(rates[name]["model_steps"] == 6 * rates[name]["trials"] for name in PEERS)
    assert all(0 < rates[name]["end_to_end"] < rates[name]["steady"] for name in PEERS)
    assert summary["graft_over"].keys() == {"ray", "loop"}


# -- the engine ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_operations_are_those_of_the_matrix_products(shape: str) -> None:
    """Forward per position: query, key, value, output, unembedding, and attention over s positions; back twice that."""
    p = SHAPES[shape]
    products = p.width * (2 * p.key_width + p.value_width) + p.value_width * p.width + p.width * p.vocabulary
    attention = p.length * (p.key_width + p.width)
    assert flops_per_step(p) == 3 * 2 * p.batch * p.length * (products + attention)


def test_masks_cost_bytes() -> None:
    p = SHAPES["small"]
    cost = 3 * p.batch * p.length * p.width
    assert bytes_per_step(p, "both") - bytes_per_step(p, "off") == 2 * cost
    assert bytes_per_step(p, "residual") - bytes_per_step(p, "off") == cost


@pytest.mark.long
def test_the_engine_s_benchmark_needs_torch_and_numpy_alone() -> None:
    program = BLOCKER.format(blocked=BEYOND_TORCH) + "from benchmarks.engine import main; main()"
    options = ["--device", "cpu", "--lanes", "2,3", "--shapes", "small", "--dropout", "residual", "--seconds", "0.01"]
    process = python(program, *options)
    assert process.returncode == 0, process.stderr
    summary = json.loads(process.stdout.splitlines()[-1])
    assert [row["lanes"] for row in summary["rows"]] == [2, 3]
    assert all(row["model_steps_per_second"] > 0 and row["over_single"] > 0 for row in summary["rows"])
    assert all(ceiling > 0 for ceiling in summary["ceilings"].values())


def test_the_steps_of_a_case_are_one_line_and_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    name = "EEmicroGPT, width 16"
    compare([name], lanes=2, seconds=0.01, compile_limit=0)
    *_, line, last = capsys.readouterr().out.splitlines()
    [row] = json.loads(last)["rows"]
    assert line.startswith(f"| {name} | ")
    # forward, twice that back: of each position, 12 d^2 + 27 d of weights and 2 s d of attention
    operations = 3 * 2 * 16 * 16 * (12 * 16**2 + 27 * 16 + 2 * 16 * 16)
    assert row["gflops"] * row["pack"] * 1e6 == pytest.approx(operations, rel=0.01)
    assert row["over_plain"] == pytest.approx(row["plain"] / row["pack"])


def test_results_of_parts_add_up_in_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A case that is there is not measured again; one that no time is left for is not begun."""
    results, first, second = Results(tmp_path / "results.json"), *list(CASES)[-2:]
    compare([first], lanes=2, seconds=0.01, compile_limit=0, results=results)
    measured = results.read("steps")
    assert [*measured] == [first]
    compare([first, second], lanes=2, seconds=0.01, compile_limit=0, results=results, budget=-1)
    assert results.read("steps") == measured
    monkeypatch.setattr(steps, "_measure", lambda name, *_: steps.Row(**{**measured[first], "case": name}))
    compare([first, second], lanes=2, seconds=0.01, compile_limit=0, results=results)
    assert [*results.read("steps")] == [first, second]
    assert results.read("steps")[first] == measured[first]
    assert sum(line.startswith("| EEmicro") for line in capsys.readouterr().out.splitlines()) == 4
    results.add("searches", "one", {"a": 1})
    assert [*results.read("steps")] == [first, second]


# -- a large study ---------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_made_up_trial_learns_by_its_seed_alone_and_ends_once() -> None:
    trials = [replace(drawn("set_complement"), number=number, seed=997 * number) for number in range(400)]
    ended = {"finished": 0, "diverged": 0}
    for trial in trials:
        worker = scale.SimulatedWorker(name="w", lanes=1)
        worker.apply(Directives(start=(trial,)))
        reports = [report for _ in range(scale.VALIDATIONS) for report in worker.train()]
        assert not worker.running
        assert reports == [scale.report(trial, report.step) for report in reports]
        losses = [report.metrics[0].value for report in reports if report.metrics]
        assert losses == sorted(losses, reverse=True)
        assert [report.state for report in reports[:-1]] == ["running"] * (len(reports) - 1)
        ended[reports[-1].state] += 1
    assert sum(ended.values()) == len(trials)
    assert 0 < ended["diverged"] < 4 * scale.DIVERGING * len(trials)


@pytest.mark.long
def test_a_large_study_s_benchmark_resumes_what_it_left(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/graft.db"
    enrol(url, scale.STUDY, scale.study_of(60, "thin"))
    first = scale.alone(url, workers=3, lanes=4, until=20)
    again = scale.alone(url, workers=2, lanes=4, until=10**6)
    assert (first.before, again.before) == (0, first.ended)
    assert 20 <= first.ended < again.ended == 60
    assert first.resume_seconds > 0 < first.trial_ms
    with open_reader(url) as reader:
        trials, metrics = reader.study(scale.STUDY).trials(), reader.study(scale.STUDY).metrics()
    assert set(trials["state"]) <= {"finished", "diverged"}
    finished = trials.filter(pl.col("state") == "finished").select("number")
    assert set(metrics.join(finished, on="number").group_by("number").len()["len"]) == {7 * scale.VALIDATIONS}
    assert all(look.cpu > 0 for look in scale.look(url, cold=True).values())


def test_departures_from_weights_are_of_what_was_trained_between_two_looks():
    before = shares.Look(dict.fromkeys(shares.STUDIES, 100), dict.fromkeys(shares.STUDIES, 5.0))
    weights = {study: weight for study, (_, weight) in shares.STUDIES.items()}
    steps = {study: 100 + int(weight * 1000) for study, weight in weights.items()}
    seconds = {study: 5.0 + weight for study, weight in weights.items()} | {"a": 7.0, "d": 7.0}
    rows = {row.study: row for row in shares.compare(before, shares.Look(steps, seconds))}
    for study, row in rows.items():
        of_steps, of_seconds = row.departures()
        assert of_steps == pytest.approx(0)
        assert of_seconds == pytest.approx({"a": 1.0, "d": -1 / 3}.get(study, 0))


PROGRAMS = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in (ROOT / "benchmarks").rglob("*.py")
    if 'if __name__ == "__main__"' in path.read_text()
)
"""The modules that are run by `python -m`."""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("module", PROGRAMS)
def test_a_benchmark_says_what_it_does_and_runs_nothing(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = importlib.import_module(module)
    # Whatever a benchmark begins with is measured by one of these clocks, or run by one of these.
    for clock in ("perf_counter", "process_time", "monotonic"):
        monkeypatch.setattr(time, clock, lambda: pytest.fail(f"{module} runs before it has read its arguments"))
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail(f"{module} starts a process"))
    monkeypatch.setattr(sys, "argv", [module, "--help"])
    with pytest.raises(SystemExit) as leaving:
        program.main()
    assert leaving.value.code == 0
    assert capsys.readouterr().out.startswith("usage: ")
