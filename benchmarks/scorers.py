"""All scorers and activations in three models: a pack against the same with softmax or GELU, and against a plain loop.

    python -m benchmarks.scorers [NAME ...] [--models "char transformer;regressor"] [--seconds 1] [--isa avx2|avx512]

Whole steps (data, gradient, clipping, AdamW) of a pack of 8 lanes, of set complement 32, by the processor time of one
thread, in turns with the others of its row, five each; medians. The plain loop trains one model by the model's own
code in torch, run eagerly, with autograd, clipping and fused AdamW, on one batch that it need not draw. `bent` and
`curved` are of files outside of the package (tests/support/outside_parts.py). `--isa`: the compiled steps and torch
with these vector instructions alone.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import processor
from benchmarks.peers.cases import CASES
from benchmarks.peers.steps import time_in_turns
from graft.plugins.collecting import plugins_asked_for
from spaces import plugins
from spaces.errors import PluginError
from spaces.plugins.active import using
from tests.support.outside_parts import write_parts
from tests.support.trials import trial
from workers.engine.machine.process import flush_subnormals, prepare
from workers.engine.pack import Pack
from workers.engine.step import describe_step
from workers.networks.activations import Activation
from workers.networks.scorers import Scorer
from workers.numerics import native
from workers.numerics.randomness import Purpose, Streams
from workers.training.recipe import Recipe, layout_of

MODELS = {
    "set complement": ("set complement, no dropout", 32),
    "char transformer": ("quick/web", 8),
    "regressor": ("quick/affine", 8),
}
"""Name -> case of benchmarks.peers.cases, lanes."""
SETTINGS: dict[str, dict[str, Any]] = {
    "adaptive_temperature": {"phase": "always"},
    "gated": {"gate": {"name": "tanh"}},
}
"""Fields other than the defaults: a temperature that adapts in training too, a gate that learns no table."""
ISA = {
    "avx2": {"CXXFLAGS": "-march=x86-64-v3", "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "avx512": {"CXXFLAGS": "-march=x86-64-v4", "ATEN_CPU_CAPABILITY": "avx512", "MKL_ENABLE_INSTRUCTIONS": "AVX512"},
}


def main() -> None:
    """Print a row for each scorer and activation in each model."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scorers", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("names", nargs="*")
    parser.add_argument("--models", default=";".join(MODELS))
    parser.add_argument("--seconds", type=float, default=1.0, help="about, of each of the three in a row")
    parser.add_argument("--isa", choices=ISA)
    asked = parser.parse_args()
    if asked.isa and os.environ.get("ATEN_CPU_CAPABILITY") != ISA[asked.isa]["ATEN_CPU_CAPABILITY"]:
        command = [sys.executable, "-m", "benchmarks.scorers", *sys.argv[1:]]  # torch reads this once, as it starts
        raise SystemExit(subprocess.run(command, env={**os.environ, **ISA[asked.isa]}).returncode)
    prepare()
    with (
        tempfile.TemporaryDirectory() as folder,
        using(plugins_asked_for(write_parts(Path(folder)))),
        flush_subnormals(),
    ):
        print(f"{processor()}, steps compiled for {native.instruction_set()}, torch {torch.__version__}")
        print(
            "| model | | ms a lane and step | over softmax or GELU | over the plain loop | step |\n" + "|---" * 6 + "|"
        )
        for model in asked.models.split(";"):
            for line in compare(model, asked.names, asked.seconds):
                print(line, flush=True)


def compare(model: str, names: list[str], seconds: float) -> Iterator[str]:
    """Yield lines of the table; of no names, of all."""
    case, lanes = MODELS[model]
    for kind, family in (("scorer", Scorer), ("activation", Activation)):
        if kind == "activation" and (model == "set complement" or not CASES[case].model.get("mlp_multiple", 4)):
            continue
        base = pack_of(config_of(case, {}), lanes)
        for name in plugins.names(family):
            if names and name not in names:
                continue
            config = config_of(case, {kind: {"name": name, **SETTINGS.get(name, {})}})
            try:
                works = {"own": pack_of(config, lanes), "base": base, "plain": plain_loop(config)}
            except PluginError:  # a mixed scorer needs several heads
                continue
            cost = time_in_turns(works, seconds)
            ratios = cost["base"] / cost["own"], lanes * cost["plain"] / cost["own"]
            step = describe_step(config, "cpu")
            yield (
                f"| {model} | {name} | {1e3 * cost['own'] / lanes:.3g} | {ratios[0]:.2f} | {ratios[1]:.2f} | "
                f"{'native' if step == 'native' else step} |"
            )


def config_of(case: str, parts: dict[str, Any]) -> dict[str, Any]:
    """Return a trial's configuration, with these parts of the model, without averages."""
    config = CASES[case].config()
    return {**config, "model": {**config["model"], **parts}, "averaging": {"name": "none"}}


def pack_of(config: dict[str, Any], lanes: int) -> Callable[[], object]:
    """Make a step of a pack."""
    trials = [trial(number, config) for number in range(lanes)]
    pack = Pack(trials[0], width=lanes)
    pack.fill(trials)
    return lambda: pack.train(1)


def plain_loop(config: Mapping[str, Any]) -> Callable[[], object]:
    """Make a step of one model in torch, eagerly."""
    recipe, zero = Recipe.of(config), torch.zeros(1, dtype=torch.int64)
    layout = layout_of(recipe)
    flat = layout.initial(zero)[0].to(recipe.dtype)
    parameters = {name: tensor.clone().requires_grad_() for name, tensor in layout.split(flat).items()}
    optimizer = torch.optim.AdamW(parameters.values(), lr=1e-4, fused=True)
    drawn = recipe.task.training(Streams.of(zero, Purpose.TRAINING_DATA, zero), recipe.training.batch, zero)
    batch = {name: tensor[0] for name, tensor in drawn.items()}

    def step() -> None:
        optimizer.zero_grad()
        recipe.task.loss(recipe.model.outputs(parameters, batch, {}), batch).backward()
        torch.nn.utils.clip_grad_norm_(parameters.values(), 1.0, foreach=True)
        optimizer.step()

    return step


if __name__ == "__main__":
    main()
