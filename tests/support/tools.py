"""A database for the tools of programs, and calls of these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.types import CallToolResult

from graft.web.callers import Caller
from graft.web.checking import Checker
from graft.web.security.access import LOCAL, Holder
from graft.web.settings import Settings
from graft.web.tools.server import make_server
from storage import open_store


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    url = f"sqlite:///{tmp_path}/graft.db"
    open_store(url).close()
    return url


def call(database: str, name: str, holder: Holder = LOCAL, /, **arguments: Any) -> CallToolResult:
    """Return a tool's answer, in this process."""
    settings = Settings(database=database, check_seconds=240)  # the machine may be busy
    caller = Caller(settings=settings, checker=Checker(settings.check_seconds), holder=holder, client="test")

    async def ask() -> CallToolResult:
        async with Client(make_server(lambda _: caller)) as client:
            return await client.call_tool(name, arguments)

    return anyio.run(ask)


def error_of(result: CallToolResult) -> str:
    """Return the one line of an error."""
    assert result.is_error
    [content] = result.content
    assert content.type == "text"
    assert "\n" not in content.text
    assert len(content.text) < 700
    return content.text
