"""The tools of programs: a question gets its verdict in few words; hostile input gets one line, and writes nothing."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import httpx2
import polars as pl
import pytest
import yaml
from jsonschema import Draft202012Validator
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult

from graft.launching.enrolling import enrol
from graft.web.callers import Caller
from graft.web.checking import Checker
from graft.web.models import Submission
from graft.web.security.access import LOCAL, Holder, make_token
from graft.web.settings import QuotaError, Quotas, Settings
from graft.web.submissions import Submitted, advise_space, make_request
from graft.web.tools.answers import LARGEST, cut_file, digest, list_rows, write
from graft.web.tools.offered import TOOLS
from graft.web.tools.server import make_server
from storage.frames import open_reader
from tests.support.answers import EXPERIMENT
from tests.support.claim_of_study import CLAIMED, space_of
from tests.support.databases import controlled, make_trial, raw
from tests.support.inside import called
from tests.support.launches import running
from tests.support.servers import serving
from tests.support.tools import call, database, error_of
from tests.support.web import client_of
from workers.data.tokenizers.gpt2 import Gpt2

__all__ = ["database"]


ROOT = Path(__file__).parents[3]
MOST_TOKENS = 2_000
HUGE = "x" * 150_000
"""Characters that a program might send in place of a name."""


@pytest.fixture(scope="module")
def count_tokens() -> Callable[[str], int]:
    """Count tokens by GPT-2's own tokenizer, of the package that the extra `corpora` brings."""
    encoder = Gpt2().encoder(Gpt2().learn([]))
    return lambda text: len(encoder.encode(text))


