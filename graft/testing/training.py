"""Plug-ins in whole trials: packed as alone, and how fast beside what is packaged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from graft.plugins.families import FAMILIES, families, family_of, packaged_names
from graft.testing.common import Configuration, DoesNotApply, build
from spaces import plugins
from spaces.errors import PluginError
from spaces.program import complete_config
from spaces.records import Report, Trial
from workers.data.tasks import SetTask, Task, TokenTask, VectorTask
from workers.engine.machine.process import prepare
from workers.engine.pack import Pack
from workers.engine.speed.timing import make_pack_of_copies, rates_beside, rates_in_turns
from workers.engine.step import describe_step
from workers.networks.modules import ModuleError, ModuleModel
from workers.numerics.randomness import Purpose, Streams
from workers.training.recipe import Recipe

TOKENS = {"name": "add_mod", "modulus": 13}
MODELS: Mapping[type[Task], Mapping[str, Any]] = {
    TokenTask: {"name": "transformer", "width": 8, "depth": 1, "heads": 2, "mlp_multiple": 1, "mlp_dropout": 0.1},
    VectorTask: {"name": "regressor", "width": 8, "depth": 1, "heads": 2, "mlp_multiple": 1},
    SetTask: {"name": "attention_pooling", "width": 8},
}
ENCODER = {"name": "encoder", "width": 8, "depth": 1, "heads": 2, "mlp_multiple": 1}
REFERENCES = {
    "task": TOKENS, "model": MODELS[TokenTask], "scorer": {"name": "softmax"},
    "activation": {"name": "gelu"}, "position": {"name": "learned"},
    "optimizer": {"name": "adamw"}, "schedule": {"name": "linear"},
    "averaging": {"name": "bema"}, "learning": {"name": "weights"},
}  # fmt: skip
"""The plug-ins that others are timed beside."""
_LANES = 3


class Speed(NamedTuple):
    """Optimizer steps of single models per second, by one worker on a CPU."""

    rate: float
    beside: str
    """A packaged plug-in of the family, or a plain loop."""
    rate_beside: float


def trial_with(family: str, configuration: Configuration, number: int = 0, *, steps: int = 4) -> Trial:
    """Return a small trial with a plug-in; raises DoesNotApply if no packaged part goes with it."""
    config = _config(family, configuration, steps)
    try:
        whole, structure = complete_config(config, families())
    except PluginError as error:
        raise DoesNotApply(str(error)) from error
    seed = 1_000_003 * number + 17
    return Trial(number=number, group=0, seed=seed, draws={}, params={}, config=whole, structure=structure)


def _config(family: str, configuration: Configuration, steps: int) -> dict[str, Any]:
    part = dict(configuration)
    training = {"steps": steps, "batch": 4, "validate_every": steps, "validation_batch": 8, "dtype": "float32"}
    parts: dict[str, Any] = {
        "task": TOKENS,
        "model": dict(MODELS[TokenTask]),
        "optimizer": {"name": "adamw", "learning_rate": 1e-3},
        "averaging": {"name": "none"},
        "learning": {"name": "weights"},
        "training": {**training, "diagnostics": family == "diagnostic", "pad_shapes": False},
    }
    if family in ("optimizer", "averaging", "learning"):
        parts[family] = part
    elif family == "schedule":
        parts["optimizer"]["schedule"] = part
    elif family in ("scorer", "activation", "position"):
        parts["model"][family] = part
    elif family in ("corpus", "tokenizer"):
        if family == "corpus" and plugins.load(family_of("corpus"), part["name"]).needs_network:
            raise DoesNotApply("its documents come from elsewhere")
        parts["task"] = {"name": "language", family: part, "length": 8, "rare": 1}
    elif family == "task":
        task = plugins.build(Task, part)
        is_encoder = isinstance(task, TokenTask) and not task.causal
        model = ENCODER if is_encoder else next(config for kind, config in MODELS.items() if isinstance(task, kind))
        parts |= {"task": part, "model": dict(model)}
    elif family == "model":
        parts["model"] = part
        parts["task"] = _task_for(part)
    if family == "learning":
        parts["model"]["mlp_dropout"] = 0.0  # some ways of learning know none
        parts["model"]["activation"] = {"name": "spline", "knots": 9, "low": -1.0, "high": 1.0}
    return parts


def _task_for(model: Configuration) -> dict[str, Any]:
    """Return a packaged task that a model reads, the smallest of its examples."""
    built: Any = plugins.build(family_of("model"), model)
    refusals: list[str] = []
    known = packaged_names("task")
    for task in [TOKENS, *(example for example in plugins.examples(Task) if example["name"] in known)]:
        try:
            built.check(plugins.build(Task, task))
        except ModuleError:
            raise
        except PluginError as error:
            refusals.append(str(error))
        else:
            return dict(task)
    reason = next((refusal for refusal in refusals if " reads " not in refusal), refusals[-1])
    raise DoesNotApply(f"no packaged task goes with it: {reason}")


def _reports(pack: Pack, waiting: list[Trial]) -> dict[tuple[int, int], Report]:
    """Train to the end, filling freed lanes from `waiting`; return reports by number and step."""
    seen: dict[tuple[int, int], Report] = {}
    while pack.running:
        for report in pack.train(1000):
            seen[report.number, report.step] = report
        pack.fill([waiting.pop(0) for _ in range(min(pack.free, len(waiting)))])
    return seen


def _lower_knobs(family: str, configuration: Configuration, number: int) -> Configuration:
    """Return the configuration with knobs that are lower by `number` sixteenths, or as it is."""
    built = build(family, configuration)
    lowered = {path: type(value)(value * (1 - number / 16)) for path, value in plugins.knobs(built)}
    changed = plugins.config_of(plugins.bind(built, lowered))
    try:
        build(family, changed)
    except PluginError:
        return configuration
    return changed


def check_packed_is_alone(family: str, configuration: Configuration) -> None:
    """Assert that a trial gives the same numbers in a refilled pack as alone, to the bit.

    Each trial has knobs of its own, where their rules allow it.
    """
    configurations = [_lower_knobs(family, configuration, number) for number in range(_LANES + 1)]
    trials = [trial_with(family, lowered, number) for number, lowered in enumerate(configurations)]
    pack = Pack(trials[0], width=_LANES)
    pack.fill(trials[:_LANES])
    together = _reports(pack, trials[_LANES:])
    for trial in trials:
        alone = Pack(trial, width=1)
        alone.fill([trial])
        for (number, step), report in _reports(alone, []).items():
            packed = together.get((number, step))
            assert packed is not None, f"trial {number} reports at step {step} alone, but not in a pack"
            where = f"trial {report.number} at step {report.step}"
            assert packed.state == report.state, f"{where} is {report.state} alone and {packed.state} in a pack"
            for metric, other in zip(report.metrics, packed.metrics, strict=True):
                same = metric == other or (metric.value != metric.value and other.value != other.value)
                assert same, (
                    f"{where}: {metric.name}/{metric.variant} is {metric.value!r} alone and {other.value!r} in a pack"
                )


def check_nothing_diverges(family: str, configuration: Configuration) -> None:
    """Assert that twelve steps at the usual learning rate make no NaN."""
    trial = trial_with(family, configuration, steps=12)
    pack = Pack(trial, width=2)
    pack.fill([trial])
    for report in _reports(pack, []).values():
        assert report.state != "diverged", f"the trial diverged at step {report.step}: {report.error}"


def time_beside(family: str, configuration: Configuration, width: int = 8) -> Speed:
    """Time a small trial with the plug-in, and one with a packaged one in its place, in turns.

    Raises DoesNotApply for families whose plug-ins are not in an optimizer step.
    """
    reference = _reference(family)
    prepare()  # as a worker does
    trials = [trial_with(family, config) for config in (configuration, reference)]
    rate, beside = rates_beside(trials, width, "cpu")
    return Speed(rate, str(reference["name"]), beside)


class PlainLoop:
    """A model trained without Graft: by its module, torch's gradients and torch.optim.AdamW."""

    def __init__(self, trial: Trial) -> None:
        recipe = Recipe.of(trial.config)
        if not isinstance(recipe.model, ModuleModel):
            raise DoesNotApply("the model is no torch.nn.Module")
        self._model, self._task, self._batch = recipe.model, recipe.task, recipe.training.batch
        # The module draws its parameters from torch's own stream.
        with torch.random.fork_rng(devices=[]):
            self._module = recipe.model.module(recipe.task)
        self._optimizer = torch.optim.AdamW(self._module.parameters(), lr=1e-3)
        self._seed, self._steps = torch.tensor([trial.seed]), 0

    def train(self, steps: int, /) -> None:
        """Make this many steps, each on a batch of its own."""
        for _ in range(steps):
            self._steps += 1
            streams = Streams.of(self._seed, Purpose.TRAINING_DATA, self._steps)
            drawn = self._task.training(streams, self._batch, torch.tensor([float(self._steps)]))
            batch = {name: tensor[0] for name, tensor in drawn.items()}
            self._optimizer.zero_grad()
            loss = self._task.loss(self._module(*self._model.arguments(batch)), batch)
            loss.backward()
            self._optimizer.step()


def time_beside_plain_loop(configuration: Configuration, width: int = 8) -> Speed:
    """Time a small pack with a module of one's own, and a plain loop over the module, in turns.

    Raises DoesNotApply for a model that is no torch.nn.Module.
    """
    trial = trial_with("model", configuration)
    plain = PlainLoop(trial)
    prepare()
    packed, alone = rates_in_turns([make_pack_of_copies(trial, width, "cpu"), plain], "cpu")
    return Speed(width * packed, "a plain loop with torch.optim.AdamW", alone)


def step_with(family: str, configuration: Configuration) -> str:
    """Return how a small trial with the plug-in trains on a CPU: `native`, or `traced` and why.

    Raises DoesNotApply for families whose plug-ins are not in an optimizer step.
    """
    _reference(family)
    return describe_step(trial_with(family, configuration).config, "cpu")


def _reference(family: str) -> Mapping[str, Any]:
    reference = REFERENCES.get(family)
    if reference is None or family not in FAMILIES:
        raise DoesNotApply(f"a {family} is in no optimizer step")
    return reference
