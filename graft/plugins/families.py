"""The plug-in families, and descriptions of their members for people."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import importlib.util
import inspect
import pkgutil
import re
from collections.abc import Mapping
from typing import NamedTuple

from spaces import plugins
from spaces.errors import PluginError
from spaces.plugins import active
from spaces.plugins.indexing import Place
from spaces.plugins.rules import REQUIRED

_SENTENCE_END = re.compile(r"[^.\s]\.(?= )")  # not the one of "r, r eta, ...", nor a dot product


def version() -> str:
    """Return Graft's installed version."""
    return importlib.metadata.version("graft-search")


FAMILIES: Mapping[str, Place] = {
    "task": Place("workers.data.tasks", "Task"),
    "model": Place("workers.networks.models", "Model"),
    "scorer": Place("workers.networks.scorers", "Scorer"),
    "activation": Place("workers.networks.activations", "Activation"),
    "position": Place("workers.networks.positions", "Position"),
    "diagnostic": Place("workers.networks.diagnostics", "Diagnostic"),
    "optimizer": Place("workers.training.optimizers", "Optimizer"),
    "schedule": Place("workers.training.schedules", "Schedule"),
    "averaging": Place("workers.training.averaging", "Averaging"),
    "learning": Place("workers.training.learning", "Learning"),
    "corpus": Place("workers.data.corpora", "Corpus"),
    "tokenizer": Place("workers.data.tokenizers", "Tokenizer"),
    "sampler": Place("search.samplers", "Sampler"),
    "stopping": Place("search.stopping", "Stopping"),
    "section": Place("graft.report.sections", "Section"),
}
"""Every family and the place of its abstract class."""
PACKAGED = "Graft"
"""The origin of a plug-in that is part of the package."""
_SECTIONS = ("task", "model", "optimizer", "averaging", "learning", "sampler", "stopping")
"""The families that sections of a space name."""


def family_of(name: str) -> type:
    """Import and return the abstract class of a family (`scorer`); most families import torch."""
    place = FAMILIES[name]
    return getattr(importlib.import_module(place.module), place.name)


def families() -> Mapping[str, type]:
    """Map each section of a space to the abstract class of its plug-ins. Imports torch."""
    return {name: family_of(name) for name in _SECTIONS}


def packaged_names(family: str) -> list[str]:
    """Return the names of Graft's own plug-ins of a family (`scorer`), without loading torch."""
    folder = importlib.util.find_spec(FAMILIES[family].module)
    assert folder, "the package is whole"
    modules = pkgutil.iter_modules(folder.submodule_search_locations)
    return sorted(module.name for module in modules if not module.name.startswith("_"))


def member_names(family: str) -> list[str]:
    """Return the names of a family's plug-ins in use, also from outside, without loading torch."""
    return [*packaged_names(family), *active.current().names(family)]


def families_by_folder() -> Mapping[str, str]:
    """Map the folder of each family, its name in the plural (`corpora`), to the family."""
    return {place.module.rpartition(".")[2]: name for name, place in FAMILIES.items()}


class FieldDescription(NamedTuple):
    """A field of a plug-in in words; a plug-in without fields has only the first three."""

    name: str
    origin: str
    """The source of the plug-in: `Graft`, `./mine.py`, `graft-extra 1.2`."""
    about: str
    """The first sentence of the plug-in's docstring, or why it cannot be imported."""
    field: str | None = None
    rule: str | None = None
    default: str | None = None
    """The default, or `required`."""


def describe_plugins(family: type) -> list[FieldDescription]:
    """Describe every field of every plug-in of a family."""
    descriptions: list[FieldDescription] = []
    for name in plugins.names(family):
        outside = active.current().find(plugins.title(family), name)
        origin = outside[1].origin if outside else PACKAGED
        try:
            member = plugins.load(family, name)
        except PluginError as error:
            descriptions.append(FieldDescription(name, origin, str(error)))
            continue
        text = " ".join((inspect.getdoc(member) or "").partition("\n\n")[0].split())
        end = _SENTENCE_END.search(text)
        about = text[: end.end()] if end else text
        fields = {field.name: field for field in dataclasses.fields(member)}
        rules = plugins.rules(member)
        for field, rule in rules.items():
            words, attribute = rule.describe(), fields[field]
            if rule.family:
                words = f"{plugins.title(rule.family)}: one of {', '.join(plugins.names(rule.family))}"
            if attribute.default_factory is not dataclasses.MISSING:
                value = attribute.default_factory()
                default = plugins.name_of(value) if dataclasses.is_dataclass(value) else str(value)
            elif attribute.default is REQUIRED:
                default = "required"
            else:
                default = f"{attribute.default:g}" if isinstance(attribute.default, float) else str(attribute.default)
            descriptions.append(FieldDescription(name, origin, about, field, words, default))
        if not rules:
            descriptions.append(FieldDescription(name, origin, about))
    return descriptions