@pytest.fixture
def ended(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> str:
    """Return a database with a study of two arms whose claim is decided."""
    (tmp_path / "claim.yaml").write_text(CLAIMED)
    assert called(monkeypatch, capfd, "launch", "claim.yaml", "--device", "cpu", "--workers", "1")[0] == 0
    return database


def rows(database: str) -> dict[str, list[Any]]:
    """Every row of every table, but the times at which they were read."""
    tables = [name for (name,) in raw(database, "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
    return {table: list(raw(database, f"SELECT * FROM {table}")) for table in tables}


# ------------------------------------------------------------------------------------------------------ from end to end


async def ask_whether_ssa_is_better(client: Client, count: Callable[[str], int]) -> dict[str, Any]:
    """Do what a program does that has read AGENTS.md and the tools; returns its verdict, calls and tokens."""
    read = (ROOT / "AGENTS.md").read_text()
    tools = (await client.list_tools()).tools
    read += json.dumps([tool.model_dump(by_alias=True, exclude_none=True) for tool in tools])
    spent, calls, largest = count(read), 0, 0

    async def use(name: str, /, **arguments: Any) -> dict[str, Any]:
        nonlocal spent, calls, largest
        result = await client.call_tool(name, arguments)
        assert not result.is_error, result.content
        [content] = result.content
        assert content.type == "text"
        tokens = count(content.text)
        calls, spent, largest = calls + 1, spent + tokens + count(json.dumps(arguments)), max(largest, tokens)
        assert json.loads(content.text) == result.structured_content
        return dict(result.structured_content or {})

    async def wait(study: str) -> None:
        while (await use("watch", study=study, seconds=50))["outcome"] == "timeout":
            assert calls < 15

    await use("list", what="spaces")
    space = yaml.safe_load((await use("describe", name="space/quick/every"))["text"])
    await use("describe", name="scorer/ssa")
    space["study"], space["seeds"], space["claim"] = "asked", 5, {"arm": "ssa", "difference": 0.1}
    space["task"].update(points=8, curriculum_start=8, test_length=8, test_length_step=8)
    space["model"].update(width=8, depth=1)
    space["training"].update(steps=4, batch=4, validate_every=2, validation_batch=8)
    space["search"]["objective"] = {"maximize": "balanced_accuracy/raw", "at": "last"}
    text = yaml.safe_dump(space, sort_keys=False)
    assert (await use("check", space=text))["claims"][0].startswith("ssa has a higher balanced_accuracy/raw")
    await wait((await use("advise", space=text, pilot=4))["study"])
    [advice] = (await use("advise", space=text))["rows"]
    assert advice["seeds_needed"] >= 3
    assert (await use("submit", space=text))["study"] == "asked"
    await wait("asked")
    [decided] = (await use("claim", study="asked"))["rows"]
    return {"verdict": decided["verdict"], "calls": calls, "tokens": spent, "largest": largest}


@pytest.mark.long
def test_a_program_gets_from_a_question_to_a_verdict(database: str, count_tokens: Callable[[str], int]) -> None:
    folder = Path(database.removeprefix("sqlite:///")).parent

    async def ask() -> dict[str, Any]:
        with_token = {"SEARCH_TOKEN": make_token(database, "ada", "submit"), "PYTHONPATH": str(ROOT)}
        parameters = StdioServerParameters(
            command=sys.executable, args=["-m", "graft", "mcp"], cwd=folder, env=with_token
        )
        async with Client(parameters) as client:
            return await ask_whether_ssa_is_better(client, count_tokens)

    with running(folder, "serve", "--device", "cpu", "--workers", "1"):
        outcome = anyio.run(ask)
    assert outcome["verdict"] in ("confirmed", "refuted", "undecided")
    assert outcome["calls"] <= 15
    assert outcome["tokens"] <= 20_000
    assert outcome["largest"] <= MOST_TOKENS
    assert raw(database, "SELECT DISTINCT owner FROM submissions") == [("ada",)]
    assert raw(database, "SELECT event FROM claim_events") == [("locked",)]


PAGES = ("AGENTS.md", "llms.txt", "skills/graft/SKILL.md")


@pytest.mark.parametrize("page", PAGES)
def test_pages_for_programs_are_short_and_lead_to_files(page: str) -> None:
    text = (ROOT / page).read_text()
    assert len(text.splitlines()) <= 60
    for target in re.findall(r"\]\(([^)#]+)", text):
        assert (ROOT / page).parent.joinpath(target).is_file(), target


def test_the_space_of_the_skill_is_one_and_its_tools_exist() -> None:
    text = (ROOT / "skills/graft/SKILL.md").read_text()
    [claim] = space_of(re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)[0]).claims
    assert (claim.arm, claim.seeds) == ("ssa", 8)
    called_tools = set(re.findall(r"`([a-z]+) \{", (ROOT / "AGENTS.md").read_text()))
    assert {"list", "check", "submit", "claim"} <= called_tools <= set(TOOLS)


# ---------------------------------------------------------------------------------------------------------- the answers


def test_there_are_at_most_twelve_tools_and_their_schemas_are_schemas(database: str) -> None:
    caller = Caller(settings=Settings(database=database), checker=Checker(1), holder=LOCAL, client="test")

    async def list_tools() -> list[Any]:
        async with Client(make_server(lambda _: caller)) as client:
            return (await client.list_tools()).tools

    listed = anyio.run(list_tools)
    assert [tool.name for tool in listed] == [*TOOLS]
    assert len(listed) <= 12
    for tool in listed:
        Draft202012Validator.check_schema(tool.input_schema)
        Draft202012Validator.check_schema(tool.output_schema)
        assert tool.input_schema["additionalProperties"] is False


@pytest.mark.parametrize(
    ("command", "tool", "arguments"),
    [
        (["compare", "tiny-arms:average", "tiny-arms:softmax"], "compare", {}),
        (["trials", "tiny-arms"], "query", {"study": "tiny-arms"}),
        (["wait", "tiny-arms"], "watch", {"study": "tiny-arms", "seconds": 0}),
        (["report", "claim", "tiny-arms"], "claim", {"study": "tiny-arms"}),
        (["show", "tiny-arms", "1"], "show", {"study": "tiny-arms", "number": 1}),
    ],
)
@pytest.mark.long
def test_a_tool_answers_in_the_shape_of_its_command(
    command: list[str],
    tool: str,
    arguments: dict[str, Any],
    ended: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    status, out, error = called(monkeypatch, capfd, *command, "--format", "json")
    assert status == 0, error
    whole = json.loads(out)
    if tool == "compare":
        arguments = {"one": command[1], "other": command[2]}
    content = call(ended, tool, **arguments).structured_content
    assert content is not None
    if tool == "query":
        pairs = list(zip(content["rows"], whole, strict=True))
    elif tool == "claim":
        pairs = list(zip(content["rows"], whole["claims"], strict=True))
    else:
        pairs = [(content, whole[0] if isinstance(whole, list) else whole)]
    for shown, stored in pairs:
        shared = {name: value for name, value in digest(stored).items() if name in shown}
        assert len(shared) >= 2
        assert {name: shown[name] for name in shared} == shared


@pytest.mark.long
def test_a_program_asks_what_trials_know_of_a_task(
    ended: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    task = yaml.safe_load(EXPERIMENT)["task"]["name"]
    content = call(ended, "advise", task=task).structured_content
    status, out, _ = called(monkeypatch, capfd, "advise", task)
    assert content is not None
    assert status == 0
    assert [*map(str.split, content["lines"])] == [*map(str.split, out.splitlines())]
    assert content["rows"][0]["trials"] > 0


@pytest.mark.long
def test_answers_are_short_and_a_cursor_gives_the_rest(count_tokens: Callable[[str], int]) -> None:
    many = [{"number": index, "value": index / 7, "none": None, "text": "x é " * 75} for index in range(30)]
    shown, start = [], 0
    while start is not None:
        answer = list_rows(many[start:], start, {"about": "x" * 1_000})
        assert len(write(answer)) <= LARGEST
        assert count_tokens(write(answer)) <= MOST_TOKENS
        shown += answer["rows"]
        start = answer.get("next")
    assert [row["number"] for row in shown] == [*range(30)]
    assert shown[1]["value"] == 0.142857
    assert "none" not in shown[0]
    assert len(digest("x" * 1_000)) == 400
    numbers = list_rows([{"value": 1.0 / (3 + index), "seed": 10**18 + index} for index in range(500)])
    assert count_tokens(write(numbers)) <= MOST_TOKENS


def test_parts_of_a_file_are_the_file_and_cut_no_character(tmp_path: Path) -> None:
    text = "a¢€😀" * 50
    file = tmp_path / "text"
    file.write_text(text)
    parts, start = [], 0
    with file.open("rb") as opened:
        while start is not None:
            answer = cut_file(opened, start, 5)
            assert answer["text"]
            parts.append(answer["text"])
            start = answer.get("next")
    assert "".join(parts) == text


def export(database: str, **arguments: Any) -> dict[str, Any]:
    content = call(database, "export", study="ours", bytes=300, **arguments).structured_content
    assert content is not None
    return content


@pytest.fixture
def ours(database: str) -> str:
    """Return a database with a study of eight trials."""
    with controlled(database, name="ours") as study:
        study.start([make_trial(number) for number in range(8)], "w")
    return database


def test_parts_of_a_table_that_changes_meanwhile_fit_together(ours: str) -> None:
    parts = [export(ours)]
    raw(ours, "UPDATE trials SET worker = 'another, with a long name' WHERE number = 0")
    while "next" in parts[-1]:
        parts.append(export(ours, cursor=parts[-1]["next"]))
    table = [*csv.reader(io.StringIO("".join(part["text"] for part in parts)))]
    assert len(parts) > 2
    assert len(table) == 9
    assert {len(row) for row in table} == {len(table[0])}
    assert "another, with a long name" not in table[1]


def test_a_part_of_a_table_that_has_changed_and_was_not_kept_is_refused(
    ours: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graft.web.tools.parts._LARGEST", 0)
    cursor = export(ours)["next"]
    assert export(ours, cursor=cursor)["text"]
    raw(ours, "UPDATE trials SET worker = 'another' WHERE number = 0")
    for wrong in (cursor, "300", 300):
        message = error_of(call(ours, "export", study="ours", cursor=wrong))
        assert message == (
            f"error: cursor: {wrong} is of trials of ours as it was before; begin again, without a cursor"
        )
    assert export(ours, cursor=0) == export(ours)


@pytest.mark.parametrize("name", [name for name, tool in TOOLS.items() if "next" in tool.answers and name != "reveal"])
def test_a_tool_that_gives_a_cursor_takes_it(name: str) -> None:
    assert "cursor" in TOOLS[name].arguments.model_fields


def test_a_cursor_gives_the_rest_of_a_trial(ours: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graft.web.tools.answers.LARGEST", 700)
    many = pl.DataFrame({"name": [f"metric-{number}" for number in range(20)]})
    monkeypatch.setattr("graft.web.tools.offered.summarise_metrics", lambda metrics: many)
    names, cursor = list[str](), 0
    while cursor is not None:
        content = call(ours, "show", study="ours", number=0, cursor=cursor).structured_content
        assert content is not None
        names += [row["name"] for row in content["rows"]]
        cursor = content.get("next")
    assert names == many["name"].to_list()


def test_a_query_keeps_what_differs_beyond_the_first_trials(database: str) -> None:
    """Arms of 150 seeds have their trials one after the other; one value occurs on the page alone."""
    trials = [make_trial(number) for number in range(300)]
    for number, trial in enumerate(trials):
        shared = {"arm": "ssa" if number >= 150 else "softmax", "task.length": 4 + number // 120, "model.width": 8}
        trials[number] = replace(trial, params={**shared, "model.depth": 1 + (number == 140)})
    with controlled(database, name="many") as study:
        study.start(trials, "w")
    content = call(database, "query", study="many", cursor=139, limit=3).structured_content
    assert content
    kept = {"params.arm": "softmax", "params.task.length": 5}
    shown = [{name: row[name] for name in row if name.startswith("params.")} for row in content["rows"]]
    assert shown == [{**kept, "params.model.depth": depth} for depth in (1, 2, 1)]
    text = client_of(database).get("/studies/many/trials").text
    assert ("params.arm" in text, "params.model.width" in text) == (True, False)


def test_a_query_tells_the_arm_and_the_task_though_the_trials_have_one(database: str) -> None:
    params = {"arm": "ssa", "transfer.task": "five", "model.width": 8}
    with controlled(database, name="one") as study:
        study.start([replace(make_trial(number), params=params) for number in range(2)], "w")
    content = call(database, "query", study="one").structured_content
    assert content
    assert [name for name in content["rows"][0] if name.startswith("params.")] == ["params.arm", "params.transfer.task"]


@pytest.mark.long
def test_a_look_before_the_end_is_recorded_and_listing_is_none(database: str, tmp_path: Path) -> None:
    enrol(database, "tiny-arms", space_of(CLAIMED))
    assert not call(database, "watch", study="tiny-arms", seconds=0).is_error
    assert not call(database, "list").is_error
    assert raw(database, "SELECT event FROM claim_events") == [("locked",)]
    content = call(database, "query", study="tiny-arms").structured_content
    assert content is not None
    assert content["note"].startswith("tiny-arms has a claim and is not finished")
    assert raw(database, "SELECT event, command FROM claim_events")[1:] == [("looked", "mcp query")]


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("show", {"study": "tiny-arms", "number": 99}),
        ("query", {"study": "tiny-arms", "where": "objective > > 1"}),
        ("compare", {"one": "tiny-arms:nobody", "other": "tiny-arms:softmax"}),
        ("export", {"study": "tiny-arms", "cursor": "5-000000000000"}),
    ],
)
def test_a_tool_that_refuses_is_no_look(tool: str, arguments: dict[str, Any], database: str) -> None:
    enrol(database, "tiny-arms", space_of(CLAIMED))
    error_of(call(database, tool, **arguments))
    assert raw(database, "SELECT event FROM claim_events") == [("locked",)]


# -------------------------------------------------------------------------------------------------------- hostile input

ADA, BOB, READER = (Holder(name, role) for name, role in (("ada", "submit"), ("bob", "submit"), ("eve", "read")))


@pytest.mark.sampled(10)
@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("drop_all", {}, "'drop_all' is no tool; choose one of list, describe"),
        (HUGE, {}, "is no tool"),
        ("check", {"space": HUGE}, "error: the space"),
        ("check", {"space": "a" * 300_000}, "String should have at most 200000 characters"),
        ("check", {HUGE: 1}, "it takes space"),
        ("check", {"space": {"study": HUGE}}, "Input should be a valid string"),
        ("query", {"study": "../x"}, "not '../x'"),
        ("query", {"study": "nobody"}, "study 'nobody' does not exist"),
        ("query", {"study": "ours", "where": "1; DROP TABLE trials"}, "'; DROP TABLE trials' is no value"),
        ("query", {"study": "ours", "where": "number IN (SELECT 1)"}, "SELECT"),
        ("query", {"study": "ours", "limit": 10**30}, "less than or equal to 200"),
        ("export", {"study": "ours", "what": "tokens"}, "should be 'trials', 'metrics', 'space'"),
        ("export", {"study": "ours", "bytes": 10**9}, "less than or equal to 100000"),
        ("describe", {"name": "space/../../../etc/passwd"}, "is no packaged space"),
        ("describe", {"name": HUGE[:199]}, "is no kind of thing"),
        ("list", {"what": "plugins", "family": "os"}, "'os' is no family"),
        ("compare", {"one": "ours:a", "other": "ours:b"}, "ours"),
        ("claim", {"study": "ours"}, "study 'ours' has no claim"),
        ("show", {"study": "ours", "number": 10**12}, "number: Input should be less than"),
        ("advise", {"space": EXPERIMENT}, "the space has no claim; write"),
        ("advise", {"space": EXPERIMENT, "task": "add"}, "give a space, or a task alone"),
        ("advise", {"task": "add", "pilot": 3}, "give a space, or a task alone"),
        ("advise", {"task": "ad"}, "'ad' is no task, did you mean 'add'?"),
        ("advise", {"task": "add"}, "no trial of add, or of a task of its family, has ended in this database"),
    ],
)
def test_hostile_input_gets_one_line_and_writes_nothing(
    tool: str, arguments: dict[str, Any], message: str, database: str
) -> None:
    enrol(database, "ours", space_of(EXPERIMENT))
    before = rows(database)
    assert message in error_of(call(database, tool, BOB, **arguments))
    assert rows(database) == before


@pytest.mark.long
@pytest.mark.parametrize(
    ("space", "holder", "message"),
    [
        (f"plugins: [./mine.py]\n{EXPERIMENT}", ADA, "'./mine.py' is not allowed here (none)"),
        (EXPERIMENT.replace("seeds: 4", "seeds: 100000"), ADA, "trials: 200,000 are asked for"),
        (EXPERIMENT, READER, "the token 'eve' has the role read; this needs submit"),
        (EXPERIMENT, BOB, "study tiny-arms is ada's; to change it needs the role admin"),
    ],
)
def test_what_a_person_may_not_submit_is_refused(space: str, holder: Holder, message: str, database: str) -> None:
    for name in ("ada", "bob", "eve"):
        make_token(database, name, "read" if name == "eve" else "submit")
    if holder is BOB:
        assert not call(database, "submit", ADA, space=space).is_error
    before = rows(database)
    assert message in error_of(call(database, "submit", holder, space=space))
    assert rows(database) == before


def test_quotas_hold_for_pilots(database: str) -> None:
    submitted = Submitted(text=CLAIMED, name=None, quotas=Quotas(trials=8))
    assert make_request(submitted)["study"] == "tiny-arms"
    with pytest.raises(QuotaError, match="trials: 200 are asked for, and a person may have 8 here"):
        advise_space(submitted, database, 100)


def test_a_quota_of_more_lanes_than_there_can_be_refuses_nobody(database: str) -> None:
    for lanes, granted in ((1e9, 1_000_000), (7, 7)):
        settings = Settings(database=database, quotas=Quotas(lanes=lanes))
        caller = Caller(settings=settings, checker=Checker(1), holder=ADA, client="test")
        assert caller.check_terms(Submission(space="x")).max_lanes == granted
    caller = replace(caller, settings=Settings(database=database, quotas=Quotas(lanes=0)))
    with pytest.raises(QuotaError, match="lanes: 1 are asked for, and a person may have 0 here"):
        caller.check_terms(Submission(space="x"))


def test_quotas_hold_for_priorities(database: str) -> None:
    make_token(database, "ada", "submit")
    message = error_of(call(database, "submit", ADA, space=EXPERIMENT, priority=5))
    assert message == f"error: priority: 5 are asked for, and a person may have {Quotas().priority:.0f} here"


# ---------------------------------------------------------------------------------------------------------- transports


@asynccontextmanager
async def over_http(address: str, token: str | None) -> AsyncGenerator[Client]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with (
        httpx2.AsyncClient(headers=headers) as http,
        Client(streamable_http_client(f"{address}/api/mcp", http_client=http)) as client,
    ):
        yield client


@pytest.fixture
def guarded(database: str) -> Iterator[str]:
    """Return the address of a server that asks for tokens."""
    with serving(Settings(database=database, needs_token=True, check_seconds=240)) as address:
        yield address


def test_http_has_the_same_tools_under_the_tokens_of_the_service(guarded: str, database: str) -> None:
    token = make_token(database, "eve", "read")

    async def ask(token: str | None) -> tuple[list[str], CallToolResult]:
        async with over_http(guarded, token) as client:
            listed = [tool.name for tool in (await client.list_tools()).tools]
            return listed, await client.call_tool("submit", {"space": EXPERIMENT})

    listed, refused = anyio.run(ask, token)
    assert listed == [*TOOLS]
    assert "has the role read; this needs submit" in error_of(refused)
    with open_reader(database) as reader:
        assert not reader.queue()


@pytest.mark.parametrize("token", [None, "graft_of_nobody"])
def test_http_refuses_without_a_token(token: str | None, guarded: str) -> None:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    for method in ("POST", "GET", "DELETE"):
        answer = httpx2.request(method, f"{guarded}/api/mcp", headers=headers, json=message)
        assert answer.status_code == 401
        assert [*answer.json()] == ["error"]
