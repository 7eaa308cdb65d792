"""A space looked at before anything trains: what would fail at the first validation, and what is likely not meant."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from spaces.errors import SpaceError
from spaces.experiment import ExperimentSpace
from spaces.messages import no_such
from spaces.transfer import TransferSpace

if TYPE_CHECKING:
    from spaces.records import Trial
    from spaces.space import Space

DRAWS = 64
"""Trials that are looked at in each part of a space."""
EVALUATED = 2
"""Structures of which a validation of two sequences is made."""
LARGEST_EVALUATED = 20_000_000
"""Bytes of parameters and gradient of a trial that is evaluated; larger ones take too long for a look."""


class Part(NamedTuple):
    """A space of one task: the whole of one, an arm of an experiment, a task of a transfer."""

    label: str
    space: Space
    trials: Sequence[Trial]


def review(space: Space, device: str | None = None) -> list[str]:
    """What a person may not have meant, a line each.

    Raises SpaceError, one line, where no validation would report the objective, and where a single trial needs more
    memory than `device` has free. None: where it will run is not known, so that a trial too large for this machine is
    worth a line, and is not evaluated.
    """
    notes: list[str] = []
    for part in _parts(space):
        if shortage := _find_shortage(part, device):
            if device:
                raise SpaceError(f"{part.space.name}: {part.label}{shortage}")
            notes.append(f"{part.label}{shortage}")
            continue
        _check_variant(part)
        notes += [f"{part.label}{note}" for note in (*_look_at_warmups(part), *_look_at_validations(part))]
        notes += [f"{part.label}{note}" for note in _check_objective(part)]
    return list(dict.fromkeys(notes))


def _parts(space: Space) -> Iterator[Part]:
    """The parts of a space, each with draws that are always the same."""
    if isinstance(space, ExperimentSpace):
        members = [(f"arm {arm.name}: ", arm.space) for arm in space.arms]
    elif isinstance(space, TransferSpace):
        members = [(f"task {domain.name}: ", domain.baseline) for domain in space.domains]
    else:
        members = [("", space)]
    for label, member in members:
        uniform = Random(0).random
        yield Part(label, member, [member.sample(number, lambda _: uniform()) for number in range(DRAWS)])  # noqa: B023


def _look_at_warmups(part: Part) -> Iterator[str]:
    def lasts(trial: Trial) -> bool:
        return trial.config["optimizer"].get("schedule", {}).get("warmup", 0) >= trial.config["training"]["steps"]

    if share := _describe_share(part, [lasts(trial) for trial in part.trials]):
        yield (
            f"{share} a warm-up (optimizer.schedule.warmup) that lasts to the end of training or beyond, and never "
            "train at their learning rate"
        )


def _look_at_validations(part: Part) -> Iterator[str]:
    training = [trial.config["training"] for trial in part.trials]
    once = [one["steps"] <= one["validate_every"] for one in training]
    if share := _describe_share(part, once):
        yield (
            f"{share} one validation, at the end: there is no learning curve, and nothing for a stopping policy; "
            "training.validate_every is for that"
        )


def _describe_share(part: Part, found: Sequence[bool]) -> str | None:
    """`all trials have`, `about 31 % of the trials have`; None for none."""
    if not any(found):
        return None
    return "all trials have" if all(found) else f"about {100 * sum(found) / len(found):.0f} % of the trials have"


def _structures(part: Part) -> list[Trial]:
    """A trial of each of a few structures."""
    return list({trial.structure: trial for trial in part.trials}.values())[:EVALUATED]


def _find_shortage(part: Part, device: str | None) -> str | None:
    """Why a trial does not fit into the memory of a device; None if each does, as far as its parameters tell."""
    from workers.engine.devices import default_device
    from workers.engine.memory import free_bytes, least_bytes

    where = device or default_device()
    free = free_bytes(where)
    for trial in {trial.structure: trial for trial in part.trials}.values():
        needed = least_bytes(trial.config)
        if needed > free:
            sizes = ", ".join(f"{path} = {value}" for path, value in trial.params.items() if isinstance(value, int))
            told = f"one trial needs {_size(needed)} for its parameters alone, and {where} has {_size(free)} free"
            return told + (f" (where {sizes})" if sizes else "")
    return None


def _check_variant(part: Part) -> None:
    """Raise SpaceError if no trial keeps the average that the objective asks for."""
    from workers.engine.timing import variants_of

    wanted = part.space.search.objective.variant
    known = dict.fromkeys(name for trial in part.trials for name in variants_of(trial.config))
    if wanted not in known:
        reason = no_such("variant that trials of this averaging have", wanted, known)
        raise SpaceError(f"{part.space.name}: {part.label}search.objective: {reason}")


def _check_objective(part: Part) -> Iterator[str]:
    """Raise SpaceError if none of a few trials reports the objective; a note if some do not.

    Tasks of a corpus are left out, since it may have to be fetched, and so are large models.
    """
    from workers.engine.memory import least_bytes
    from workers.engine.timing import reported_metrics

    first = part.trials[0].config
    if "corpus" in first["task"] or least_bytes(first) > LARGEST_EVALUATED:
        return
    objective = part.space.search.objective
    wanted = (objective.metric, objective.variant, objective.condition)
    lacking, known = 0, list[tuple[str, str, str]]()
    trials = _structures(part)
    for trial in trials:
        found = reported_metrics(trial)
        lacking += wanted not in found
        known += found
    if lacking == len(trials):
        names = ["/".join(filter(None, one)) for one in dict.fromkeys(known)]
        reason = no_such("metric that a validation reports", str(objective), names)
        raise SpaceError(f"{part.space.name}: {part.label}search.objective: {reason}")
    if lacking:
        yield f"{lacking} of the {len(trials)} structures looked at will not report the objective {objective}"


def _size(count: float) -> str:
    power = min(4, int(math.log(max(count, 1), 1000)))
    return f"{count / 1000**power:.3g} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"
