"""The files for a deployment agree with the program and with one another; none of them is run here."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.main import program

pytestmark = pytest.mark.fast

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "docs" / "deploy"


def unit() -> configparser.ConfigParser:
    """Return the file for systemd; a key may stand in it more than once."""
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # pyright: ignore[reportAttributeAccessIssue] - as configparser documents
    parser.read(DEPLOY / "graft.service")
    return parser


def compose() -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def instructions() -> dict[str, list[str]]:
    """Instruction of the Dockerfile -> what stands behind it, each time."""
    text = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE))
    arguments: dict[str, list[str]] = {}
    for word, rest in re.findall(r"^([A-Z]+) (.*)$", text, re.MULTILINE):
        arguments.setdefault(word, []).append(rest)
    return arguments


def commands() -> Iterator[list[str]]:
    """Yield what the files have the program do."""
    yield shlex.split(unit()["Service"]["ExecStart"])[1:]
    for service in compose()["services"].values():
        if service.get("image") == "graft":
            yield service["command"]


@pytest.mark.parametrize("arguments", list(commands()), ids=lambda arguments: arguments[0])
def test_the_program_understands_what_is_run(arguments: list[str]) -> None:
    known = program().commands
    if arguments[0] not in known:
        pytest.skip(f"this version has no `search {arguments[0]}`")
    command = known[arguments[0]]
    assert command.make_context(command.name, arguments[1:]).params


def test_nothing_runs_as_root() -> None:
    assert unit()["Service"]["User"] == "graft"
    [user] = instructions()["USER"]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user), "a number: Kubernetes checks no name"
    assert f"--uid {user.partition(':')[0]}" in "".join(instructions()["RUN"])
    for service in compose()["services"].values():
        if service.get("image") == "graft":
            assert (service["cap_drop"], service["read_only"]) == (["ALL"], True)


def test_the_image_has_the_versions_that_are_tested() -> None:
    built = "".join(instructions()["RUN"])
    assert "-c /graft/constraints.txt" in built
    versions = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split() if "==" in line)
    assert f"'ray[default]=={versions['ray']}'" in built
    cluster = list(yaml.safe_load_all((ROOT / "docs" / "kuberay.yaml").read_text()))[2]
    assert cluster["spec"]["rayVersion"] == versions["ray"]


def test_the_image_is_built_from_what_the_package_needs() -> None:
    kept = {line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().split() if line.startswith("!")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert kept == {*packages, "pyproject.toml", "hatch_build.py", "constraints.txt", "README.md", "LICENSE"}


def test_the_image_has_extras_that_the_package_has() -> None:
    [extras] = [argument.partition("=")[2] for argument in instructions()["ARG"] if argument.startswith("EXTRAS=")]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(extras.split(",")) <= project["optional-dependencies"].keys()  # pip only warns
    assert {"postgres", "serve"} <= set(extras.split(",")), "what the compose file runs"


def test_only_the_pages_are_reached_and_only_from_this_machine() -> None:
    ports = {name: service["ports"] for name, service in compose()["services"].items() if "ports" in service}
    assert ports == {"pages": ["127.0.0.1:8765:8765"]}


def test_pods_of_graft_run_without_privileges() -> None:
    *_, cluster, service = yaml.safe_load_all((ROOT / "docs" / "kuberay.yaml").read_text())
    groups = [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"], service["spec"]]
    for group in groups:
        [container] = group["template"]["spec"]["containers"]
        assert container["image"] == "graft:0.2.0"
        assert container["securityContext"]["runAsNonRoot"] is True
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not on this machine")
def test_systemd_understands_the_unit() -> None:
    process = subprocess.run(["systemd-analyze", "verify", DEPLOY / "graft.service"], capture_output=True, text=True)
    complaints = [
        line for line in process.stderr.splitlines() if "graft.service" in line and "is not executable" not in line
    ]
    assert not complaints


def test_the_image_is_written_as_images_should_be() -> None:
    """What a linter of Dockerfiles asks for (hadolint DL3002, DL3007, DL3008's neighbours, DL3009, DL3015, DL3025)."""
    dockerfile = instructions()
    [base] = dockerfile["FROM"]
    image, _, tag = base.partition(":")
    assert image == "python"
    assert re.fullmatch(r"3\.\d+-slim", tag), "a version, as latest is another one tomorrow"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    least = re.fullmatch(r">=3\.(\d+).*", project["requires-python"])
    assert least
    assert int(tag.removeprefix("3.").removesuffix("-slim")) >= int(least[1])
    for command in (line for line in dockerfile["RUN"] if "apt-get install" in line):
        assert "--no-install-recommends" in command
        assert "--yes" in command
        assert command.index("apt-get update") < command.index("apt-get install")
        assert command.endswith("rm -rf /var/lib/apt/lists/*")
    assert all("sudo" not in line for line in dockerfile["RUN"])
    assert "ADD" not in dockerfile
    for name in ("ENTRYPOINT", "CMD"):
        [command] = dockerfile[name]
        assert all(isinstance(word, str) for word in json.loads(command)), "the form that runs no shell"
    words = re.findall(r"^([A-Z]+) ", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert words.index("USER") > max(index for index, word in enumerate(words) if word == "RUN")
    assert words.index("USER") < words.index("ENTRYPOINT")
    [folder], [volume] = dockerfile["WORKDIR"], dockerfile["VOLUME"]
    assert folder == volume == "/data", "what is kept is what the user may write"


def test_what_is_bound_and_copied_into_the_image_is_there() -> None:
    dockerfile = instructions()
    for line in (*dockerfile.get("COPY", []), *dockerfile["RUN"]):
        for path in re.findall(r"/graft/([\w./-]+)", line):
            assert (ROOT / path).exists(), path
    [argument] = [line for line in dockerfile["RUN"] if "pip install" in line]
    for target in re.findall(r"target=([\w/.]+)", argument):
        assert target in ("/graft", "/root/.cache/pip")
    for line in (DEPLOY / "Dockerfile.dockerignore").read_text().split():
        if line.startswith("!"):
            assert (ROOT / line[1:]).exists(), line


@pytest.mark.long
def test_what_the_image_is_built_from_can_be_installed_and_run(tmp_path: Path) -> None:
    """As far as it goes without a container: the files of its context alone, a fresh environment, its entry point."""
    context, venv = tmp_path / "graft", tmp_path / "environment"
    context.mkdir()
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
    for line in (DEPLOY / "Dockerfile.dockerignore").read_text().split():
        source = ROOT / line[1:]
        if line.startswith("!") and source.is_dir():
            shutil.copytree(source, context / line[1:], ignore=ignore)
        elif line.startswith("!"):
            shutil.copy(source, context)
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SEARCH_STORAGE")}
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    install = [venv / "bin" / "pip", "install", "--quiet", "--no-deps", "-c", context / "constraints.txt", context]
    subprocess.run(install, check=True, env=clean, cwd=tmp_path, timeout=240)
    # What it depends on is the environment of the tests: the gate installs that from the same constraints.
    [packages] = venv.glob("lib/python*/site-packages")
    (packages / "tested.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    [entry] = instructions()["ENTRYPOINT"]
    program = venv / "bin" / json.loads(entry)[0]
    process = subprocess.run(
        [program, "--version"], env=clean, cwd=tmp_path, capture_output=True, text=True, timeout=240
    )
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"].get("version")
    assert process.returncode == 0, process.stderr
    assert re.fullmatch(r"graft \d+\.\d+\.\d+\S*\n", process.stdout)
    assert version is None or version in process.stdout
    where = "import graft, workers, storage; print(graft.__file__, workers.__file__, storage.__file__)"
    imports = subprocess.run(
        [venv / "bin" / "python", "-c", where], env=clean, cwd=tmp_path, capture_output=True, text=True
    )
    assert all(path.startswith(str(venv)) for path in imports.stdout.split()), imports.stdout
    [command] = instructions()["CMD"]
    help_text = subprocess.run([program, *json.loads(command)], env=clean, cwd=tmp_path, capture_output=True, text=True)
    assert help_text.returncode == 0
    assert "serve" in help_text.stdout
