"""docs/plug-ins.md, made from the plug-ins' own docstrings: `python -m docs.generate`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from spaces import plugins
from workers.data.corpora import Corpus
from workers.data.tasks import Task
from workers.data.tokenizers import Tokenizer
from workers.networks.activations import Activation
from workers.networks.diagnostics import Diagnostic
from workers.networks.models import Model
from workers.networks.positions import Position
from workers.networks.scorers import Scorer
from workers.training.averaging import Averaging
from workers.training.optimizers import Optimizer
from workers.training.schedules import Schedule

PAGE = Path(__file__).with_name("plug-ins.md")
FAMILIES: dict[str, tuple[type, Callable[[Any], Any] | None]] = {
    "Tasks": (Task, None),
    "Corpora": (Corpus, None),
    "Tokenizers": (Tokenizer, None),
    "Models": (Model, None),
    "Scorers": (Scorer, lambda scorer: scorer.parameters(2)),
    "Activations": (Activation, lambda activation: activation.parameters()),
    "Positions": (Position, None),
    "Optimizers": (Optimizer, None),
    "Schedules": (Schedule, None),
    "Averages": (Averaging, None),
    "Diagnostics": (Diagnostic, None),
}
"""Title -> family, and what a member of it with default fields learns, where the members are told apart by that."""


def page() -> str:
    """The whole page, Markdown."""
    head = "# Plug-ins\n\nMade from the docstrings by `python -m docs.generate`; `search list` prints them too."
    return "\n".join([head, *(line for title in FAMILIES for line in _family(title))]) + "\n"


def _family(title: str) -> Iterator[str]:
    family, learned = FAMILIES[title]
    yield f"\n## {title}\n"
    yield "| name | what it is | fields | learned | source |" if learned else "| name | what it is | fields | source |"
    yield "|---|---|---|---|---|" if learned else "|---|---|---|---|"
    for name in plugins.names(family):
        member = plugins.load(family, name)
        text, source = _halves(inspect.getdoc(member) or "")
        cells = [f"`{name}`", text, _fields(member)]
        cells += [", ".join(learned(member())) or "-"] if learned else []
        yield f"| {' | '.join([*cells, source or '-'])} |"


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
