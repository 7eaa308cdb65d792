"""A user's folder or file with the name of one of our packages, found by Python before ours."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from graft.shadowing import PACKAGES
from tests.support.launches import ROOT

ENTRY = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["search"]
MODULE, FUNCTION = ENTRY.split(":")
SEARCH = f"import sys; sys.argv[0] = 'search'; from {MODULE} import {FUNCTION}; {FUNCTION}()"


def python(
    program: str, folder: Path, *path: Path, arguments: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Return a program in a folder, which is the first that Python looks in, as it is for a notebook."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def hide(folder: Path, package: str, kind: str) -> Path:
    """Return a package or a module of the user's own."""
    file = folder / package / "__init__.py" if kind == "folder" else folder / f"{package}.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("raise RuntimeError('this is not Graft')")
    return file


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", ["folder", "file"])
@pytest.mark.parametrize("package", PACKAGES)
def test_the_program_names_both_files_in_one_line(package: str, kind: str, tmp_path: Path) -> None:
    theirs, ours = hide(tmp_path, package, kind), ROOT / package / "__init__.py"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for process in (
        python(SEARCH, elsewhere, tmp_path, ROOT, arguments=("--help",)),  # on PYTHONPATH
        python(SEARCH, tmp_path, ROOT, arguments=("--help",)),  # beside a notebook
    ):
        assert (process.returncode, process.stdout) == (2, "")
        [line] = process.stderr.splitlines()
        assert line.startswith(f"error: {theirs} is imported in place of Graft's {ours}; rename {package}")
        assert str(tmp_path) in line.partition(";")[2]


@pytest.mark.parametrize("package", [name for name in PACKAGES if name != "graft"])
def test_importing_graft_names_both_files_too(package: str, tmp_path: Path) -> None:
    theirs, ours = hide(tmp_path, package, "folder"), ROOT / package / "__init__.py"
    program = "try: import graft\nexcept ImportError as error: print(error)"
    process = python(program, tmp_path, ROOT)
    assert process.returncode == 0, process.stderr
    [line] = process.stdout.splitlines()
    assert line.startswith(f"{theirs} is imported in place of Graft's {ours}; ")


def test_a_module_that_was_imported_before_is_named_too(tmp_path: Path) -> None:
    theirs = tmp_path / "workers.py"
    theirs.write_text("PEOPLE = 3")
    program = "import sys, workers\nsys.path.remove('')\ntry: import graft\nexcept ImportError as error: print(error)"
    process = python(program, tmp_path, ROOT)
    assert process.stdout.startswith(f"{theirs} is imported in place of Graft's {ROOT / 'workers' / '__init__.py'}; ")


def test_a_folder_that_is_no_package_hides_nothing(tmp_path: Path) -> None:
    for package in PACKAGES:
        (tmp_path / package).mkdir()
        (tmp_path / package / "notes.txt").write_text("mine")
    process = python(SEARCH, tmp_path, ROOT, arguments=("space", "list"))
    assert process.returncode == 0, process.stderr
    assert "quick/set_complement" in process.stdout


def test_the_program_starts_as_a_module(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", MODULE, "--help"]
    process = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "Usage: search" in process.stdout, process.stderr
