"""A study written into the database, and opened for running."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from graft.families import families, version
from graft.plugins.stored import plugins_of_study
from spaces.errors import StudyError
from spaces.plugins import active
from storage import NewStudy, open_reader, open_store
from workers.numerics.version import NUMERICS

if TYPE_CHECKING:
    from search.steering.controller import Controller
    from spaces.space import Space
    from workers.pool import Saving

_log = logging.getLogger("graft.launching")


def enrol(url: str, name: str, space: Space) -> bool:
    """Write the study into the database, with the plug-ins from outside that are in use; True if it is new.

    Raises StudyError if the name is taken by a study of another space, or a running controller holds the database.
    """
    with open_store(url) as store, open_reader(url) as reader:
        rows = {row["name"]: row for row in reader.studies().iter_rows(named=True)}
        if name not in rows:
            search = space.search
            store.create_study(
                NewStudy(
                    name,
                    space=space.text,
                    space_hash=space.hash,
                    objective=search.objective,
                    seed=search.seed,
                    trials=search.trials,
                    version=version(),
                    bundles=active.current().asked_for,
                    numerics=NUMERICS,
                )
            )
            return True
    if rows[name]["space_hash"] != space.hash:
        raise StudyError(
            f"study {name!r} exists with another space; give this one another name with --study, "
            f"or go on with the old one by `search resume {name}`"
        )
    return False


def find_study(url: str, name: str) -> Mapping[str, Any]:
    """The study's row in the database; StudyError with the choices if there is no such study."""
    with open_reader(url) as reader:
        return reader.study(name)


def open_controller(
    url: str,
    name: str,
    saving: Saving | None = None,
    checkpoint_url: str | None = None,
    crash: str | None = None,
) -> Controller:
    """Claim a study and give its controller, which this process must close.

    From then on this process looks names up among the study's plug-ins from outside. `saving`: where checkpoints go;
    `checkpoint_url`: what is noted of that for the next launch, None: as it was. `crash`: how the last launch crashed,
    as `CrashRecord.read` has it. Raises StudyError if there is no such study, or another process runs it.
    """
    from search.steering.controller import Controller
    from spaces import parse
    from workers.engine.checkpoints import Archive

    row = find_study(url, name)
    active.install(plugins_of_study(url, name))
    space = parse(row["space"], f"the space of study {name}", families())
    archive = Archive(saving.url, saving.study) if saving else None
    store = open_store(url)
    try:
        search = space.search
        study = store.claim(row["id"], policy=search.history, objective=search.objective, version=version())
        study.set_state("running")
        if checkpoint_url is not None:
            study.set_checkpoint_url(checkpoint_url)
        if row["state"] == "running":
            _log.warning(_describe_end(crash))
        return Controller.begin(
            space, study, remove_checkpoints=archive.tidy if archive else None, crashed=crash is not None
        )
    except BaseException:
        store.close()
        raise


def _describe_end(crash: str | None) -> str:
    if crash:
        return f"the last launch crashed ({crash}); if it does so again, --workers 1 --pack 1 finds the trial"
    return "the last launch was killed, or its machine went down, which counts against no trial"
