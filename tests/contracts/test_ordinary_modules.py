"""Ordinary modules of torch are models of one's own, and tasks are ordinary ones: they keep the contract, are launched,
and replay to the bit.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

from graft.plugins.collecting import plugins_asked_for
from graft.testing import check
from graft.testing.training import step_with
from graft.testing.writing import write_template
from spaces import plugins
from spaces.errors import PluginError
from spaces.plugins.active import using
from tests.support.inside import called
from tests.support.ordinary_modules import MODULES, REFUSED, write
from tests.support.ordinary_tasks import TASKS, write_task
from workers.data.tasks import Task
from workers.networks.models import Model
from workers.networks.modules import ModuleModel
from workers.numerics.tracing import Traced

SPACE = """\
study: own
plugins: [./own_{name}.py]
task: {{name: add_mod, modulus: 13}}
model: {{name: own_{name}}}
optimizer: {{name: adamw, learning_rate: "10 ** uniform(-3, -2)"}}
averaging: none
training: {{steps: 4, batch: 4, validate_every: 2, validation_batch: 4, pad_shapes: false}}
search: {{trials: 3, group: 3, objective: {{minimize: loss/raw}}}}
"""
"""The task and the batch are those of the check, so that a module's program is generated and compiled once."""
TASK_SPACE = """\
study: own
plugins: [./own_{name}.py]
task: {{name: own_{name}}}
model: {model}
optimizer: {{name: adamw, learning_rate: "10 ** uniform(-3, -2)"}}
averaging: none
training: {{steps: 4, batch: 4, validate_every: 2, validation_batch: 4}}
search: {{trials: 3, group: 3, objective: {{{metric}}}}}
"""
OPTIONS = ("--device=cpu", "--workers=1", "--pack=2")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SEARCH_STORAGE", raising=False)
    return tmp_path


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.sampled(1, len(MODULES))
def test_an_ordinary_module_keeps_the_contract_is_launched_and_replays_to_the_bit(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(folder, name)
    with using(plugins_asked_for([str(file)])):
        for finding in check("model", {"name": f"own_{name}"}):
            expected = "none" if finding.check.name == "sets" else "kept"
            assert finding.verdict == expected, f"{finding.check.name}: {finding.reason}"
    (folder / "space.yaml").write_text(SPACE.format(name=name))
    status, _, error = called(monkeypatch, capsys, "launch", "space.yaml", *OPTIONS)
    assert status == 0, error
    assert "Traceback" not in error
    assert len(re.findall("slower than by a (step written by hand|compiled step)", error)) == 1
    status, out, error = called(monkeypatch, capsys, "replay", "own", "0", "2")
    assert status == 0, (out, error)
    assert out.count("metrics equal to the bit") == 2


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.sampled(1, len(TASKS))
def test_an_own_task_keeps_the_contract_is_launched_replays_to_the_bit_and_says_how_it_trains(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, case = write_task(folder, name), TASKS[name]
    configuration = {"name": f"own_{name}"}
    with using(plugins_asked_for([str(file)])):
        for finding in check("task", configuration):
            assert finding.verdict != "broken", f"{finding.check.name}: {finding.reason}"
        assert step_with("task", configuration).startswith(case.step)
    (folder / "space.yaml").write_text(TASK_SPACE.format(name=name, model=case.model, metric=case.metric))
    status, _, error = called(monkeypatch, capsys, "launch", "space.yaml", *OPTIONS)
    assert status == 0, error
    assert "Traceback" not in error
    reason = case.step.rpartition(": ")[2]
    assert (reason in error, "slower than by a" in error) == (case.step != "native",) * 2
    status, out, error = called(monkeypatch, capsys, "replay", "own", "0", "2")
    assert status == 0, (out, error)
    assert out.count("metrics equal to the bit") == 2


@pytest.mark.parametrize("name", REFUSED)
def test_a_module_that_no_pack_can_train_is_refused_in_one_line(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(folder, name)
    (folder / "space.yaml").write_text(SPACE.format(name=name))
    for arguments in (("launch", "space.yaml", *OPTIONS), ("launch", "space.yaml", "--dry-run")):
        status, out, error = called(monkeypatch, capsys, *arguments)
        assert (status, out) == (2, "")
        assert len(error.splitlines()) == 1
        assert REFUSED[name][2] in error
    status, out, _ = called(monkeypatch, capsys, "plugin", "check", str(file))
    assert status == 1
    assert out.count(REFUSED[name][2]) == 1, "the reason is told once"


def test_a_decision_by_a_number_names_file_and_line(folder: Path) -> None:
    file = write(folder, "control_flow")
    file.write_text(file.read_text() + "# of another folder, as equal texts are imported once\n")
    line = next(n for n, text in enumerate(file.read_text().splitlines(), 1) if "if y.sum() > 0" in text)
    with using(plugins_asked_for([str(file)])), pytest.raises(PluginError, match=re.escape(f"{file}:{line}:")):
        plugins.build(Model, {"name": "own_control_flow"}).check(plugins.build(Task, {"name": "add_mod", "modulus": 5}))


def test_starting_values_are_distributed_as_the_modules_own(folder: Path) -> None:
    """Against torch.nn.Linear and Embedding of their own: mean, deviation and bounds."""
    task = plugins.build(Task, {"name": "add_mod", "modulus": 97})
    with using(plugins_asked_for([str(write(folder, "layer_norm"))])):
        model = plugins.build(Model, {"name": "own_layer_norm", "width": 64})
        assert isinstance(model, ModuleModel)
        parameters = model.parameters(task)
    uniform = (torch.arange(20_000, dtype=torch.float64)[None] + 0.5) / 20_000
    drawn = {name: parameter.start.values(uniform)[0] for name, parameter in parameters.items()}
    assert float(drawn["embedding.weight"].std()) == pytest.approx(1, abs=0.03)
    assert float(drawn["readout.weight"].abs().max()) == pytest.approx(64**-0.5, rel=0.01)
    assert float(drawn["readout.weight"].std()) == pytest.approx((3 * 64) ** -0.5, rel=0.03)
    assert drawn["body.norm.weight"].unique().tolist() == [1.0]
    assert [name for name, parameter in parameters.items() if not parameter.decay] == [
        name for name, parameter in parameters.items() if len(parameter.shape) == 1
    ]


def test_the_template_of_a_module_keeps_the_contract_in_a_trial(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, error = called(monkeypatch, capsys, "plugin", "new", "model", "net.py", "--from-module")
    assert status == 0, error
    with using(plugins_asked_for(["./net.py"])):
        model = plugins.build(Model, {"name": "net"})
        model.check(plugins.build(Task, {"name": "add_mod", "modulus": 5}))
    with pytest.raises(PluginError, match=r"a scorer is no torch\.nn\.Module"):
        write_template("scorer", folder / "other.py", from_module=True)


# -- recordings --------------------------------------------------------------------------------------------------------


def test_a_recording_that_torch_refuses_is_started_by_python_and_told_in_a_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("Found an unsupported argument type in the JIT tracer.\nFile a bug report.")

    monkeypatch.setattr(torch._C, "_create_graph_by_tracing", refuse)
    traced = Traced("refused by torch", lambda values: values.sin() * 2)
    with caplog.at_level(logging.WARNING):
        for values in (torch.arange(3.0), torch.ones(3)):
            assert torch.equal(traced(values), values.sin() * 2)
    [record] = caplog.records
    assert record.getMessage() == (
        "operations of a step are started by Python, some 10 % slower: RuntimeError: Found an unsupported argument "
        "type in the JIT tracer."
    )


def test_a_function_that_takes_a_number_out_of_a_tensor_is_called_at_each_step_and_told_in_a_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def function(values: Tensor) -> Tensor:
        return values * (2 if float(values[0]) > 0 else 3)

    traced = Traced("takes a number", function)
    with caplog.at_level(logging.WARNING):
        for values in (torch.ones(3), -torch.ones(3)):
            assert torch.equal(traced(values), function(values))
    [record] = caplog.records
    assert "_local_scalar_dense.default takes a number out of a tensor" in record.getMessage()
    assert record.getMessage().endswith("its steps run without a recording, several times slower")


def test_a_number_of_a_constant_is_recorded() -> None:
    def function(values: Tensor) -> Tensor:
        return values * float(torch.arange(4.0).sum())

    with_number = Traced("number of a constant", function)
    assert torch.equal(with_number(torch.ones(3)), torch.full((3,), 6.0))
    assert torch.equal(with_number(torch.arange(3.0)), 6 * torch.arange(3.0))
