"""Plug-ins as plain values in a file that stands alone, and the code that builds them there."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from graft.exports.cutting.shaking import Object
from spaces import plugins

TAIL = '''

# What the configuration names
# --------------------------------------------------------------------------------------------------


CLASSES = {{one.__name__: one for one in ({classes},)}}


def build(plan):
    """An object of one of the classes from its fields, each a plain value or another such plan."""
    fields = {{name: build(value) if isinstance(value, dict) else value for name, value in plan.items()
              if name != "class"}}
    return CLASSES[plan["class"]](**fields)
'''


def list_parts(plugin: object, left_out: Collection[str] = ()) -> Iterator[object]:
    """Yield a plug-in and its parts, but for those of the families that are `left_out`."""
    yield plugin
    for name, rule in plugins.rules(type(plugin)).items():
        if rule.family and plugins.title(rule.family) not in left_out:
            yield from list_parts(getattr(plugin, name), left_out)


def plan_of(plugin: object, names: Mapping[Object, str], left_out: Collection[str] = ()) -> dict[str, Any]:
    """Return a plug-in's class and fields, as the file's `build` reads them; a part by its name."""
    plan: dict[str, Any] = {"class": names[type(plugin)]}
    for name, rule in plugins.rules(type(plugin)).items():
        value = getattr(plugin, name)
        if not rule.family:
            plan[name] = value.written if rule.kind == "file" else value
        elif plugins.title(rule.family) in left_out:
            plan[name] = plugins.name_of(value)
        else:
            plan[name] = plan_of(value, names, left_out)
    return plan
