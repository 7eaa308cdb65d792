"""The server of the Model Context Protocol: the tools of `offered`, over stdio or over HTTP."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import anyio
from anyio import to_thread
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.types import CallToolRequestParams, CallToolResult, ListToolsResult, TextContent
from mcp.types import Tool as ListedTool
from pydantic import BaseModel, ValidationError
from starlette.types import Receive, Scope, Send

from graft.plugins.families import version
from graft.web.callers import Caller
from graft.web.checking import Checker, warm_up
from graft.web.reading import refuse
from graft.web.security.access import LOCAL, find_holder
from graft.web.security.refusals import RefusalError
from graft.web.settings import Settings
from graft.web.tools.answers import write
from graft.web.tools.offered import TOOLS
from graft.web.tools.tool import Tool
from spaces.messages import no_such, one_line, shorten

LOG = logging.getLogger("graft.web.tools")
LOOK_SECONDS = 1.0
"""Seconds between two looks of `watch` at the database."""
LONGEST_ERROR = 600
"""Characters of an error, at most: what is sent may be quoted in it."""
_INSTRUCTIONS = (
    "Graft trains many tiny transformers at once, and decides claims about them. A space is YAML. From a question to a "
    "verdict: describe a space that is near; write arms, seeds and claim into it; check; advise; submit; watch until "
    "it is finished; claim. Change nothing after a look at results: each look and each edit is recorded."
)


def make_server(find_caller: Callable[[Any], Caller]) -> Server[Any]:
    """Return a server of the tools; `find_caller` says for whom a request is, by its context.

    An error is an answer of one line with `is_error`, an unknown tool and wrong arguments included.
    """

    async def list_tools(context: Any, params: Any) -> ListToolsResult:
        tools = [
            ListedTool(
                name=tool.name,
                description=tool.about,
                input_schema=tool.input_schema(),
                output_schema=tool.output_schema(),
            )
            for tool in TOOLS.values()
        ]
        return ListToolsResult(tools=tools)

    async def call_tool(context: Any, params: CallToolRequestParams) -> CallToolResult:
        caller: Caller | None = None
        try:
            caller = find_caller(context)
            tool = TOOLS.get(params.name)
            if tool is None:
                raise RefusalError(404, no_such("tool", params.name, [*TOOLS]))
            arguments = _read_arguments(tool, params.arguments or {})
            answer = await _wait(caller, tool, arguments)
        except Exception as error:
            message = shorten(one_line(_explain(error, caller)), LONGEST_ERROR)
            return CallToolResult(content=[TextContent(text=f"error: {message}")], is_error=True)
        return CallToolResult(content=[TextContent(text=write(answer))], structured_content=answer)

    return Server(
        "graft", version=version(), instructions=_INSTRUCTIONS, on_list_tools=list_tools, on_call_tool=call_tool
    )


async def _wait(caller: Caller, tool: Tool, arguments: BaseModel) -> dict[str, Any]:
    """Return a tool's answer; `watch` looks until its study has ended, and keeps no thread."""
    ends_at = anyio.current_time() + getattr(arguments, "seconds", 0.0)
    while True:
        answer = await to_thread.run_sync(tool.call, caller, arguments)
        left = ends_at - anyio.current_time()
        if answer.get("outcome") != "timeout" or left <= 0:
            return answer
        await anyio.sleep(min(LOOK_SECONDS, left))


def _read_arguments(tool: Tool, given: dict[str, Any]) -> BaseModel:
    """Return the arguments of a call; refused with name, value and rule of the first wrong one."""
    try:
        return tool.arguments(**given)
    except ValidationError as error:
        # An unknown name is more telling than the one that it was meant to be, which is missing.
        first = min(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
        path = ".".join(map(str, first["loc"]))
        is_unknown = first["type"] == "extra_forbidden"
        known = f"; it takes {', '.join(tool.arguments.model_fields)}" if is_unknown else ""
        value = "" if first["type"] == "missing" else f", not {shorten(repr(first['input']), 80)}"
        raise RefusalError(422, f"{tool.name}: {shorten(path, 60)}: {first['msg']}{value}{known}") from None


def _explain(error: Exception, caller: Caller | None) -> str:
    """Return the line that a program is told of an error."""
    if caller is None or isinstance(error, RefusalError):
        return str(error)
    try:
        return refuse(error, caller.settings.database).reason
    except type(error):  # the rows are sound: the mistake is in Graft
        LOG.error("a tool failed", exc_info=error)
    return f"Graft failed ({type(error).__name__}), and the log of this server has more; `search db check` checks rows"


async def answer_http(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request over HTTP that the guard has passed; each is whole, without a session."""
    caller = Caller.of(scope)
    server = make_server(lambda _: caller)
    manager = StreamableHTTPSessionManager(server, json_response=True, stateless=True)
    async with manager.run():
        await manager.handle_request(scope, receive, send)


def serve_stdio(settings: Settings, token: str | None) -> None:
    """Answer a program on stdin and stdout until it closes them.

    It may do what the token's holder may, or without a token the person who starts it. Each call
    looks the token up, which may have been revoked.
    """
    checker = Checker(settings.check_seconds)

    def find_caller(_: Any) -> Caller:
        holder = LOCAL if token is None else find_holder(settings.database, token)
        if holder is None:
            raise RefusalError(401, "this token is not known, or was revoked")
        return Caller(settings=settings, checker=checker, holder=holder, client=holder.name)

    async def answer() -> None:
        async with stdio_server() as (received, sent):
            # Only here: processes that are forked must not have the stdout of the protocol.
            warm_up()
            server = make_server(find_caller)
            await server.run(received, sent, server.create_initialization_options())

    anyio.run(answer)
