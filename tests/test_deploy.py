"""The files for a deployment agree with the program and with one another; none of them is run here."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.main import program

pytestmark = pytest.mark.fast

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "docs" / "deploy"


def unit() -> configparser.ConfigParser:
    """The file for systemd; a key may stand in it more than once."""
    found = configparser.ConfigParser(strict=False, interpolation=None)
    found.optionxform = str  # pyright: ignore[reportAttributeAccessIssue] - as configparser documents
    found.read(DEPLOY / "graft.service")
    return found


def compose() -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def instructions() -> dict[str, list[str]]:
    """Instruction of the Dockerfile -> what stands behind it, each time."""
    text = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE))
    found: dict[str, list[str]] = {}
    for word, rest in re.findall(r"^([A-Z]+) (.*)$", text, re.MULTILINE):
        found.setdefault(word, []).append(rest)
    return found


def commands() -> Iterator[list[str]]:
    """What the files have the program do."""
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
    assert kept == {*packages, "pyproject.toml", "constraints.txt", "README.md", "LICENSE"}


def test_the_image_has_extras_that_the_package_has() -> None:
    [extras] = [argument.partition("=")[2] for argument in instructions()["ARG"] if argument.startswith("EXTRAS=")]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(extras.split(",")) <= project["optional-dependencies"].keys()  # pip only warns
    assert {"postgres", "serve"} <= set(extras.split(",")), "what the compose file runs"


def test_only_the_pages_are_reached_and_only_from_this_machine() -> None:
    ports = {name: service["ports"] for name, service in compose()["services"].items() if "ports" in service}
    assert ports == {"pages": ["127.0.0.1:8765:8765"]}


def test_pods_of_graft_run_without_privileges() -> None:
    *_, cluster, job = yaml.safe_load_all((ROOT / "docs" / "kuberay.yaml").read_text())
    groups = [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"], job["spec"]]
    for group in groups:
        [container] = group["template"]["spec"]["containers"]
        assert container["image"] == "graft:0.2.0"
        assert container["securityContext"]["runAsNonRoot"] is True
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not on this machine")
def test_systemd_understands_the_unit() -> None:
    found = subprocess.run(["systemd-analyze", "verify", DEPLOY / "graft.service"], capture_output=True, text=True)
    told = [line for line in found.stderr.splitlines() if "graft.service" in line and "is not executable" not in line]
    assert not told
