"""A space reviewed before training: errors of the first validation, and likely mistakes."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from graft.launching.planning.reading import draw_trials
from graft.launching.process.memory_limits import describe_shortage
from graft.plugins.families import family_of
from search.objectives import list_metrics, no_such_metric
from search.stopping import begin_policies
from spaces import plugins
from spaces.errors import GraftError, PluginError, SpaceError, StudyError
from spaces.experiment import ExperimentSpace
from spaces.messages import describe_bytes, no_such, shorten
from spaces.plugins.active import current, using
from spaces.plugins.importing import explain
from spaces.settings import MetricName, list_numbers, number_at
from spaces.transfer import TransferSpace

if TYPE_CHECKING:
    from spaces.records import Trial
    from spaces.space import Space

DRAWS = 64
"""Trials that are looked at in each part of a space."""
MOST_SEEN = 0.1
"""The largest share of a test set that may be in the validation set by chance."""
EVALUATED = 2
"""Structures of which a validation of two sequences is made."""
LARGEST_EVALUATED = 100_000_000
"""Bytes of the state of a trial whose activations are measured; larger ones take too long."""


class Part(NamedTuple):
    """A space of one task: the whole of one, an arm of an experiment, a task of a transfer."""

    label: str
    space: Space
    trials: Sequence[Trial]


def review(space: Space, device: str | None = None, lanes: int = 1) -> list[str]:
    """Return a line for each likely mistake in a space; `lanes` is a given width of packs.

    Raises SpaceError if no validation would report the objective, if stopping policies cannot work, or
    if a trial needs more memory than `device` has free. Without a device, such a trial is noted and not evaluated.
    """
    # What stands in for a task that reads a corpus is no data of the study.
    with using(replace(current(), data=dict(current().data))):
        notes: list[str] = []
        _check_policies(space)
        for part in list_parts(space):
            if shortage := _find_shortage(part, device):
                if device:
                    raise SpaceError(f"{part.space.name}: {part.label}{shortage}")
                notes.append(f"{part.label}{shortage}")
                continue
            _check_sampler(part)
            remarks: list[str] = []
            with _blaming_plug_ins(part):
                remarks += estimate_shortage(part, device, lanes)
            _check_variant(part)
            remarks += [*_check_paths(part), *_look_at_lengths(part)]
            with _blaming_plug_ins(part):
                remarks += [*_check_objective(part), *_look_at_steps(part, device)]
            notes += [f"{part.label}{note}" for note in remarks]
        _check_claims(space)
        return list(dict.fromkeys(notes))


def _check_policies(space: Space) -> None:
    """Raise SpaceError for stopping policies that cannot work together, or not in this space."""
    try:
        begin_policies(space)
    except StudyError as error:
        raise SpaceError(f"{space.name}: {error}") from error


def _check_sampler(part: Part) -> None:
    """Raise SpaceError if a sampler of another package is not there, or does not take its fields."""
    try:
        part.space.search.sampler.begin(part.space, [])
    except PluginError as error:
        raise SpaceError(f"{part.space.name}: {part.label}{error}") from error


@contextmanager
def _blaming_plug_ins(part: Part) -> Generator[None]:
    """Raise SpaceError for any error of a trial, and name the plug-ins from outside in use.

    A result of a wrong shape may be noticed only later, in Graft's own code.
    """
    try:
        yield
    except Exception as error:
        names = ", ".join(member.title for bundle in current().bundles for member in bundle.members)
        if isinstance(error, GraftError) or explain(error) or describe_shortage(error) or not names:
            raise
        message = shorten(str(error), 300).rstrip(".")
        raise SpaceError(
            f"{part.space.name}: {part.label}a trial cannot be computed with {names}: {message}; "
            "look at it with `search plugin check FILE`"
        ) from error


def list_parts(space: Space) -> Iterator[Part]:
    """Yield the parts of a space, each with draws that are always the same."""
    if isinstance(space, ExperimentSpace):
        members = [(f"arm {arm.name}: ", arm.space) for arm in space.arms]
    elif isinstance(space, TransferSpace):
        members = [(f"task {domain.name}: ", domain.baseline) for domain in space.domains]
    else:
        members = [("", space)]
    for label, member in members:
        yield Part(label, member, draw_trials(member, DRAWS))


def _look_at_lengths(part: Part) -> Iterator[str]:
    """Yield a note for a warm-up as long as training, and for training with a single validation."""
    training = [trial.config["training"] for trial in part.trials]
    warmups = [trial.config["optimizer"].get("schedule", {}).get("warmup", 0) for trial in part.trials]
    lasts = [warmup >= section["steps"] for warmup, section in zip(warmups, training, strict=True)]
    if share := _describe_share(lasts):
        yield (
            f"{share} a warm-up (optimizer.schedule.warmup) that lasts to the end of training or beyond, and never "
            "train at their learning rate"
        )

    once = [section["steps"] <= section["validate_every"] for section in training]
    if share := _describe_share(once):
        yield (
            f"{share} one validation, at the end: there is no learning curve, and nothing for a stopping policy; "
            "training.validate_every is for that"
        )


def _describe_share(flags: Sequence[bool]) -> str | None:
    """Return `all trials have` or `about 31 % of the trials have`; None if nothing was found."""
    if not any(flags):
        return None
    return "all trials have" if all(flags) else f"about {100 * sum(flags) / len(flags):.0f} % of the trials have"


def _look_at_steps(part: Part, device: str | None) -> Iterator[str]:
    """Yield a note for trials with outside plug-ins that train by no compiled step, and why."""
    if not current().bundles:
        return
    from workers.engine.step import describe_step

    steps = (describe_step(trial.config, device or "cpu") for trial in _structures(part))
    for step in dict.fromkeys(steps):
        method, _, reason = step.partition(": ")
        if method == "traced":
            yield f"trials train by recorded operations, several times slower than by a compiled step: {reason}"
        elif method == "generated":
            yield f"trials train by code generated from a recording, slower than by a step written by hand: {reason}"


def _structures(part: Part) -> list[Trial]:
    """Return a trial of each of a few structures."""
    return list({trial.structure: trial for trial in part.trials}.values())[:EVALUATED]


def _find_shortage(part: Part, device: str | None) -> str | None:
    """Return why a trial's state alone does not fit into a device's memory; None if it fits."""
    from workers.engine.machine.devices import default_device
    from workers.engine.machine.memory import free_bytes, least_bytes

    where = device or default_device()
    free = free_bytes(where)
    for trial in {trial.structure: trial for trial in part.trials}.values():
        needed = least_bytes(trial.config)
        if needed > free:
            return (
                f"one trial needs {describe_bytes(needed)} at the least, for its parameters and what is kept of each, "
                f"and {where} has {describe_bytes(free)} free{_describe_sizes(trial)}"
            )
    return None


def _describe_sizes(trial: Trial) -> str:
    sizes = ", ".join(f"{path} = {value}" for path, value in trial.params.items() if isinstance(value, int))
    return f" (where {sizes})" if sizes else ""


def estimate_shortage(part: Part, device: str | None, lanes: int) -> Iterator[str]:
    """Yield a note if a trial, or a pack of so many lanes, hardly fits with its activations."""
    from workers.engine.machine.devices import default_device
    from workers.engine.machine.memory import estimate_lane_bytes, free_bytes, least_bytes

    where = device or default_device()
    free = free_bytes(where)
    for trial in _structures(part):
        if least_bytes(trial.config) > LARGEST_EVALUATED:
            continue
        needed = lanes * estimate_lane_bytes(_sketch(trial.config))
        if needed > free:
            batch = trial.config["training"]["batch"]
            what = f"{lanes:,} lanes need" if lanes > 1 else "one trial needs"
            yield (
                f"{what} about {describe_bytes(needed)} to train with batches of {batch:,}, activations included, "
                f"and {where} has {describe_bytes(free)} free{_describe_sizes(trial)}"
            )
            return


def _sketch(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the configuration with a task of the same metrics that needs no corpus."""
    task: Any = plugins.build(family_of("task"), config["task"])
    return {**config, "task": plugins.config_of(task.sketch())}


