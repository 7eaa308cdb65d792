"""The JSON Schema of spaces: every packaged space keeps it, and what breaks a rule that it can know does not."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from graft.plugins.schema import space_schema
from spaces.reading import catalogue, content_of
from tests.support.inside import called

SPACE = "quick/set_complement"


@cache
def validator() -> jsonschema.Draft202012Validator:
    schema = space_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("name", catalogue.packaged_spaces())
def test_every_packaged_space_keeps_the_schema(name: str):
    faults = [f"{fault.json_path}: {fault.message[:200]}" for fault in validator().iter_errors(_read(name))]
    assert not faults


def _read(name: str) -> Any:
    """As Graft reads it: commas inside the brackets of a draw are no commas of YAML's."""
    return content_of(catalogue.read_text(name), name)


def _set(path: str, value: Any) -> Any:
    space = _read(SPACE)
    *sections, last = path.split(".")
    inner = space
    for section in sections:
        inner = inner[section]
    inner[last] = value
    return space


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("modle", {}),
        ("model.widht", 3),
        ("model.name", "transfomer"),
        ("model.residual_dropout", -1),
        ("model.scorer", "sofmax"),
        ("model.scorer", {"softmax": {"temp": 1}}),
        ("optimizer.schedule", {"choice": ["linear"]}),
        ("training.steps", 0),
        ("training.steps", 1.5),
        ("training.dtype", "float16"),
        ("search.objective", {"minimize": "tvd"}),
        ("search.objective", {"minimize": "tvd/raw", "maximize": "tvd/raw"}),
        ("search.sampler", "tpee"),
        ("study", "a b"),
    ],
)
def test_what_breaks_a_rule_breaks_the_schema(path: str, value: Any):
    assert list(validator().iter_errors(_set(path, value)))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("model.scorer", "ssa"),
        ("model.scorer", {"choice": ["softmax", {"softmax": {"temperature": {"uniform": [1, 2]}}}]}),
        ("model.scorer", {"name": "softmax", "temperature": "uniform(1, 2)"}),
        ("training.steps", {"choice": [50, "2 * 30"]}),
        ("search.stopping", ["median", {"asha": {"min_steps": 250}}]),
        ("averaging", "none"),
    ],
)
def test_every_way_to_write_a_value_keeps_it(path: str, value: Any):
    assert not list(validator().iter_errors(_set(path, value)))


def test_the_command_prints_it_with_plug_ins_from_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(Path(__file__).parents[1] / "data" / "outside")
    status, out, error = called(monkeypatch, capsys, "space", "schema", "--plugins", "./lukewarm.py")
    assert (status, error) == (0, "")
    [named] = [choice for choice in json.loads(out)["$defs"]["scorer"]["anyOf"] if "enum" in choice]
    assert {"softmax", "lukewarm"} <= set(named["enum"])
    status, out, error = called(monkeypatch, capsys, "space", "schema", "nowhere.yaml")
    assert (status, out, error.count("\n")) == (2, "", 1)
