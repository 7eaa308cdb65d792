"""The plug-in families: by the section of a space that names their members, and described for people."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import inspect
import pkgutil
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from spaces import plugins
from spaces.plugins.rules import REQUIRED, Rule

_SENTENCE_END = re.compile(r"[^.]\.(?= )")  # not the one of "r, r eta, ..."


def version() -> str:
    """Graft's installed version."""
    return importlib.metadata.version("graft-search")


def families() -> Mapping[str, type]:
    """Section of a space -> the abstract class of its plug-ins. Imports torch."""
    from search.samplers import Sampler
    from search.stopping import Stopping
    from workers.data.tasks import Task
    from workers.networks.models import Model
    from workers.training.averaging import Averaging
    from workers.training.learning import Learning
    from workers.training.optimizers import Optimizer

    return {
        "task": Task,
        "model": Model,
        "optimizer": Optimizer,
        "averaging": Averaging,
        "learning": Learning,
        "sampler": Sampler,
        "stopping": Stopping,
    }


def diagnostic_names() -> list[str]:
    """The names of the diagnostics, without loading torch as their family does."""
    folder = importlib.util.find_spec("workers.networks.diagnostics")
    assert folder, "the package is whole"
    modules = pkgutil.iter_modules(folder.submodule_search_locations)
    return [module.name for module in modules if not module.name.startswith("_")]


def families_by_folder() -> Mapping[str, type]:
    """Folder -> family: those that a space names, diagnostics, which it asks for at once, and the families of parts."""
    from workers.networks.diagnostics import Diagnostic

    found: dict[str, type] = {}
    waiting = [*families().values(), Diagnostic]
    while waiting:
        family = waiting.pop(0)
        folder = family.__module__.rpartition(".")[2]
        if folder in found:
            continue
        found[folder] = family
        for name in plugins.names(family):
            rules = plugins.rules(plugins.load(family, name))
            waiting.extend(rule.family for rule in rules.values() if rule.family)
    return found


class FieldDescription(NamedTuple):
    """A field of a plug-in in words; all None but the first two for a plug-in without fields."""

    name: str
    """Of the plug-in."""
    about: str
    """The first sentence of its docstring."""
    field: str | None = None
    rule: str | None = None
    default: str | None = None
    """`required` where it has none."""


def describe_plugins(family: type) -> list[FieldDescription]:
    """Every field of every plug-in of a family, with its rule and default."""
    found: list[FieldDescription] = []
    for name in plugins.names(family):
        member = plugins.load(family, name)
        about = _first_sentence(member)
        fields = {field.name: field for field in dataclasses.fields(member)}
        rules = plugins.rules(member)
        for field, rule in rules.items():
            found.append(FieldDescription(name, about, field, _describe_rule(rule), _describe_default(fields[field])))
        if not rules:
            found.append(FieldDescription(name, about))
    return found


def _first_sentence(member: type) -> str:
    paragraph = (inspect.getdoc(member) or "").partition("\n\n")[0]
    text = " ".join(paragraph.split())
    end = _SENTENCE_END.search(text)
    return text[: end.end()] if end else text


def _describe_rule(rule: Rule) -> str:
    if rule.family:
        return f"{plugins.title(rule.family)}: one of {', '.join(plugins.names(rule.family))}"
    return rule.describe()


def _describe_default(field: dataclasses.Field[Any]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
        return plugins.name_of(value) if dataclasses.is_dataclass(value) else str(value)
    if field.default is REQUIRED:
        return "required"
    return f"{field.default:g}" if isinstance(field.default, float) else str(field.default)
