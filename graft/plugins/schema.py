"""JSON Schema of spaces, with every plug-in and its fields, for editors.

It is made from the rules that spaces are read by, but knows no draw's value and no rule between
fields. A space that the schema refuses is wrong; one that it accepts may still be refused by
`search space check`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, get_args, get_type_hints

from graft.plugins.families import FAMILIES, families, family_of
from spaces import plugins
from spaces.errors import PluginError
from spaces.experiment import Claim
from spaces.grammar.formulas import DrawKind
from spaces.plugins.rules import Rule
from spaces.reading import REQUIRED
from spaces.settings import Search, Training

Schema = dict[str, Any]

_EXPRESSION: Schema = {
    "type": "string",
    "description": "an expression: 10 ** uniform(-5, -1), 2 * $width, choice(1, 2)",
}
_NAMED: Schema = {"type": ["object", "null"], "propertyNames": {"pattern": "^[a-z][a-z0-9_]*$"}}


def _one_of(properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "minProperties": 1,
        "maxProperties": 1,
        "additionalProperties": False,
    }


_DRAW = _one_of(
    {
        kind: {"type": "array", "minItems": 2} | ({} if kind == "choice" else {"maxItems": 2})
        for kind in get_args(DrawKind)
    }
)


def space_schema() -> Schema:
    """Return the schema of a space file, with the plug-ins that are in use now. Imports torch."""
    parts = families()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A space of Graft",
        "type": "object",
        "properties": {
            "study": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$", "description": "its name"},
            "plugins": {"type": ["array", "string", "null"], "description": "files and modules with your plug-ins"},
            "group": {**_NAMED, "description": "values drawn once for the trials that train together"},
            "trial": {**_NAMED, "description": "values drawn for each trial"},
            **{name: _plugin(name) for name in parts if name not in ("sampler", "stopping")},
            "training": _record(Training, "training"),
            "search": _search(),
            "arms": {"type": "object", "description": "named alternatives: paths and their values"},
            "seeds": {"type": "integer", "minimum": 1},
            "confirm": {"type": "object"},
            "claim": {"oneOf": [_claim(), {"type": "array", "minItems": 1, "items": _claim()}]},
            "transfer": {"type": "object"},
        },
        "additionalProperties": False,
        "if": {"required": ["transfer"]},
        "else": {"required": list(REQUIRED)},
        "$defs": {name: _family(name) for name in FAMILIES},
    }


def _plugin(family: str) -> Schema:
    return {"$ref": f"#/$defs/{family}"}


def _objective() -> Schema:
    metric = {"type": "string", "pattern": "^[^/]+/(raw|ema|bema)(/[^/].*)?$"}
    return {
        "type": "object",
        "properties": {"minimize": metric, "maximize": metric, "at": {"enum": ["best", "last"]}},
        "oneOf": [{"required": ["minimize"]}, {"required": ["maximize"]}],
        "additionalProperties": False,
    }


def _claim() -> Schema:
    chosen = {name: {"enum": [*get_args(get_type_hints(Claim)[name])]} for name in ("test", "correction", "on")}
    return {
        "type": "object",
        "properties": {
            "arm": {"type": "string"},
            "than": {"type": "string"},
            "metric": _objective(),
            "difference": {"type": "number", "exclusiveMinimum": 0},
            "seeds": {"type": "integer", "minimum": 2},
            **chosen,
        },
        "required": ["arm", "difference"],
        "additionalProperties": False,
    }


def _search() -> Schema:
    fields = {name: _value(rule) for name, rule in plugins.rules(Search).items()}
    several = {"oneOf": [_plugin("stopping"), {"type": "array", "items": _plugin("stopping")}]}
    objective = _objective()
    expression = {"type": "string", "description": "over metrics (tvd/raw) and values of a trial (model.width)"}
    second = _one_of({"minimize": expression, "maximize": expression})
    two = {"type": "array", "prefixItems": [objective, second], "minItems": 2, "maxItems": 2}
    bound = {"type": "string", "pattern": "[<>]=", "description": "a comparison: model.width * model.depth <= 64"}
    return {
        "type": "object",
        "properties": {
            **fields,
            "sampler": _plugin("sampler"),
            "stopping": several,
            "objective": {"oneOf": [objective, two]},
            "feasible": {"oneOf": [bound, {"type": "array", "items": bound}]},
        },
        "additionalProperties": False,
    }


def _family(family: str) -> Schema:
    """Return all ways to write a plug-in: NAME, `{NAME: fields}`, `{name: NAME, ...}`, a choice."""
    names: list[str] = []  # of the plug-ins that need no field
    records: dict[str, Schema] = {}
    named: list[Schema] = []
    for name in plugins.names(family_of(family)):
        try:
            member = plugins.load(family_of(family), name)
        except PluginError:  # one from outside that cannot be imported is left out
            continue
        record, needed = _record(member, name), sorted(plugins.required_fields(member))
        if not needed:
            names.append(name)
        records[name] = {**record, "type": ["object", "null"]}
        properties = {"name": {"const": name}, **record["properties"]}
        named.append({**record, "properties": properties, "required": ["name", *needed]})
    return {
        "anyOf": [
            {"enum": names, "description": f"{family} by its name"},
            _one_of(records),
            *named,
            {
                "type": "object",
                "properties": {"choice": {"type": "array", "minItems": 2, "items": _plugin(family)}},
                "required": ["choice"],
                "additionalProperties": False,
            },
        ]
    }


def _record(member: type, name: str) -> Schema:
    defaults = {field.name: field.default for field in dataclasses.fields(member)}
    properties: dict[str, Schema] = {}
    for field, rule in plugins.rules(member).items():
        properties[field] = _value(rule)
        if isinstance(default := defaults[field], bool | int | float | str):
            properties[field] = {**properties[field], "default": default}
    first = (member.__doc__ or name).strip().partition("\n\n")[0]
    required = {"required": sorted(needed)} if (needed := plugins.required_fields(member)) else {}
    return {
        "type": "object",
        "description": " ".join(first.split()),
        "properties": properties,
        "additionalProperties": False,
        **required,
    }


def _value(rule: Rule) -> Schema:
    """Return a field: a value by its rule, an expression, or a draw."""
    if rule.family:
        return _plugin(plugins.title(rule.family))
    if rule.kind in ("knob", "size"):
        bounds: Mapping[str, float] = {
            "exclusiveMinimum" if rule.open_low else "minimum": rule.low,
            "exclusiveMaximum" if rule.open_high else "maximum": rule.high,
        }
        finite = {name: bound for name, bound in bounds.items() if math.isfinite(bound)}
        return {
            "description": rule.describe(),
            "anyOf": [{"type": "integer" if rule.integer else "number", **finite}, _EXPRESSION, _DRAW],
        }
    if rule.kind == "option" and rule.choices:
        return {"description": rule.describe(), "anyOf": [{"enum": list(rule.choices)}, _DRAW]}
    kinds = {"flag": "boolean", "file": "string"}
    kind = kinds.get(rule.kind, ["string", "number", "boolean"])
    return {"description": rule.describe(), "anyOf": [{"type": kind}, _DRAW]}
