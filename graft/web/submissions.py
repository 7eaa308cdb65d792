"""A space that comes over HTTP, read in a process of its own (`checking`), which it may not leave.

On the machine itself a space may name files, data sets and code. Over HTTP it may name those alone that the owner of
the server allows: plug-ins entry by entry, resources field by field. It may ask for as much as a person may have.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from graft.launching.claiming import new_study
from graft.launching.planning.reading import CHECKED_DRAWS
from graft.launching.planning.review import estimate_shortage, list_parts, review
from graft.plugins.collecting import plugins_of_text
from graft.plugins.families import families
from graft.web.security.refusals import RefusalError
from graft.web.settings import QuotaError, Quotas
from spaces import parse
from spaces.errors import GraftError, SpaceError
from spaces.messages import shorten
from spaces.plugins import resources
from spaces.plugins.active import using
from spaces.reading.plugins_section import read_entries_of
from spaces.records import Trial
from spaces.space import LAST, Space
from storage import NewStudy

_ORIGIN = "the space"
_HERE = "submit it on the server's machine, with `search submit`"
_KEPT = {"full": 1_000_000, "thin": 64, "last": 2}
"""Validations of a trial that are kept, at most."""
_METRIC_BYTES, _TRIAL_BYTES = 32 * 80, 8_000
"""Of a validation of about 32 numbers in the database, and of a trial's own row."""


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """A space as it was sent, and what it may name and ask for."""

    text: str
    name: str | None
    """Of the study; None: the space's."""
    plugins: Collection[str] = ()
    """Entries that its section `plugins` may have."""
    resources: Collection[str] = ()
    """Paths of fields that may name a file, a data set or code."""
    quotas: Quotas | None = None
    """What it may ask for; None: all."""


def read_submission(submitted: Submitted) -> NewStudy:
    """Return the study of a space's text, its draws checked and looked at as before a launch.

    Refused with 403 for a plug-in or a resource that is not allowed, or for more than the quotas; raises SpaceError or
    PluginError for what is no space.
    """
    try:
        with resources.only(submitted.resources):
            return _read(submitted)
    except GraftError as error:
        if isinstance(error.__cause__, resources.ResourceError):
            raise RefusalError(403, f"{error}; {_HERE}, or have the server started with --allow-resource") from None
        raise


def _read(submitted: Submitted) -> NewStudy:
    for entry in read_entries_of(submitted.text, _ORIGIN):
        if entry.text not in submitted.plugins:
            allowed = ", ".join(sorted(submitted.plugins)) or "none"
            reason = f"{entry.location}: {shorten(entry.text)!r} is not allowed here ({allowed}); {_HERE}"
            raise RefusalError(403, f"{reason}, or have the server started with --allow-plugins")
    with using(plugins_of_text(submitted.text, _ORIGIN)):
        space = parse(submitted.text, _ORIGIN, families())
        if submitted.quotas:  # before anything is computed: a width of a billion would not fit
            _check_quotas(space, submitted.quotas)
        space.check(CHECKED_DRAWS)
        review(space)
        return new_study(space.name if submitted.name is None else submitted.name, space)


def _check_quotas(space: Space, quotas: Quotas) -> None:
    """Refuse with 403 a space that asks for more than a person may have, by some of its draws."""
    from workers.engine.machine.memory import count_parameters

    quotas.check("trials", space.search.trials)
    validations, parameters, structures = 0, 0, set[object]()
    for trial in _draw_trials(space):
        training = trial.config["training"]
        quotas.check("steps", training["steps"])
        validations = max(validations, -(-training["steps"] // training["validate_every"]))
        if trial.structure not in structures:  # which sets the parameters, but not the steps
            structures.add(trial.structure)
            parameters = max(parameters, count_parameters(trial.config))
            quotas.check("parameters", parameters)
    # A trial that does not fit would take the service with it, and the studies of all others.
    for shortage in (note for part in list_parts(space) for note in estimate_shortage(part, None, 1)):
        raise QuotaError(f"memory: {shortage}")
    kept = min(validations, _KEPT[space.search.history])
    rows = space.search.trials * (_TRIAL_BYTES + kept * _METRIC_BYTES)
    # The two newest checkpoints of each lane: parameters, the optimizer's two numbers of each and an average.
    checkpoints = 2 * min(space.search.trials, quotas.lanes) * 4 * 4 * parameters
    quotas.check("disk", rows + checkpoints)


def _draw_trials(space: Space) -> Iterator[Trial]:
    """Yield the trials of the lowest and the highest draws of each part of a space, and some in between."""
    for part in list_parts(space):
        yield part.space.sample(0, lambda _: 0.0)
        yield part.space.sample(0, lambda _: LAST)
        yield from part.trials


def describe(error: BaseException) -> tuple[int, str]:
    """Return the status and the line that a client is told of what went wrong with a submission."""
    from graft.launching.process.memory_limits import describe_shortage
    from spaces.plugins.importing import explain

    if isinstance(error, RefusalError):
        return error.status, error.reason
    if isinstance(error, GraftError):
        return 403 if isinstance(error, QuotaError) else 400, str(error)
    told = describe_shortage(error) or explain(error)
    return 400, str(told or SpaceError(f"{_ORIGIN} cannot be read: {type(error).__name__}: {error}"))


def hide_folders(reason: str) -> str:
    """Return the line with paths relative to the working folder or the home: a client is not told where these are."""
    for folder, shown in ((Path.cwd(), "."), (Path("~").expanduser(), "~")):
        if len(folder.parts) > 1:  # not the root, with which all paths begin
            reason = reason.replace(str(folder), shown)
    return reason
