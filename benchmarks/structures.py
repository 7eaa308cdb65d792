"""Every structure of packaged spaces: a pack of trials over a plain loop that trains the same model in torch.

    python -m benchmarks.structures [SPACE ...] [--lanes 8] [--seconds 0.5] [--parameters 1000000] [--most 64]

Without SPACE, all quick spaces. Of each space's first 64 trials the structures that differ (arms, scorers, sizes),
each in turns with a plain loop by the model's own code in torch, run eagerly, with autograd, clipping and fused AdamW,
on one batch that it need not draw, and that is as long as at the end of a curriculum; for stage one of transfers, a
loop over its models. Whole steps by the processor time of one thread; medians of five. Models of more than
`--parameters` are left out, which is told; of a space with more than `--most` structures so many are measured, evenly
spread.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

import graft
from benchmarks.machine import processor
from benchmarks.peers.steps import time_in_turns
from benchmarks.scorers import plain_loop
from search.steering.strategies import begin
from spaces.reading.catalogue import packaged_spaces
from spaces.records import Trial
from workers.engine.machine.process import flush_subnormals, prepare
from workers.engine.pack import Pack
from workers.engine.step import describe_step
from workers.numerics import native
from workers.numerics.parameters import within
from workers.training.learning.architecture import Architecture
from workers.training.recipe import Recipe, layout_of

DRAWN = 64
"""Trials of a space that are looked at."""
FOREVER = 10**9


def main() -> None:
    """Print a row for each structure."""
    summary = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.structures", description=summary)
    parser.add_argument("spaces", nargs="*", metavar="SPACE")
    parser.add_argument("--lanes", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=0.5, help="about, of each of the two in a row")
    parser.add_argument("--parameters", type=int, default=1_000_000)
    parser.add_argument("--most", type=int, default=DRAWN, help="structures of a space")
    asked = parser.parse_args()
    prepare()
    print(f"{processor()}, steps compiled for {native.instruction_set()}, torch {torch.__version__}")
    print("| space | structure | ms a lane and step | over the plain loop | step |\n" + "|---" * 5 + "|")
    with flush_subnormals():
        for name in asked.spaces or [name for name in packaged_spaces() if name.startswith("quick/")]:
            trials = structures_of(name)
            for trial in trials[:: -(-len(trials) // asked.most)]:
                differing = ", ".join(describe(trial, trials)) or "-"
                print(
                    f"| {name} | {differing} | {measure(trial, asked.lanes, asked.seconds, asked.parameters)}",
                    flush=True,
                )


def structures_of(name: str) -> list[Trial]:
    """Return a trial of each structure of a packaged space, which never validates."""
    with graft.Space(name).load() as space:
        trials = begin(space, []).ask(range(min(DRAWN, space.search.trials)))
        samples = {trial.structure: trial for trial in trials}.values()
    return [replace(trial, config=without_end(trial.config)) for trial in samples]


def without_end(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration that never validates, and whose prompts are as long as at the end of a curriculum.

    At its start a compiled step leaves out positions that weigh nothing, and a plain loop does not.
    """
    task, training = config["task"], {**config["training"], "steps": FOREVER, "validate_every": FOREVER}
    grown = {"curriculum_start": task["points"]} if "curriculum_start" in task else {}
    return {**config, "task": {**task, **grown}, "training": training}


def describe(trial: Trial, trials: Sequence[Trial]) -> Iterator[str]:
    """Yield what a trial's structure has that another's has not."""
    structures = [flatten(json.loads(other.structure)) for other in trials]
    for path, value in flatten(json.loads(trial.structure)).items():
        if any(other.get(path) != value for other in structures):
            yield f"{path} {value}"


def flatten(section: Mapping[str, Any], start: str = "") -> dict[str, Any]:
    """Return values by dotted path."""
    values: dict[str, Any] = {}
    for name, value in section.items():
        values |= flatten(value, f"{start}{name}.") if isinstance(value, dict) else {start + name: value}
    return values


def measure(trial: Trial, lanes: int, seconds: float, most: int) -> str:
    """Return the cells of the row after the structure."""
    recipe = Recipe.of(trial.config)
    parameters = layout_of(recipe).total
    if parameters > most:
        return f"left out: {parameters:,} parameters | | |"
    pack = Pack(trial, width=lanes)
    lanes = pack.width
    pack.fill([replace(trial, number=number) for number in range(lanes)])
    loop = plain_loop if recipe.learning.is_plain else plain_stage_one
    cost = time_in_turns({"pack": lambda: pack.train(1), "plain": loop(trial.config)}, seconds)
    ratio = lanes * cost["plain"] / cost["pack"]
    step = describe_step(trial.config, "cpu").partition(":")[0]
    return f"{1e3 * cost['pack'] / lanes:.3g} | {ratio:.2f} | {step} |"


def plain_stage_one(config: Mapping[str, Any]) -> Callable[[], object]:
    """Make a step of stage one of paper 002 (Algorithm 1) in torch, eagerly: models one after the other, weights by
    AdamW on the loss with a fixed form, the form by Adam on the sum of the losses with fixed weights.
    """
    recipe, zero = Recipe.of(config), torch.zeros(1, dtype=torch.int64)
    learning, model, task = recipe.learning, recipe.model, recipe.task
    assert isinstance(learning, Architecture), "all that learn more than weights"
    layout = layout_of(recipe)
    start = layout.split(layout.initial(zero)[0].to(recipe.dtype))
    learned = {name: tensor.clone().requires_grad_() for name, tensor in start.items()}
    models = [within(f"models.{number}", learned) for number in range(learning.models)]
    form = {name: tensor for name, tensor in learned.items() if not name.startswith("models.")}
    weights = [tensor for parameters in models for tensor in parameters.values()]
    optimizers = torch.optim.AdamW(weights, lr=1e-4, fused=True), torch.optim.Adam(form.values(), lr=1e-4, fused=True)
    drawn = {name: tensor[0] for name, tensor in learning.training(task, zero, recipe.training.batch, zero).items()}
    held_out = within("held_out", drawn)
    trained = [
        {name: tensor.unflatten(0, (learning.models, -1))[number] for name, tensor in drawn.items() if name in held_out}
        for number in range(learning.models)
    ]

    def step() -> None:
        for optimizer in optimizers:
            optimizer.zero_grad()
        fixed_form = {name: tensor.detach() for name, tensor in form.items()}
        for parameters, batch in zip(models, trained, strict=True):
            fixed = {name: tensor.detach() for name, tensor in parameters.items()}
            loss = task.loss(model.outputs({**parameters, **fixed_form}, batch, {}), batch)
            (loss + task.loss(model.outputs({**fixed, **form}, held_out, {}), held_out)).backward()
            torch.nn.utils.clip_grad_norm_(parameters.values(), 1.0, foreach=True)
        torch.nn.utils.clip_grad_norm_(form.values(), 1.0, foreach=True)
        for optimizer in optimizers:
            optimizer.step()

    return step


if __name__ == "__main__":
    main()
