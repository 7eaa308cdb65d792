"""A space that comes over HTTP, read in a process of its own (`checking`), which it may not leave.

On the machine itself a space may name files, data sets and code. Over HTTP it may name only those
that the owner of the server allows: plug-ins by entry, resources by field. It may ask for as much
as a person may have.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graft.launching.enrolling import new_study
from graft.launching.planning.claims import advise, plan_pilot
from graft.launching.planning.preview import summarise
from graft.launching.planning.reading import CHECKED_DRAWS
from graft.launching.planning.review import estimate_shortage, list_parts, review
from graft.plugins.collecting import plugins_of_text
from graft.plugins.families import describe_plugins, families, family_of
from graft.web.security.refusals import RefusalError
from graft.web.settings import QuotaError, Quotas
from spaces import parse
from spaces.errors import GraftError, SpaceError
from spaces.experiment import ExperimentSpace
from spaces.messages import shorten
from spaces.plugins import resources
from spaces.plugins.active import using
from spaces.reading.plugins_section import read_entries_of
from spaces.space import LAST, Space
from storage import NewStudy, StoreRequest, Terms, open_reader

_ORIGIN = "the space"
_HERE = "submit it on the server's machine, with `search submit`"
_KEPT = {"full": 1_000_000, "thin": 64, "last": 2}
"""Validations of a trial that are kept, at most."""
_METRIC_BYTES, _TRIAL_BYTES = 32 * 80, 8_000
"""Bytes in the database of a validation of about 32 numbers, and of a trial's own row."""


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """A space as it was sent, and what it may name and ask for."""

    text: str
    name: str | None
    """The study's name; the space's if None."""
    plugins: Collection[str] = ()
    """Entries that its section `plugins` may have."""
    resources: Collection[str] = ()
    """Paths of fields that may name a file, a data set or code."""
    quotas: Quotas | None = None
    """The most that it may ask for; anything if None."""


def read_submission(submitted: Submitted) -> NewStudy:
    """Return the study of a space's text, checked as before a launch; refused as `reading`."""
    with reading(submitted) as (space, _):
        return new_study(space.name if submitted.name is None else submitted.name, space)


def make_request(submitted: Submitted) -> dict[str, Any]:
    """Return the request that queues the study of a submission, without terms, as JSON values."""
    return _to_request(read_submission(submitted))


def describe_space(submitted: Submitted) -> dict[str, Any]:
    """Return what a checked space plans (docs/schemas/space-check.json), with claims in words."""
    with reading(submitted) as (space, notes):
        claims = space.claims if isinstance(space, ExperimentSpace) else ()
        return {
            "study": space.name,
            "trials": space.search.trials,
            "summary": summarise(space),
            "notes": notes,
            "claims": [f"{claim}, over {claim.seeds:,} seeds" for claim in claims],
        }


def advise_space(submitted: Submitted, database: str, pilot: int | None) -> dict[str, Any]:
    """Return what the seeds of claims can find, or the `request` for `pilot` other seeds."""
    with reading(submitted) as (space, _):
        if not isinstance(space, ExperimentSpace) or not space.claims:
            raise SpaceError(f"{_ORIGIN} has no claim; write `claim: {{arm: ARM, difference: NUMBER}}` into it")
        if pilot is not None:
            planned = plan_pilot(space, pilot)
            if submitted.quotas:
                _check_quotas(planned, submitted.quotas)
            request = _to_request(new_study(planned.name, planned))
            return {"rows": [], "lines": [], "request": request}
        with open_reader(database) as reader:
            advices = advise(reader, space, space.name if submitted.name is None else submitted.name)
    return {"rows": [advice.to_row() for advice in advices], "lines": [*map(str, advices)], "request": None}


def describe_family(family: str) -> list[dict[str, Any]]:
    """Return the fields of Graft's own plug-ins of a family, as `search list FAMILY` has them."""
    return [field._asdict() for field in describe_plugins(family_of(family))]


