"""Packages that only some people need."""

from __future__ import annotations

from importlib.util import find_spec

from spaces.errors import StudyError


def require_extra(package: str, extra: str) -> None:
    """Raise StudyError, with pip's command, if the package of an extra is not installed."""
    if find_spec(package) is None:
        raise StudyError(f"{package} is not installed: pip install 'graft-search[{extra}]'")
