"""A client of the server, and the events that it hears."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any
from urllib.request import urlopen

import pytest
from fastapi.testclient import TestClient

from graft.web.app import create_app
from graft.web.settings import Settings
from tests.support.servers import serving
from tests.support.studies import running


def client_of(url: str, **settings: Any) -> TestClient:
    app = create_app(Settings(database=url, **{"check_seconds": 240, **settings}))  # the machine may be busy
    return TestClient(app, base_url="http://127.0.0.1:8765", raise_server_exceptions=False)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = f"sqlite:///{tmp_path_factory.mktemp('web')}/graft.db"
    with running(url):
        pass
    return url


@pytest.fixture(scope="module")
def address(database: str) -> Iterator[str]:
    with serving(Settings(database=database)) as url:
        yield url


def events(address: str, after: str | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the id and the data of one event after the other."""
    with urlopen(f"{address}/api/studies/demo/events" + (f"?after={after}" if after else ""), timeout=30) as stream:
        lines: dict[str, str] = {}
        for line in io.TextIOWrapper(stream, "utf-8"):
            if line.strip():
                name, _, value = line.strip().partition(": ")
                lines[name] = value
            elif lines.get("event") == "change":
                yield lines["id"], json.loads(lines["data"])
                lines = {}