def _to_request(study: NewStudy) -> dict[str, Any]:
    return json.loads(StoreRequest.of_study(study, Terms()).to_json())


@contextmanager
def reading(submitted: Submitted) -> Generator[tuple[Space, list[str]]]:
    """Yield the space of a text, its draws checked, and lines on what may not have been meant.

    Its plug-ins are in use meanwhile. Refused with 403 for a plug-in or a resource that is not
    allowed, or beyond the quotas; raises SpaceError or PluginError for what is no space.
    """
    try:
        with resources.only(submitted.resources):
            for entry in read_entries_of(submitted.text, _ORIGIN):
                if entry.text not in submitted.plugins:
                    allowed = ", ".join(sorted(submitted.plugins)) or "none"
                    reason = f"{entry.location}: {shorten(entry.text)!r} is not allowed here ({allowed}); {_HERE}"
                    raise RefusalError(403, f"{reason}, or have the server started with --allow-plugins")
            with using(plugins_of_text(submitted.text, _ORIGIN)):
                space = parse(submitted.text, _ORIGIN, families())
                # Before anything is computed: a width of a billion would not fit.
                if submitted.quotas:
                    _check_quotas(space, submitted.quotas)
                space.check(CHECKED_DRAWS)
                yield space, review(space)
    except GraftError as error:
        if isinstance(error.__cause__, resources.ResourceError):
            raise RefusalError(403, f"{error}; {_HERE}, or have the server started with --allow-resource") from None
        raise


def _check_quotas(space: Space, quotas: Quotas) -> None:
    """Refuse with 403 a space that asks for more than a person may have, by its ends and draws."""
    from workers.engine.machine.memory import count_parameters

    quotas.check("trials", space.search.trials)
    validations, parameters, structures = 0, 0, set[object]()
    for part in list_parts(space):
        ends = (part.space.sample(0, lambda _: 0.0), part.space.sample(0, lambda _: LAST))
        for trial in (*ends, *part.trials):
            training = trial.config["training"]
            quotas.check("steps", training["steps"])
            validations = max(validations, -(-training["steps"] // training["validate_every"]))
            if trial.structure not in structures:  # which sets the parameters, but not the steps
                structures.add(trial.structure)
                parameters = max(parameters, count_parameters(trial.config))
                quotas.check("parameters", parameters)
    # A trial that does not fit would take the service with it, and the studies of all others.
    shortages = (note for part in list_parts(space) for note in estimate_shortage(part, None, 1))
    for shortage in shortages:
        raise QuotaError(f"memory: {shortage}")
    kept = min(validations, _KEPT[space.search.history])
    rows = space.search.trials * (_TRIAL_BYTES + kept * _METRIC_BYTES)
    # Two checkpoints of each lane: parameters, the optimizer's two numbers of each, an average.
    checkpoints = 2 * min(space.search.trials, quotas.lanes) * 4 * 4 * parameters
    quotas.check("disk", rows + checkpoints)


def describe(error: BaseException) -> tuple[int, str]:
    """Return the status and the line that a client is told of what went wrong with a submission."""
    from graft.launching.process.memory_limits import describe_shortage
    from spaces.plugins.importing import explain

    if isinstance(error, RefusalError):
        return error.status, error.reason
    if isinstance(error, GraftError):
        return 403 if isinstance(error, QuotaError) else 400, str(error)
    reason = describe_shortage(error) or explain(error)
    unread = SpaceError(f"{_ORIGIN} cannot be read: {type(error).__name__}: {error}")
    return 400, str(reason or unread)


def hide_folders(reason: str) -> str:
    """Return the line with paths relative to the working folder or the home, which it hides."""
    for folder, shown in ((Path.cwd(), "."), (Path("~").expanduser(), "~")):
        if len(folder.parts) > 1:  # not the root, with which all paths begin
            reason = reason.replace(str(folder), shown)
    return reason
