"""`python -m docs.notebooks` runs the notebooks of this folder and keeps what they show; with names, those alone."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent
NOTEBOOKS = tuple(sorted(path.stem for path in FOLDER.glob("*.ipynb")))


def run(path: Path) -> nbformat.NotebookNode:
    """Return the notebook after its cells ran one after another in an empty folder; an error in one is raised."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=600, kernel_name="python3", resources=resources).execute()
    return notebook


def main() -> None:
    """Run each and write it with its outputs, without what differs from run to run and says nothing."""
    for name in sys.argv[1:] or NOTEBOOKS:
        path = FOLDER / f"{name}.ipynb"
        notebook = run(path)
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)
        nbformat.write(notebook, path)


if __name__ == "__main__":
    main()
