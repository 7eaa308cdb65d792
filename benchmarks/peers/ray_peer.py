"""Ray Tune with Optuna: one trial per actor, a process per core, actors reused, as Ray's user guide has it.

    python -m benchmarks.peers.ray_peer PLAN FOLDER

Tune keeps its results in its own files: per trial result.json, progress.csv, params.json and, where it finds
tensorboardX, an event file. Its console output is switched off, which is to its advantage. Optuna samples at random, as
Graft and the loop do.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.peers.catalogue import PROBLEMS
from benchmarks.peers.plain import PlainTrial
from benchmarks.peers.plan import Peer, Plan, Trained, module_command, values

if TYPE_CHECKING:
    from ray import tune


class RayTune(Peer):
    """Ray Tune with OptunaSearch."""

    def command(self, plan: Plan, folder: Path) -> list[str]:
        return module_command("benchmarks.peers.ray_peer", plan, folder)

    def results(self, folder: Path) -> list[Trained]:
        return [trained(path) for path in sorted(folder.glob("results/*/*/result.json"))]


def trained(path: Path) -> Trained:
    """Return a trial from its result.json: one line per validation."""
    last = json.loads(path.read_text().splitlines()[-1])
    objective = last["objective"] if math.isfinite(last["objective"]) else None
    return Trained(last["step"], last["started"], last["finished"], objective)


def search(plan: Plan, folder: Path) -> tune.Tuner:
    """Return the search as a Tuner."""
    import optuna
    from ray import tune
    from ray.tune.search.optuna import OptunaSearch

    problem = PROBLEMS[plan.task]

    class PlainTrainable(tune.Trainable):
        """One validation per step of Tune's."""

        def setup(self, config: dict[str, Any]) -> None:
            torch.set_num_threads(1)
            self.reset_config(config)

        def reset_config(self, new_config: dict[str, Any]) -> bool:
            self._started = time.time()
            knobs = values(problem.draws(plan.dropout), new_config)
            trial = PlainTrial(problem, knobs, seed=new_config["seed"], steps=plan.steps, device="cpu")
            self._reports: Iterator[Any] = trial.reports(plan.validate_every, plan.validation_batch)
            return True

        def step(self) -> dict[str, Any]:
            step, metrics = next(self._reports)
            objective = metrics[problem.objective]
            times = {"started": self._started, "finished": time.time()}
            return {**metrics, **times, "step": step, "objective": objective, "done": step == plan.steps}

    draws = {path: tune.uniform(draw.low, draw.high) for path, draw in problem.draws(plan.dropout).items()}
    sampler = optuna.samplers.RandomSampler(seed=plan.seed)
    return tune.Tuner(
        tune.with_resources(PlainTrainable, {"cpu": 1}),
        param_space={**draws, "seed": tune.randint(0, 2**31)},
        tune_config=tune.TuneConfig(
            search_alg=OptunaSearch(metric="objective", mode=problem.direction[:3], sampler=sampler),
            num_samples=plan.trials,
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(
            name="search",
            storage_path=str(folder / "results"),
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            verbose=0,
        ),
    )


def main() -> None:
    """Run all trials of the plan on a Ray of their own."""
    plan, folder = Plan.from_arguments()
    import ray

    ray.init(address="local", num_cpus=plan.processes, include_dashboard=False, _temp_dir=str(folder / "ray"))
    try:
        errors = search(plan, folder).fit().errors
        if errors:
            raise errors[0]
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
