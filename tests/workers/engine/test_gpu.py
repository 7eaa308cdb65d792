"""What only a GPU can tell: run with `pytest -m gpu` where there is one.

Each kernel of ours against what it replaces, graphs against steps that are started, and whole trials.
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import patch

import pytest
import torch

from tests.support.native_update import AVERAGINGS, OPTIMIZERS, recipe_of
from tests.support.pretended_gpu import step_cases
from tests.support.trials import traced_step, trial
from workers.engine import fused_check
from workers.engine.machine.process import prepare, use_device
from workers.engine.pack import Pack, stepping
from workers.numerics import stream_kernels
from workers.numerics.fusion.fusions import Fusion
from workers.numerics.tracing import tree_leaves
from workers.training.cuda_update import cuda_update_of
from workers.training.recipe import layout_of

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")]
GPU = torch.device("cuda:0")
CASES = dict(step_cases())


def test_random_numbers_are_those_of_integers_in_python():
    assert stream_kernels.find_fault(GPU) == ""


@pytest.mark.parametrize("averaging", AVERAGINGS, ids=str)
@pytest.mark.parametrize("optimizer", [optimizer for optimizer in OPTIMIZERS if optimizer["name"] != "muon"], ids=str)
def test_the_update_by_one_kernel_is_the_traced_one(optimizer: dict[str, Any], averaging: dict[str, Any]):
    recipe = recipe_of(optimizer, averaging, "float32")
    assert cuda_update_of(recipe, layout_of(recipe, GPU), GPU) is not None


def test_the_fused_step_is_the_traced_one_with_bits_that_do_not_depend_on_the_width():
    assert fused_check.main(GPU) is None


def test_the_fused_step_in_tf32_is_the_traced_one_within_what_rounding_changes():
    assert fused_check.main(GPU, tf32=True) is None


@pytest.mark.parametrize("name", CASES)
def test_every_kernel_of_a_traced_step_gives_what_its_operations_give(name: str):
    fusions: set[Fusion] = set()
    run = Fusion.run
    with (
        patch.object(Fusion, "run", lambda fusion, given: fusions.add(fusion) or run(fusion, given)),
        patch("workers.engine.pack.step_of", traced_step),
        patch("workers.numerics.tracing._RECORDINGS", {}),
        patch.object(stepping, "graph_of", lambda device: None),
    ):
        pack = Pack(trial(3, CASES[name]), width=3, device=str(GPU))
        pack.fill([trial(3, CASES[name])])
        pack.train(3)
    assert fusions
    assert all(verdict for fusion in fusions for verdict in fusion._verdicts.values())


@pytest.mark.parametrize("name", ["schedule cosine 0", "gpt with every dropout in float32", "othello from a pool"])
def test_a_graph_gives_what_started_steps_give_and_nothing_keeps_it_from_being_used(name: str):
    case = CASES[name]

    def states() -> list[torch.Tensor]:
        with patch("workers.engine.pack.step_of", traced_step):
            pack = Pack(trial(3, case), width=4, device=str(GPU))
            pack.fill([trial(number, case) for number in range(4)])
            pack.train(8)
        return tree_leaves(pack._tensors.state)

    with patch.object(stepping, "_TOLD", set()) as reasons:
        actual = states()
    assert not reasons
    with patch.object(stepping, "graph_of", lambda device: None):
        expected = states()
    for leaf, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(leaf, other, rtol=1e-4, atol=1e-5)


def test_packs_on_streams_of_their_own_have_the_bits_of_packs_one_after_another():
    names = ["minimal with dropout in float32", "gpt with every dropout in float32", "schedule cosine 0"]
    prepare()

    def states(slot: int) -> list[torch.Tensor]:
        use_device(GPU, slot)
        case = CASES[names[slot]]
        pack = Pack(trial(3, case), width=4, device=str(GPU))
        pack.fill([trial(number, case) for number in range(4)])
        for _ in range(20):
            pack.train(5)
        return [leaf.cpu() for leaf in tree_leaves(pack._tensors.state)]

    with ThreadPoolExecutor(1) as thread:
        expected = list(thread.map(states, range(3)))
    with ThreadPoolExecutor(3) as threads:
        actual = list(threads.map(states, range(3)))
    for leaves, others in zip(actual, expected, strict=True):
        assert all(torch.equal(leaf, other) for leaf, other in zip(leaves, others, strict=True))


@pytest.mark.parametrize(
    "name", ["minimal with dropout in float32", "gpt with every dropout in float32", "task copying 0"]
)
def test_a_trial_loses_there_what_it_loses_on_a_cpu(name: str):
    losses: list[torch.Tensor] = []
    for device in ("cpu", str(GPU)):
        pack = Pack(trial(3, CASES[name]), width=2, device=device)
        pack.fill([trial(3, CASES[name])])
        pack.train(5)
        losses.append(pack._tensors.state.loss_sum[:1].cpu())
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "command", ["launch quick/set_complement --device cuda", "replay quick-set-complement 0 --device cuda", "doctor"]
)
def test_the_program_works_there(command: str, tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.getbasetemp() / "gpu"
    folder.mkdir(exist_ok=True)
    arguments = [sys.executable, "-m", "graft", *command.split()]
    done = subprocess.run(arguments, cwd=folder, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
