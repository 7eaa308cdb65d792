"""The notebooks of the documentation and the examples of its page on Python run, and show what is kept with them."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

from docs.notebooks.__main__ import FOLDER, NOTEBOOKS, run

pytestmark = pytest.mark.long

PAGE = FOLDER.parent / "how-to" / "python.md"


def results(notebook: Any) -> dict[str, str]:
    """Cell -> the text of its value."""
    return {
        cell["id"]: output["data"]["text/plain"]
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if output["output_type"] == "execute_result"
    }


@pytest.mark.parametrize("name", NOTEBOOKS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning:jupyter_client")
def test_a_notebook_runs_and_shows_what_is_kept_with_it(name: str):
    """Numbers are those of one kind of processor, so that they are compared without their digits."""
    kept = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    done = run(FOLDER / f"{name}.ipynb")
    before, after = results(kept), results(done)
    assert before.keys() == after.keys()
    shapes = [{cell: re.sub(r"[\d.\u2026 -]+", "", text) for cell, text in cells.items()} for cells in (before, after)]
    tables = {cell for cell, text in before.items() if text.startswith("shape: ")}
    assert {cell: text for cell, text in shapes[0].items() if cell not in tables} == {
        cell: text for cell, text in shapes[1].items() if cell not in tables
    }
    pairs = [ast.literal_eval(text) for text in after.values() if re.fullmatch(r"\([\d.e-]+, [\d.e-]+\)", text)]
    assert pairs, "what a trained model gives, and what is stored"
    for given, stored in pairs:
        assert given == pytest.approx(stored, rel=1e-6)
    texts = [output.get("text", "") for cell in kept.cells for output in cell.get("outputs", ())]
    assert not any(texts), "nothing was printed, and nothing warned"


def test_the_examples_on_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Block after block in one namespace; a value behind `# ->` is what the line gives."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(blocks) > 5
    for block in blocks:
        for node in ast.parse(block).body:
            last = block.splitlines()[(node.end_lineno or 0) - 1]
            if isinstance(node, ast.Expr):
                value = repr(eval(ast.unparse(node), names))
                _, arrow, expected = last.partition("  # -> ")
                assert not arrow or value == expected, last
            else:
                exec(ast.unparse(node), names)
