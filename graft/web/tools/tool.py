"""A tool for programs: a function whose docstring and signature say what it does and takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, TypeAdapter, create_model

from graft.web.callers import Caller
from storage.tokens import Role

TOOLS: dict[str, Tool] = {}
"""Name -> tool. There are at most twelve, as a program reads all of this before it calls any."""

Run = Callable[..., dict[str, Any]]

_ANSWERS: dict[Any, str] = {
    str: "about direction name note objective one outcome replay service state study summary text than",
    int: "bytes ended number planned steps trials",
    int | str: "next",
    float: "eta_seconds",
    bool: "good made_in_advance",
    list[str]: "claims commands history lines notes",
    dict[str, Any]: "config counts",
    list[dict[str, Any]]: "rows",
}
"""Type -> the fields of answers that have it, in whatever tool."""
_SCHEMAS = {name: TypeAdapter(kind).json_schema() for kind, names in _ANSWERS.items() for name in names.split()}


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A function that programs call, and the role that calls it."""

    name: str
    about: str
    run: Run
    role: Role
    answers: str
    """The fields of its answer, by name; one with `?` may be missing."""
    arguments: type[BaseModel]

    def input_schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the arguments, without titles and defaults of null."""
        schema = self.arguments.model_json_schema()
        fields = {
            name: {key: value for key, value in field.items() if key != "title" and (key, value) != ("default", None)}
            for name, field in schema.get("properties", {}).items()
        }
        keys = ("type", "required", "additionalProperties")
        rest = {name: schema[name] for name in keys if name in schema}
        return {**rest, "properties": fields}

    def output_schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the answer."""
        names = self.answers.split()
        fields = {name: _SCHEMAS[name] for name in self.answers.replace("?", "").split()}
        required = [name for name in names if name[-1] != "?"]
        return {"type": "object", "properties": fields, "required": required}

    def call(self, caller: Caller, arguments: BaseModel) -> dict[str, Any]:
        """Return the tool's answer; raises RefusalError or another GraftError, one line."""
        return self.run(caller.require(self.role), **dict(arguments))


def tool(answers: str, role: Role = "read") -> Callable[[Run], Run]:
    """Make a tool of a function of a Caller and its arguments; `answers` and `role`: as of Tool."""

    def add(run: Run) -> Run:
        name = run.__name__.strip("_")
        hints = get_type_hints(run, include_extras=True)
        _, *taken = inspect.signature(run).parameters.values()
        fields: Any = {
            parameter.name: (hints[parameter.name], ... if parameter.default is parameter.empty else parameter.default)
            for parameter in taken
        }
        arguments = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
        about = " ".join((run.__doc__ or "").split())
        TOOLS[name] = Tool(name=name, about=about, run=run, role=role, answers=answers, arguments=arguments)
        return run

    return add
