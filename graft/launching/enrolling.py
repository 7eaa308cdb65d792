"""Writing a study into the database, changing its space, and taking control of it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from graft.launching.editing.administration import remove_checkpoints
from graft.launching.editing.space_changes import plan_change
from graft.plugins.families import families, version
from graft.plugins.stored import plugins_of_study
from graft.stored.differences import Difference, compare_spaces, describe_differences
from search.stopping import begin_policies
from spaces import parse_stored
from spaces.errors import GraftError, StudyError
from spaces.plugins import active
from spaces.plugins.active import using
from spaces.records import State
from storage import ControlledStudy, NewStudy, Store, open_reader, open_store
from workers.numerics.version import NUMERICS

if TYPE_CHECKING:
    from search.steering.controller import Controller
    from spaces.space import Space
    from workers.pool import Saving

_WITH_RESULT: tuple[State, ...] = ("finished", "pruned", "diverged")
_log = logging.getLogger("graft.launching")


@dataclass(frozen=True, kw_only=True)
class Enrolment:
    """The outcome of `enrol` for a study: new, unchanged, with a changed space, or replaced."""

    kind: Literal["new", "unchanged", "changed", "replaced"]
    differences: Sequence[Difference] = ()
    """Differences between the study's earlier space and its present one."""

    def __str__(self) -> str:
        """Return a line such as `resumed with another space (search.trials: 64 -> 128)`."""
        words = {"new": "new", "unchanged": "resumed", "changed": "resumed", "replaced": "replaced by a new one"}
        change = f" with another space ({describe_differences(self.differences)})" if self.differences else ""
        return words[self.kind] + change


def enrol(url: str, name: str, space: Space, *, replace: bool = False) -> Enrolment:
    """Write a study into the database, with the plug-ins from outside that are in use.

    An existing study gets the space if its trials stay the same (`editing.space_changes`). With
    `replace`, a new study takes its place if it has no result yet. Raises StudyError, one line, if
    neither is allowed, if the space's stopping policies cannot work, or if a running controller
    holds the study.
    """
    begin_policies(space)  # which is refused before anything is written
    new = new_study(name, space)
    with open_store(url) as store, open_reader(url) as reader:
        rows = {row["name"]: row for row in reader.studies().iter_rows(named=True)}
        row = rows.get(name)
        if row is None:
            store.create_study(new)
            return Enrolment(kind="new")
        # An older Graft did not record the data (None), which `settle_changes` reports on resuming.
        if reader.study(name).data() is not None:
            store.add_data(row["id"], active.current().data)
        if not replace and row["space_hash"] == space.hash:
            return Enrolment(kind="unchanged")
        counts = reader.study(name).counts()
        results = sum(counts.get(state, 0) for state in _WITH_RESULT)
        if replace and results:
            raise StudyError(
                f"--replace: study {name!r} has {results:,} trials with a result, which would be lost; delete it by "
                f"`search delete {name}`, or give this one another name with --study"
            )
        if replace:
            store.replace_study(row["id"], new)
            remove_checkpoints(url, row)
            return Enrolment(kind="replaced", differences=compare_spaces(row["space"], space.text))
        try:
            change = plan_change(reader, row, space)
        except StudyError as error:
            change = describe_differences(compare_spaces(row["space"], space.text))
            recorded = "; the attempt is recorded" if store.record_refusal(row["id"], change, version()) else ""
            hint = "" if results else "; it has no result yet: --replace begins it again"
            raise StudyError(
                f"{error}{recorded}; give this one another name with --study, or resume the old one with "
                f"`search resume {name}`{hint}"
            ) from None
        store.edit(row["id"]).change_space(change)
        return Enrolment(kind="changed", differences=[Difference(*values) for values in change.differences])


