"""The page of the papers' tables and figures, from graft/report/papers/items.yaml."""

from __future__ import annotations

from docs.generators.tables import code, prose, table
from graft.report.papers.items import Item, read_items

_TITLE = """# Tables and figures of the papers

`search report paper` prints this list; `search report paper 003/figure-4 STUDY -o FILE.html` makes one item from a
study of its space, or of the one cut to a laptop. *State*: whether all of an item, a part or none of it can be made
here. It does not say that it was trained at the paper's scale, and most were not. What was trained is in
[the papers](../experiments/papers.md).
"""


def page() -> str:
    """Return the page as Markdown."""
    header = ["item", "shows", "state", "space", "cut", "made by", "missing"]
    return "\n".join([_TITLE, *table(header, [_row(item) for item in read_items()])]) + "\n"


def _row(item: Item) -> list[str]:
    command = item.command().removesuffix(" -o FILE.html")
    return [
        item.name,
        prose(item.shows),
        item.state,
        code(item.space),
        code(item.cut),
        code(command),
        prose(item.missing),
    ]
