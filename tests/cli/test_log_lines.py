"""`--log-format json`: all that a launch or a service says on stderr is one object a line."""

from __future__ import annotations

import io
import json
import signal
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cli.log_lines import JsonLines
from graft.launching.process.watcher import LOG_VARIABLE
from tests.support.launches import SPACE, running, search

JSON = ("--log-format", "json")


def parsed(lines: list[str]) -> list[dict[str, Any]]:
    entries = [json.loads(line) for line in lines]
    for entry in entries:
        assert datetime.fromisoformat(entry["time"]).tzinfo == UTC
    return entries


def written(*texts: str) -> list[str]:
    stream = io.StringIO()
    lines = JsonLines(stream)
    for text in texts:
        lines.write(text)
    return stream.getvalue().splitlines()


def test_lines_become_objects_with_their_level():
    entries = parsed(written("error: no π\n", "a line", " in parts\n\nwarning: hot\nnote: that\n", "unfinished"))
    assert [(entry["level"], entry["message"]) for entry in entries] == [
        ("error", "no π"),
        ("info", "a line in parts"),
        ("warning", "hot"),
        ("info", "that"),
    ]


@pytest.mark.parametrize("text", ['{"event": "refused", "status": 403}', "{}"])
def test_an_object_stays_as_it_is(text: str):
    assert written(f"{text}\n") == [text]


@pytest.mark.parametrize("text", ["{", "[1]", '{"a": 1} and more', "3"])
def test_what_is_no_object_is_a_message(text: str):
    assert parsed(written(f"{text}\n"))[0]["message"] == text


@pytest.mark.long
def test_an_error_is_one_object_and_a_wrong_format_one_line(tmp_path: Path):
    [entry] = parsed(search(tmp_path, "launch", "none.yaml", *JSON, status=2))
    assert (entry["level"], entry["message"][:9]) == ("error", "none.yaml")
    [line] = search(tmp_path, "serve", "--log-format", "xml", status=2)
    assert line == "error: --log-format: 'xml' must be one of text, json"


@pytest.mark.long
def test_what_a_launch_and_a_service_say_is_objects_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    sizes = ("--trials", "4", "--set", "search.group=4")
    launched = parsed(search(tmp_path, "launch", SPACE, *sizes, "--workers", "1", *JSON))
    assert launched[0]["message"].startswith("study tiny in ")
    search(tmp_path, "submit", SPACE, "--name", "a", *sizes)
    monkeypatch.setenv(LOG_VARIABLE, "json")
    with running(tmp_path, "serve", "--workers", "1") as process:
        messages = []
        for line in process.stderr:
            messages.append(json.loads(line)["message"])
            if messages[-1].startswith("a: 4 finished"):
                break
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(240)
    assert messages[0].startswith("serves ")
    assert parsed(rest.splitlines())[-1]["message"] == "stopped with everything kept; `search serve` goes on"


@pytest.mark.long
def test_the_line_of_a_launch_that_is_killed_is_an_object(tmp_path: Path):
    with running(tmp_path, "launch", SPACE, "--steps", "100000", "--workers", "1", *JSON) as process:
        first = json.loads(process.stderr.readline())
        assert first["message"].startswith("study tiny in ")
        process.kill()
        _, rest = process.communicate(240)
    last = parsed(rest.splitlines())[-1]
    assert (last["level"], last["message"][:15]) == ("error", "this launch was")
