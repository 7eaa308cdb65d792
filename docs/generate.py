"""The pages of the reference: `python -m docs.generate FOLDER` writes them; docs/hooks.py hands them to MkDocs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from docs.generators import commands, language, papers, plug_ins, python, sql, where


def pages() -> Mapping[str, str]:
    """Path below docs/ -> Markdown of every page that is made from the code."""
    return {
        "reference/commands.md": commands.page(),
        "reference/python.md": python.page(),
        "reference/contracts.md": python.contracts_page(),
        "reference/language.md": language.page(),
        "reference/spaces.md": language.spaces_page(),
        "reference/papers.md": papers.page(),
        "reference/sql.md": sql.page(),
        "reference/where.md": where.page(),
        **{f"reference/plug-ins/{name}": text for name, text in plug_ins.pages().items()},
    }


if __name__ == "__main__":
    for path, text in pages().items():
        target = Path(sys.argv[1]) / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
