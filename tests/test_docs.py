"""Pages that are made from the code say what the code says, and what a reader is to type is understood."""

from __future__ import annotations

import re
import shlex
import subprocess
from typing import Any

import pytest
import typer
import yaml

from cli.main import app
from docs import generate

DOCS = generate.PAGE.parent
CLUSTER = ("cluster.md", "slurm.sbatch", "kuberay.yaml")


def test_the_page_of_plug_ins_is_up_to_date() -> None:
    assert generate.PAGE.read_text() == generate.page(), "run `python -m docs.generate`"


def commands(page: str) -> list[str]:
    """Lines of a page, or of its blocks of commands, that run `search`, without what the shell does around it."""
    text = (DOCS / page).read_text()
    text = "".join(re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL)) if page.endswith(".md") else text
    found = re.findall(r"^ *(?:exec )?search (.*?)&?$", text, flags=re.MULTILINE)
    return [command.replace('"$@"', "SPACE") for command in found]


@pytest.mark.parametrize(("page", "command"), [(page, command) for page in CLUSTER for command in commands(page)])
def test_the_program_understands_the_commands_of_the_pages_on_clusters(page: str, command: str) -> None:
    name, *arguments = shlex.split(command, comments=True)
    group: Any = typer.main.get_command(app)
    assert group.commands[name].make_context(name, arguments).params, page


def test_every_page_on_clusters_has_a_command() -> None:
    assert all(commands(page) for page in CLUSTER)


def test_the_file_for_slurm_is_a_script_and_the_one_for_kubernetes_is_yaml() -> None:
    subprocess.run(["bash", "-n", DOCS / "slurm.sbatch"], check=True)
    kinds = [part["kind"] for part in yaml.safe_load_all((DOCS / "kuberay.yaml").read_text())]
    assert kinds == ["Service", "StatefulSet", "RayCluster", "Job"]


def test_no_node_of_the_files_for_clusters_goes_without_a_token() -> None:
    parts = list(yaml.safe_load_all((DOCS / "kuberay.yaml").read_text()))
    [cluster, job] = parts[-2:]
    groups = [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"], job["spec"]]
    containers = [container for group in groups for container in group["template"]["spec"]["containers"]]
    for container in containers:
        access = {variable["name"]: variable for variable in container["env"]}
        assert access["RAY_AUTH_MODE"]["value"] == "token"
        assert access["RAY_AUTH_TOKEN"]["valueFrom"]["secretKeyRef"] == {"name": "graft", "key": "token"}
    assert len(containers) == 3
