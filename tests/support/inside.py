"""The program run inside the test's own process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.main import main

Run = Callable[..., list[str]]


def called(
    monkeypatch: pytest.MonkeyPatch, captured: pytest.CaptureFixture[Any], *arguments: object
) -> tuple[int, Any, Any]:
    """`search` with these arguments: exit status, and what it wrote to stdout and stderr since the call."""
    monkeypatch.setattr(sys, "argv", ["search", *map(str, arguments)])
    captured.readouterr()
    status: Any = 0
    try:
        main()
    except SystemExit as leaving:
        status = leaving.code or 0
    out, error = captured.readouterr()
    return status, out, error


def printing(folder: Path, monkeypatch: pytest.MonkeyPatch, captured: pytest.CaptureFixture[Any]) -> Run:
    """Run the program in a folder; gives the lines that it prints."""
    monkeypatch.chdir(folder)

    def run(*arguments: str, status: int = 0) -> list[str]:
        code, out, error = called(monkeypatch, captured, *arguments)
        assert code == status, error
        return [*out.splitlines(), *error.splitlines()]

    return run


def reporting(
    kind: str, database: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, captured: pytest.CaptureFixture[Any]
) -> Callable[..., str]:
    """Run `search report KIND` on a database in an empty folder; gives what it writes to stderr, nothing to stdout."""
    monkeypatch.setenv("SEARCH_STORAGE", str(database))
    monkeypatch.chdir(folder)

    def run(*arguments: object, status: int = 0) -> str:
        code, out, error = called(monkeypatch, captured, "report", kind, *arguments)
        assert (code, out) == (status, ""), error
        return error

    return run