def new_study(name: str, space: Space) -> NewStudy:
    """Return a new study of a space, with the plug-ins from outside that are in use."""
    return NewStudy(
        name,
        space=space.text,
        space_hash=space.hash,
        objective=space.search.objective,
        second=space.search.second,
        seed=space.search.seed,
        trials=space.search.trials,
        version=version(),
        bundles=active.current().asked_for,
        data=active.current().data,
        numerics=NUMERICS,
    )


def set_planned_trials(url: str, name: str, trials: int) -> Enrolment:
    """Plan this many trials of a stored study in all; raises StudyError as `enrol` does.

    In an experiment they are those of all arms and seeds, and must divide among them.
    """
    row = find_study(url, name)
    with using(plugins_of_study(url, name)):
        setting = parse_stored(row, families()).trials_setting(trials)
        space = parse_stored(row, families(), {"search.trials": str(setting)})
        return enrol(url, name, space)


def find_study(url: str, name: str) -> Mapping[str, Any]:
    """Return the study's row in the database; raises StudyError with the choices if it has none."""
    with open_reader(url) as reader:
        return reader.study(name).row


def open_controller(
    url: str, name: str, saving: Saving | None = None, checkpoint_url: str | None = None, crash: str | None = None
) -> Controller:
    """Take control of a study and return its controller, which the caller must close.

    The study's plug-ins from outside must be in use (`spaces.plugins.active`). `checkpoint_url` is
    recorded for the next launch (None keeps the recorded one), and `crash` is the last launch's
    (`CrashRecord.read`). Raises StudyError if there is no such study, or another process runs it.
    """
    row = find_study(url, name)
    store = open_store(url)
    try:
        return begin_controller(store, row, saving, checkpoint_url, crash)
    except BaseException:
        store.close()
        raise


def begin_controller(
    store: Store,
    row: Mapping[str, Any],
    saving: Saving | None,
    checkpoint_url: str | None,
    crash: str | None,
    *,
    keep_open: bool = False,
) -> Controller:
    """Take control of a study, given its row, as `open_controller` does.

    With `keep_open`, closing the controller leaves the store open, for other studies. Raises
    ChangedError if another process has changed the space since the row was read.
    """
    from search.steering.controller import Controller
    from workers.engine.checkpoints import Archive

    check_seconds()
    space = parse_stored(row, families())
    archive = Archive(saving.url, saving.study) if saving else None
    study = _take_control(store, row, space, keep_open=keep_open)
    try:
        study.set_state("running")
        if checkpoint_url is not None:
            study.set_checkpoint_url(checkpoint_url)
        if row["state"] == "running":
            _log.warning(_describe_ending(crash))
        return Controller.begin(
            space, study, keep_checkpoints=archive.tidy if archive else None, crashed=crash is not None
        )
    except BaseException:
        with suppress(GraftError):  # the database may be away
            study.set_state(row["state"])
        study.close()
        raise


def _take_control(store: Store, row: Mapping[str, Any], space: Space, *, keep_open: bool) -> ControlledStudy:
    """Take control of a study with the space that was read; raises ChangedError if it has another now."""
    search = space.search
    study = store.take_control(
        row["id"], policy=search.history, objective=search.objective, version=version(), keep_open=keep_open
    )
    try:
        study.check_space(row["space_hash"])
    except BaseException:
        study.close()
        raise
    return study


def _describe_ending(crash: str | None) -> str:
    """Describe how the last launch ended; `crash` is None for one that did not crash by itself."""
    if crash:
        return f"the last launch crashed ({crash}); if it does so again, --workers 1 --pack 1 finds the trial"
    return "the last launch was killed, or its machine went down, which counts against no trial"


def check_seconds() -> None:
    """Check that a worker can renew its lease three times, and stops before it expires."""
    from search.steering import leases
    from workers.pool import heartbeat

    assert 3 * heartbeat.BEAT_SECONDS <= heartbeat.SELF_STOP_SECONDS
    assert heartbeat.SELF_STOP_SECONDS + heartbeat.BEAT_SECONDS <= leases.LEASE_SECONDS
    assert 3 * leases.SWEEP_SECONDS <= leases.LEASE_SECONDS
