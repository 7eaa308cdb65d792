"""For writers of plug-ins: a file to begin with, and the contracts of the families as checks.

`search plugin check` runs them on files of yours, and Graft's own tests on what is packaged:

    from graft.testing import checks
    for check in checks("scorer"):
        check.run({"name": "mine", "temperature": 2.0})  # AssertionError, in words, if it is broken

A check of a family is a function `check_...(configuration)` of its module in `contracts`; the first
line of its docstring is the promise. It raises DoesNotApply for a configuration of no concern.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from graft.testing.common import Configuration, DoesNotApply
from spaces.plugins.importing import explain

__all__ = ["Check", "Configuration", "DoesNotApply", "Finding", "check", "checks"]

_WITH_A_PACK = (
    "task", "corpus", "tokenizer", "model", "scorer", "activation", "position", "diagnostic",
    "optimizer", "schedule", "averaging", "learning",
)  # fmt: skip
"""Families whose plug-ins train in the lanes of a pack."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One promise of a family."""

    name: str
    """`packed_is_alone`"""
    promise: str
    run: Callable[[Configuration], None]
    """Raises AssertionError if a configuration breaks it, DoesNotApply if it is of no concern."""
    trains: bool
    """True if it trains packs, which takes seconds."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The verdict of one check on one configuration."""

    check: Check
    verdict: str
    """`kept`, `broken`, or `none` if it does not apply."""
    reason: str
    """The reason in words; empty where the promise is kept."""


def checks(family: str) -> Sequence[Check]:
    """Return the checks of a family, `scorer`, the quick ones first."""
    modules = [] if family == "section" else ["common"]
    modules += [f"contracts.{family}"] + (["training"] if family in _WITH_A_PACK else [])
    suite: list[Check] = []
    for module in modules:
        members = vars(importlib.import_module(f"graft.testing.{module}"))
        for name, function in members.items():
            if not name.startswith("check_") or function.__module__ != f"graft.testing.{module}":
                continue
            promise = (function.__doc__ or "").partition("\n")[0]
            run = function if module.startswith("contracts.") else partial(function, family)
            suite.append(Check(name=name.removeprefix("check_"), promise=promise, run=run, trains=module == "training"))
    return suite


def check(family: str, configuration: Mapping[str, Any]) -> Iterator[Finding]:
    """Run the checks of a family, one after the other."""
    for case in checks(family):
        verdict, reason = "kept", ""
        try:
            case.run(configuration)
        except DoesNotApply as error:
            verdict, reason = "none", str(error)
        except AssertionError as error:
            verdict, reason = "broken", " ".join(str(error).split()) or "it does not"
        except Exception as error:
            verdict, reason = "broken", str(explain(error) or f"{type(error).__name__}: {error}")
        yield Finding(check=case, verdict=verdict, reason=reason)