def _reported(part: Part) -> list[list[tuple[str, str, str]]]:
    """Return the metrics that each of a few trials reports, a corpus replaced by a small one."""
    from workers.engine.reported_metrics import reported_metrics

    return [reported_metrics(replace(trial, config=_sketch(trial.config))) for trial in _structures(part)]


def _check_variant(part: Part) -> None:
    """Raise SpaceError if no trial keeps the average that the objective asks for."""
    from workers.engine.reported_metrics import variants_of

    wanted = part.space.search.objective.variant
    one_of_each = {trial.structure: trial for trial in part.trials}.values()
    known = dict.fromkeys(name for trial in one_of_each for name in variants_of(trial.config))
    if wanted not in known:
        reason = no_such("variant that trials of this averaging have", wanted, known)
        raise SpaceError(f"{part.space.name}: {part.label}search.objective: {reason}")


def _check_objective(part: Part) -> Iterator[str]:
    """Raise SpaceError if none of a few trials reports the objective; note if some do not."""
    reported = _reported(part)
    for path, wanted in list_metrics(part.space.search):
        lacking = sum(wanted not in metrics for metrics in reported)
        if lacking == len(reported):
            reason = no_such_metric(wanted, dict.fromkeys(metric for metrics in reported for metric in metrics))
            raise SpaceError(f"{part.space.name}: {part.label}{path}: {reason}")
        if lacking:
            what = "the objective" if path == "search.objective" else "what search.feasible asks for,"
            yield f"{lacking} of the {len(reported)} structures looked at will not report {what} {wanted}"


