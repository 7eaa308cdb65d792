"""Graft as a library, for notebooks and scripts.

    import graft
    study = graft.launch("quick/set_complement", trials=20)    a space's name, file or dictionary
    study = graft.open("graft.db")["quick-set-complement"]     a stored study
    study = graft.connect("http://127.0.0.1:8765")["tiny"]     a study of a server
    study.trials(); study.best; study.model(3)                 frames, a trial, its trained model

The names below are loaded when they are first used, torch when a study trains or a space is read.

    api          the names for a notebook or a script
    launching    reading and checking a space, estimating and running a launch
    stored       studies, their status, their trials, as frames
    retraining   replays of stored trials, their weights
    web          studies over HTTP, for `search dashboard`
    report       the pages and figures of studies

Importing it raises ImportError if another module is found in place of one of Graft's packages.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from graft.shadowing import check_packages, check_system

if TYPE_CHECKING:
    from graft.api.database import Database
    from graft.api.database import open_database as open  # noqa: A004 - of this module alone
    from graft.api.launching import launch
    from graft.api.plugins import Plugin
    from graft.api.remote import RemoteDatabase, RemoteStudy, connect
    from graft.api.running import Run
    from graft.api.space import Space
    from graft.api.study import Study
    from graft.api.trials import TrialRecord
    from graft.report.compatibility.reading import MatrixRequest
    from spaces.errors import GraftError

__all__ = [
    "Database",
    "GraftError",
    "MatrixRequest",
    "Plugin",
    "RemoteDatabase",
    "RemoteStudy",
    "Run",
    "Space",
    "Study",
    "TrialRecord",
    "connect",
    "launch",
    "open",
]

_HOME = {
    "Database": ("graft.api.database", "Database"),
    "GraftError": ("spaces.errors", "GraftError"),
    "MatrixRequest": ("graft.report.compatibility.reading", "MatrixRequest"),
    "Plugin": ("graft.api.plugins", "Plugin"),
    "RemoteDatabase": ("graft.api.remote", "RemoteDatabase"),
    "RemoteStudy": ("graft.api.remote", "RemoteStudy"),
    "Run": ("graft.api.running", "Run"),
    "Space": ("graft.api.space", "Space"),
    "Study": ("graft.api.study", "Study"),
    "TrialRecord": ("graft.api.trials", "TrialRecord"),
    "connect": ("graft.api.remote", "connect"),
    "launch": ("graft.api.launching", "launch"),
    "open": ("graft.api.database", "open_database"),
}

check_system()
check_packages()


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'graft' has no attribute {name!r}")
    module, attribute = _HOME[name]
    return getattr(importlib.import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_HOME))
