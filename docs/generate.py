"""docs/plug-ins.md, made from the plug-ins' own docstrings: `python -m docs.generate`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from spaces import plugins
from workers.activations import Activation
from workers.averaging import Averaging
from workers.optimizers import Optimizer
from workers.positions import Position
from workers.schedules import Schedule
from workers.scorers import Scorer

PAGE = Path(__file__).with_name("plug-ins.md")
FAMILIES: dict[str, tuple[type, Callable[[Any], Any]]] = {
    "Scorers": (Scorer, lambda scorer: scorer.parameters(1)),
    "Activations": (Activation, lambda activation: activation.parameters()),
    "Positions": (Position, lambda position: None),
    "Optimizers": (Optimizer, lambda optimizer: None),
    "Schedules": (Schedule, lambda schedule: None),
    "Averages": (Averaging, lambda averaging: None),
}
"""Title -> family, and what a member learns (None: the family learns nothing by itself)."""


def page() -> str:
    """The whole page, Markdown."""
    head = "# Plug-ins\n\nMade from the docstrings by `python -m docs.generate`; `search list` prints them too."
    return "\n".join([head, *(line for title in FAMILIES for line in _family(title))]) + "\n"


def _family(title: str) -> Iterator[str]:
    family, learned = FAMILIES[title]
    yield f"\n## {title}\n"
    yield "| name | what it is | fields | learned | source |"
    yield "|---|---|---|---|---|"
    for name in plugins.names(family):
        member = plugins.load(family, name)
        text, source = _halves(inspect.getdoc(member) or "")
        parameters = learned(member())
        yield f"| `{name}` | {text} | {_fields(member)} | {', '.join(parameters or ()) or '-'} | {source or '-'} |"


def _halves(docstring: str) -> tuple[str, str]:
    """What a docstring says, and the source that it names, each on one line of a table."""
    flat = " ".join(docstring.split()).replace("|", "\\|").replace("*", "\\*")
    text, _, source = flat.partition(" Source: ")
    return text, source


def _fields(member: type) -> str:
    rules = plugins.rules(member)
    return "<br>".join(f"`{field}`: {rule.describe()}" for field, rule in rules.items()) or "-"


if __name__ == "__main__":
    PAGE.write_text(page())