def _check_claims(space: Space) -> None:
    """Raise SpaceError if an arm lacks the metric of its claim, or validates on its test set.

    A little of a test set, up to MOST_SEEN, may be in the validation sets.
    """
    if not isinstance(space, ExperimentSpace):
        return
    if space.is_tested:
        from workers.engine.test_sets import share_seen

        trial = space.sample(0, lambda _: 0.5)
        name, seen = trial.config["task"]["name"], share_seen(trial)
        if seen is None:
            raise SpaceError(
                f"{space.name}: claim.on: test: the task {name} is evaluated on windows of one text, and those of a "
                "test set overlap with those of validation; leave `on` out"
            )
        if seen > MOST_SEEN:
            raise SpaceError(
                f"{space.name}: claim.on: test: {100 * seen:.0f} % of its test set are in the validation set, too (at "
                f"most {100 * MOST_SEEN:.0f} % may be): the task {name} has few sequences; leave `on` out, or make it "
                "larger"
            )
    parts = {arm.name: part for arm, part in zip(space.arms, list_parts(space), strict=True)}
    for claim in space.claims:
        if claim.metric == str(space.search.objective):
            continue
        wanted = MetricName.of(claim.metric)
        for arm in (claim.arm, claim.than):
            reported = dict.fromkeys(metric for metrics in _reported(parts[arm]) for metric in metrics)
            if wanted not in reported:
                reason = no_such_metric(wanted, reported)
                raise SpaceError(f"{space.name}: claim.metric: arm {arm}: {reason}")


def _check_paths(part: Part) -> Iterator[str]:
    """Raise SpaceError for a path, in an objective or constraint, where no trial has a number."""
    search = part.space.search
    quantities = [("search.feasible", constraint) for constraint in search.feasible]
    if search.second:
        quantities.append(("search.objective", search.second.quantity))
    for field, quantity in quantities:
        for path in quantity.paths.values():
            lacking = [number_at(trial, path) is None for trial in part.trials]
            if all(lacking):
                known = [name for trial in part.trials[:1] for name in list_numbers(trial)]
                reason = no_such("number of a trial", path, known)
                raise SpaceError(f"{part.space.name}: {part.label}{field}: {quantity.text}: {reason}")
            if share := _describe_share(lacking):
                yield f"{share} no {path}, so that {field} ({quantity.text}) says nothing of them"
