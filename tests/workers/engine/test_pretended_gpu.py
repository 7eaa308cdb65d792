"""Everything that trains, on a GPU that is pretended: nothing waits for it, nothing is sent to it, kernels are few."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from spaces.records import Report
from tests.support import alone as trials_alone
from tests.support.pretended_gpu import BUDGETS, DEVICE, count_step, pack_of, pretended_gpu, step_cases
from tests.support.trials import config, trial
from workers.data.tasks.set_complement import SetComplement
from workers.engine.checkpoints import Archive
from workers.engine.pack import Pack
from workers.networks.activations._spline import gather_knots, interpolate
from workers.networks.activations.tanh import Tanh

CASES = dict(step_cases())
BUDGET: dict[str, int] = json.loads(BUDGETS.read_text())
EXPECTED_FAULTS = {
    "task othello 0": ("workers/data/othello/games.py",),  # games without a pool are played on the CPU
    "an architecture learned with lives": (  # a model starts anew, from numbers drawn on the CPU
        "workers/training/learning/architecture.py",
        "workers/engine/pack/__init__.py",
    ),
}
"""Case -> the files that have to do with the processor while it trains, and why."""


@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(2, 44)
def test_a_step_waits_for_nothing_sends_nothing_and_has_no_more_kernels_than_before(name: str):
    with pretended_gpu() as gpu:
        counted = count_step(gpu, pack_of(CASES[name]))
    allowed = EXPECTED_FAULTS.get(name, ("nothing",))
    assert [fault for fault in counted.faults if not fault.place.startswith(allowed)] == []
    assert bool(counted.faults) == (name in EXPECTED_FAULTS)
    losses = 2 if "architecture" in name else 1  # one number of each row is added to: nothing to be put in order
    assert counted.operations["aten.scatter_add.default"] <= losses, "sums by atomics come in any order"
    assert not [
        operation for operation in counted.operations if operation.startswith(("aten.index_add", "aten.scatter_reduce"))
    ]
    assert counted.kernels <= BUDGET[name], (
        "more kernels a step than there were; see `python -m tests.support.pretended_gpu`"
    )


def test_a_spline_adds_without_atomics_what_a_gather_adds_with_them():
    numbers = torch.Generator().manual_seed(3)
    points = torch.randn(3, 40, generator=numbers, dtype=torch.float64) * 2
    points[0, :3] = torch.tensor([-9.0, 9.0, 0.0])
    knots = torch.randn(3, 9, generator=numbers, dtype=torch.float64)

    def gradients(spline: Any, *given: Tensor) -> Any:
        def total(points: Tensor, knots: Tensor) -> tuple[Tensor, Tensor]:
            values = spline(points, knots)
            return (values * points.detach().cos()).sum(), values

        return vmap(grad(total, argnums=(0, 1), has_aux=True))(*given)

    (by_points, by_knots), values = gradients(lambda x, y: gather_knots(x, y, -2.0, 2.0), points, knots)
    with pretended_gpu() as gpu:
        computed = gradients(lambda x, y: interpolate(x, y, -2.0, 2.0), points.to(DEVICE), knots.to(DEVICE))
        (there_points, there_knots), there = computed
        assert not [name for name in gpu.kernels if "scatter" in name or "index" in name]
        moved = [tensor.cpu() for tensor in (there_points, there_knots, there)]
    for here, other in zip((by_points, by_knots, values), moved, strict=True):
        torch.testing.assert_close(other, here, rtol=1e-12, atol=1e-12)


@pytest.mark.fast
def test_every_case_has_a_budget_and_every_budget_a_case():
    assert BUDGET.keys() == CASES.keys()


@pytest.mark.fast
def test_a_minimal_step_has_at_most_sixty_kernels_and_a_transformer_of_two_layers_at_most_a_hundred():
    minimal = [name for name, case in CASES.items() if case["model"]["name"] == "minimal"]
    assert len(minimal) > 10
    assert {name: BUDGET[name] for name in minimal if BUDGET[name] > 60} == {}
    assert BUDGET["task set_complement 0"] <= BUDGET["gpt with every dropout in float32"] <= 100


@pytest.mark.long
@pytest.mark.parametrize("name", ["minimal, padded, dropout of tokens", "diagnostics", "averaging bema_grid 0"])
@pytest.mark.sampled(1)
def test_packs_resize_validate_refill_and_end_there_as_on_a_cpu(name: str):
    configuration = dict(trials_alone.cases())[name]
    trials = [replace(trial(number, configuration), number=number) for number in range(4)]

    def reports(device: str) -> list[Report]:
        pack = Pack(trials[0], width=2, device=device)
        pack.fill(trials[:2])
        collected = pack.train(3)
        pack.resize(4)
        pack.fill(trials[2:])
        while pack.running:
            collected += pack.train(1000)
        return [replace(report, fingerprint=None) for report in collected]

    with pretended_gpu():
        there = reports(DEVICE)
    here = reports("cpu")
    assert [(report.number, report.step, report.state) for report in here] == [
        (report.number, report.step, report.state) for report in there
    ]
    for cpu_report, other in zip(here, there, strict=True):
        assert [metric[:3] for metric in cpu_report.metrics] == [metric[:3] for metric in other.metrics]
        values = [torch.tensor([metric.value for metric in report.metrics]) for report in (cpu_report, other)]
        torch.testing.assert_close(*values, rtol=1e-5, atol=1e-6)


@pytest.mark.long
def test_a_checkpoint_and_weights_leave_the_device_and_return(tmp_path: Path):
    archive = Archive(str(tmp_path), "study")
    candidate = trial(0, config(steps=6, every=6))
    with pretended_gpu():
        whole = Pack(candidate, width=2, device=DEVICE)
        whole.fill([candidate])
        expected = whole.train(1000)
        pack = Pack(candidate, width=2, device=DEVICE)
        pack.fill([candidate])
        pack.train(4)
        snapshot = pack.snapshot()
        assert snapshot
        assert {tensor.device.type for tensor in snapshot.tensors.values()} == {"cpu"}
        [saved] = archive.write("worker", snapshot)
        resumed = Pack(candidate, width=2, device=DEVICE, archive=archive)
        resumed.fill([replace(candidate, checkpoints=(saved,))])
        assert [lane.step for lane in resumed.lanes if lane] == [4]
        assert resumed.train(1000) == expected
        weights = resumed.parameters_by_variant(0, candidate)
        assert {name: value.cpu().numbers for name, value in weights["raw"].items() if value.device.type == "cpu"} == {}
        assert {value.cpu().device.type for value in weights["raw"].values()} == {"cpu"}


# -- planted faults --------------------------------------------------------------------------------------------------

PLANTED = config(model={"scorer": {"name": "softmax"}}, steps=1000, every=1000)
TANH = next(name for name in CASES if name.startswith("activation tanh"))
GPT: dict[str, Any] = dict(CASES[TANH])


@dataclass
class Planted:
    """What a test puts in the place of a method of ours."""

    constant: Tensor | None = None

    def waiting(self, task: SetComplement, streams: Any, batch: int, step: Tensor) -> Any:
        drawn = _training(task, streams, batch, step)
        assert int(drawn["inputs"].sum()) >= 0
        return drawn

    def branching(self, task: SetComplement, streams: Any, batch: int, step: Tensor) -> Any:
        drawn = _training(task, streams, batch, step)
        return drawn if (drawn["inputs"] >= 0).all() else {}

    def selecting(self, task: SetComplement, streams: Any, batch: int, step: Tensor) -> Any:
        drawn = _training(task, streams, batch, step)
        assert drawn["inputs"][drawn["inputs"] >= 0].numel()
        return drawn

    def listing(self, task: SetComplement, streams: Any, batch: int, step: Tensor) -> Any:
        assert step.tolist()
        return _training(task, streams, batch, step)

    def sending(self, task: SetComplement, streams: Any, batch: int, step: Tensor) -> Any:
        drawn = _training(task, streams, batch, step)
        return drawn | {"inputs": drawn["inputs"] + torch.tensor([0], device=step.device)}

    def moving(self, task: SetComplement, streams: Any, batch: int, step: Tensor) -> Any:
        drawn = _training(task, streams, batch, step)
        return drawn | {"inputs": drawn["inputs"] + torch.zeros(1, dtype=torch.int64).to(step.device)}

    def mixing(self, task: SetComplement, streams: Any, batch: int, step: Tensor) -> Any:
        drawn = _training(task, streams, batch, step)
        return drawn | {"inputs": drawn["inputs"] + torch.zeros(1, dtype=torch.int64)}


_training = SetComplement.training


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("waiting", "wait"), ("branching", "wait"), ("selecting", "wait"), ("listing", "wait"),
        ("sending", "copy"), ("moving", "copy"),
    ],
)  # fmt: skip
def test_a_wait_and_a_copy_that_are_planted_are_found_with_their_line(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
):
    planted = getattr(Planted(), name)
    monkeypatch.setattr(SetComplement, "training", lambda *arguments: planted(*arguments))
    with pretended_gpu() as gpu:
        counted = count_step(gpu, pack_of(PLANTED))
    assert {fault.kind for fault in counted.faults} == {kind}
    assert all(fault.place.startswith("tests/workers/engine/test_pretended_gpu.py:") for fault in counted.faults)


def test_a_tensor_of_the_cpu_among_those_of_the_gpu_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(SetComplement, "training", lambda *arguments: Planted().mixing(*arguments))
    with (
        pretended_gpu(),
        pytest.raises(RuntimeError, match=r"of the GPU and of the CPU at tests/workers/engine/test_pretended_gpu"),
    ):
        pack_of(PLANTED)


@pytest.mark.long
def test_a_constant_of_the_cpu_inside_a_recorded_step_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Tanh, "apply", lambda self, values, learned: values.tanh() * torch.ones(1, dtype=values.dtype))
    with pretended_gpu(), pytest.raises(RuntimeError, match="of the GPU and of the CPU"):
        pack_of(GPT)


@pytest.mark.long
def test_kernels_that_are_planted_break_the_budget(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Tanh, "apply", lambda self, values, learned: values.cumsum(-1).tanh())
    with pretended_gpu() as gpu:
        assert count_step(gpu, pack_of(GPT)).kernels > BUDGET[TANH]


def test_streams_of_dropout_that_is_off_are_not_drawn(monkeypatch: pytest.MonkeyPatch):
    drawn: list[Any] = []
    monkeypatch.setattr("workers.engine.dropout_masks.keep_mask", lambda streams, rates, *shape: drawn.append(shape))
    with pretended_gpu():
        pack_of(PLANTED)
    assert drawn == []
