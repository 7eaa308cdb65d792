"""Plug-in families: one folder per family, one file per member, which has the file's name.

A family is an abstract class defined in the `__init__` of its package
(`workers.networks.scorers.Scorer`). Its members are the modules beside it, and those from outside
that are in use (`active.using`); adding a file adds a member, and no list is edited anywhere.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib
import json
import pkgutil
import sys
from abc import ABC
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from types import ModuleType
from typing import Any, TypeVar, cast

from spaces.errors import PluginError
from spaces.messages import no_such
from spaces.plugins import active
from spaces.plugins.bundles import PREFIX
from spaces.plugins.files import FilePath, files_read
from spaces.plugins.importing import import_member
from spaces.plugins.protocols import HasContents, HasFacts, HasKin
from spaces.plugins.rules import REQUIRED, Rule, padded_size
from spaces.records import Params

Family = TypeVar("Family")
Examples = Sequence[Mapping[str, Any]]
"""Configurations of a plug-in, without its name, that its family's contract test builds."""
_JSON = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


def names(family: type) -> tuple[str, ...]:
    """Return a family's members, sorted: its folder's modules, and those from outside in use."""
    outside = active.current().names(title(family))
    return tuple(sorted({*_list_packaged(family), *outside})) if outside else _list_packaged(family)


@cache
def _list_packaged(family: type) -> tuple[str, ...]:
    folder = sys.modules[family.__module__].__path__
    return tuple(sorted(m.name for m in pkgutil.iter_modules(folder) if not m.name.startswith("_")))


def title(family: type) -> str:
    """Return the family's word for a person: `scorer`."""
    return family.__name__.lower()


def load(family: type[Family], name: str) -> type[Family]:
    """Return the class of the member `name`.

    Raises PluginError with the choices if there is none, and with file and line of a bad import.
    """
    match = active.current().find(title(family), name)
    if match:
        return _only_class(family, import_member(*match), match[1].title)
    if name not in _list_packaged(family):
        raise PluginError(unknown_member(family, name))
    module = f"{family.__module__}.{name}"
    return _only_class(family, importlib.import_module(module), module)


def unknown_member(family: type, name: str) -> str:
    """Return the error of an unknown name: the choices, and faults of packages that may have it."""
    problem = no_such(title(family), name, names(family))
    return "; ".join([problem, *active.current().faults])


@cache
def _only_class(family: type[Family], module: ModuleType, where: str) -> type[Family]:
    classes = [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, family)
        and value.__module__ == module.__name__
        and not value.__name__.startswith("_")
        and ABC not in value.__bases__
    ]
    if len(classes) != 1:
        problem = f"must define exactly one {title(family)}, but defines {len(classes)}"
        raise PluginError(f"{where} {problem}")
    missing = getattr(classes[0], "__abstractmethods__", ())
    if missing:
        raise PluginError(f"{where}: {classes[0].__name__} must define {', '.join(sorted(missing))}")
    return classes[0]


def examples(family: type) -> list[dict[str, Any]]:
    """Return configurations of all members, at least one of each, for the family's contract test.

    A member that cannot be built from its defaults, or is large by default, or works in several
    ways, says so in its own file: `EXAMPLES: ClassVar[Examples] = ({"length": 5}, ...)`.
    """
    configurations: list[dict[str, Any]] = []
    for name in names(family):
        variants: Examples = getattr(load(family, name), "EXAMPLES", ({},))
        configurations += ({"name": name, **fields} for fields in variants)
    return configurations


def name_of(plugin: object) -> str:
    """Return the member's name: the last part of its module."""
    return type(plugin).__module__.rpartition(".")[2]


def code_of(plugin: object) -> str | None:
    """Return a digest of an outside plug-in's code; None for a packaged plug-in."""
    return code_of_class(type(plugin))


def code_of_class(member: type) -> str | None:
    """Return a digest of the code of an outside plug-in's class; None for a packaged one."""
    package = member.__module__.partition(".")[0]
    return package.removeprefix(PREFIX) if package.startswith(PREFIX) else None


@cache
def rules(member: type) -> Mapping[str, Rule]:
    """Return the rule of each field by name, in the order of definition."""
    return {f.name: f.metadata["rule"] for f in dataclasses.fields(member) if "rule" in f.metadata}


@cache
def required_fields(member: type) -> frozenset[str]:
    """Return the fields without a default."""
    fields = [field for field in dataclasses.fields(member) if "rule" in field.metadata]
    required = [field for field in fields if field.default is REQUIRED]
    return frozenset(field.name for field in required if field.default_factory is dataclasses.MISSING)


def build(family: type[Family], config: Mapping[str, Any], path: str = "") -> Family:
    """Return the member that `config` describes; PluginError names a bad value and its rule."""
    member = load(family, config["name"])
    known, here = rules(member), path or title(family)
    values: dict[str, Any] = {}
    for key, value in config.items():
        if key == "name":
            continue
        if key not in known:
            choices = ", ".join(known) or "none"
            raise PluginError(f"{here}.{key}: {config['name']} has no such field; it has {choices}")
        rule, inner = known[key].for_fields(config), f"{here}.{key}"
        values[key] = build(rule.family, value, inner) if rule.family else rule.check(inner, value)
    missing = required_fields(member) - values.keys()
    if missing:
        raise PluginError(f"{here}: {config['name']} needs {', '.join(sorted(missing))}")
    return member(**values)


def config_of(plugin: object) -> dict[str, Any]:
    """Return the canonical configuration: `build` of it gives an equal plug-in."""
    config: dict[str, Any] = {"name": name_of(plugin)}
    for field, rule in rules(type(plugin)).items():
        value = getattr(plugin, field)
        config[field] = config_of(value) if rule.family else value.written if rule.kind == "file" else value
    return config


