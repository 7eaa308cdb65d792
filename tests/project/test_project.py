"""Rules of the whole project: layers, names, what may not occur, and what a training machine needs."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("cli", "graft", "graft_search", "search", "spaces", "storage", "workers")
RUNS_PLUG_INS = ROOT / "spaces" / "plugins" / "importing.py"
"""The one module that runs a stored text: the plug-ins that a study was launched with, which are code by intent."""
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def test_imports_keep_to_the_layers() -> None:
    process = subprocess.run([Path(sys.executable).parent / "lint-imports"], cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Serve an index of packages that answers."""
    arguments = ["download", "--quiet", "--no-deps", "-c", ROOT / "constraints.txt", "hatchling"]
    process = subprocess.run([*PIP, *arguments], cwd=tmp_path_factory.mktemp("index"), capture_output=True, text=True)
    if process.returncode:
        pytest.skip(f"no index of packages answers: {process.stderr.strip().splitlines()[-1]}")


@pytest.mark.slow
@pytest.mark.usefixtures("index")
@pytest.mark.parametrize("extra", EXTRAS)
def test_each_extra_is_installed_with_the_constraints(extra: str, tmp_path: Path) -> None:
    """By a dry run, which finds versions of all that it needs; into an empty folder, so that nothing is there yet."""
    arguments = ["install", "--dry-run", "--quiet", "--target", tmp_path, "-c", ROOT / "constraints.txt"]
    process = subprocess.run([*PIP, *arguments, f"{ROOT}[{extra}]"], cwd=tmp_path, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr


@pytest.mark.long
@pytest.mark.parametrize("package", PACKAGES)
def test_no_other_distribution_has_a_package_of_this_name(package: str) -> None:
    assert set(packages_distributions().get(package, ["graft-search"])) == {"graft-search"}


@pytest.mark.parametrize(
    "path", [path for path in SOURCES if path != RUNS_PLUG_INS], ids=lambda path: str(path.relative_to(ROOT))
)
def test_nothing_stored_is_ever_executed(path: Path) -> None:
    forbidden = re.compile(r"\bpickle\b|(?<![\w.])(eval|exec)\(|yaml\.(unsafe_)?load\(|shell=True")
    assert not forbidden.search(path.read_text()), path


@pytest.mark.parametrize("path", sorted((ROOT / "tests").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_test_imports_another(path: Path) -> None:
    """Builders that two tests need are in `tests/support`."""
    assert not re.search(
        r"^\s*(from|import) tests(\.\w+)* import test_|^\s*(from|import) tests\.(\w+\.)*test_",
        path.read_text(),
        re.MULTILINE,
    )


@pytest.mark.long
def test_a_training_machine_needs_torch_and_numpy_alone() -> None:
    """A pack trains without any of our other third-party packages being imported."""
    program = """
import sys
from tests.support.trials import config, trial
from workers.pool.worker import Worker
from workers.engine.pack import Pack

one = trial(0, config(steps=2, every=2))
pack = Pack(one, width=2)
pack.fill([one])
others = {"alembic", "matplotlib", "optuna", "polars", "psycopg", "ray", "rich", "scipy", "sqlalchemy", "typer", "yaml"}
print(pack.train(2)[0].state, *others & set(sys.modules))
"""
    process = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert process.stdout.strip() == "finished", process.stderr


def test_the_readme_opens_with_two_commands() -> None:
    commands = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)[:2]
    assert commands == [
        "pip install -c constraints.txt . && search launch quick/set_complement\n",
        "pip install -c constraints.txt '.[test]' && pytest -n auto\n",
    ]