def _nested_fields(plugin: object, path: str) -> Iterator[tuple[str, Any, Rule]]:
    """Yield dotted path, value and rule of every field that is no part, nested parts included."""
    for field, rule in rules(type(plugin)).items():
        here, value = f"{path}.{field}" if path else field, getattr(plugin, field)
        if rule.family:
            yield from _nested_fields(value, here)
        else:
            yield here, value, rule


def knobs(plugin: object, path: str = "") -> Iterator[tuple[str, float]]:
    """Yield dotted path and value of every knob, nested parts included."""
    return ((at, value) for at, value, rule in _nested_fields(plugin, path) if rule.kind == "knob")


def step_counts(plugin: object, path: str = "") -> Iterator[tuple[str, int, int]]:
    """Yield path, value and least value of every field that counts steps, parts included."""
    fields = _nested_fields(plugin, path)
    return ((at, value, int(rule.low)) for at, value, rule in fields if rule.steps)


def parts(plugin: object, family: str) -> Iterator[tuple[str, type]]:
    """Yield family, `scorer`, and class of a plug-in and of all its parts; `family` is its own."""
    yield family, type(plugin)
    for field, rule in rules(type(plugin)).items():
        if rule.family:
            yield from parts(getattr(plugin, field), title(rule.family))


def files_of(plugin: object) -> Iterator[FilePath]:
    """Yield the files and folders that a plug-in and its parts read."""
    yield from files_read(plugin)
    if _offers(type(plugin), HasContents):
        yield from cast(HasContents, plugin).contents()
    for field, rule in rules(type(plugin)).items():
        value = getattr(plugin, field)
        if rule.family:
            yield from files_of(value)
        elif rule.kind == "file" and value:
            yield value


def bind(plugin: Family, values: Mapping[str, Any], path: str = "") -> Family:
    """Return the plug-in with its knobs replaced by `values[path]`, such as per-lane tensors.

    A switch that is off stays the plain number 0, so that a plug-in can tell. A padded size stays
    the plain padded number, which sets shapes; `actual` then gives the bound value. Unchecked.
    """
    bound = object.__new__(type(plugin))
    for field, rule in rules(type(plugin)).items():
        here, value = f"{path}.{field}" if path else field, getattr(plugin, field)
        if rule.family:
            value = bind(value, values, here)
        elif rule.kind == "knob" and (value or not rule.switch):
            value = values[here]
        elif rule.padded and here in values:
            object.__setattr__(bound, _ACTUAL + field, values[here])
        object.__setattr__(bound, field, value)
    return bound


_ACTUAL = "_actual_"


def actual(plugin: object, field: str) -> Any:
    """Return a size without padding: a plain number, or a tensor of a bound, padded plug-in."""
    return vars(plugin).get(_ACTUAL + field, getattr(plugin, field))


def paddable_sizes(plugin: object, path: str = "") -> Iterator[tuple[str, int]]:
    """Yield dotted path and value of every size that may be padded, nested parts included."""
    return ((here, value) for here, value, rule in _nested_fields(plugin, path) if rule.padded)


def pad_sizes(plugin: Family) -> Family:
    """Return the plug-in with the sizes that its trials share, without rules between fields."""
    fields = {field: (rule, getattr(plugin, field)) for field, rule in rules(type(plugin)).items()}
    parts = {field: pad_sizes(part) for field, (rule, part) in fields.items() if rule.family}
    sizes = {name: padded_size(size, rule.padded) for name, (rule, size) in fields.items() if rule.padded}
    return replace(plugin, {**parts, **sizes})


def replace(plugin: Family, values: Mapping[str, Any]) -> Family:
    """Return the plug-in with some fields replaced; unchecked, so that the engine can use it."""
    changed = copy.copy(plugin)
    for field, value in values.items():
        object.__setattr__(changed, field, value)
    return changed


def structure_of(plugin: object) -> dict[str, Any]:
    """Return the structure that a pack shares: names, sizes, options, flags, switches on or off."""
    # Recordings and compiled steps are kept by structure, and trials of equal ones train in one
    # pack: also while a file from outside changes, of code or of data.
    code = {"code": code} if (code := code_of(plugin)) else {}
    if _offers(type(plugin), HasKin) and (kin := cast(HasKin, plugin).kin()) is not None:
        data = [file.digest for file in files_of(plugin)]
        return {"kin": dict(kin), **code, **({"data": data} if data else {})}
    shared: dict[str, Any] = {"name": name_of(plugin), **code}
    if data := [file.digest for file in files_read(plugin)]:
        shared["data"] = data
    for field, rule in rules(type(plugin)).items():
        value = getattr(plugin, field)
        if rule.family:
            shared[field] = structure_of(value)
        elif rule.kind == "file":
            shared[field] = [value.written, value.digest] if value else value.written
        elif rule.structural:
            shared[field] = value
        elif rule.switch:
            shared[field] = "on" if value else "off"
    return shared


def facts(plugin: object) -> Params:
    """Return facts that follow from a plug-in's fields and are worth a column, if it has any."""
    return cast(HasFacts, plugin).facts() if _offers(type(plugin), HasFacts) else {}


@cache
def _offers(kind: type, protocol: type) -> bool:
    """Return True if plug-ins of this kind keep a protocol; isinstance is slow for each draw."""
    return issubclass(kind, protocol)


def canonical_json(value: Any) -> str:
    """Return JSON with sorted keys and no spaces: equal values give equal text."""
    return _JSON.encode(value)
