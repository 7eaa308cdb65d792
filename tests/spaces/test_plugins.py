"""Plug-in families: the loader reads a folder, and fields keep their rules."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spaces import plugins
from spaces.errors import PluginError
from spaces.plugins.rules import Rule

pytestmark = pytest.mark.fast

FAMILY = '''
from dataclasses import dataclass
from spaces.plugins.fields import flag, knob, option, part, size

class Kernel:
    """A family."""
'''
SMOOTH = """
from dataclasses import dataclass
from spaces.plugins.fields import knob
from {package} import Kernel

@dataclass(frozen=True, kw_only=True)
class Smooth(Kernel):
    rate: float = knob(0.5, low=0, high=1, open_high=True, switch=True)
"""
WIDE = """
from dataclasses import dataclass
from spaces.errors import PluginError
from spaces.plugins.fields import flag, knob, option, part, size
from {package} import Kernel

@dataclass(frozen=True, kw_only=True)
class Wide(Kernel):
    width: int = size(low=2)
    inner: Kernel = part(Kernel, "smooth")
    power: float = knob(2.0)
    form: str = option("round", ("round", "square"))
    tied: bool = flag(False)
"""

Write = Callable[[str, str], None]


@pytest.fixture
def family(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[type]:
    package = f"family_{abs(hash(request.node.nodeid))}"
    folder = tmp_path / package
    folder.mkdir()
    (folder / "__init__.py").write_text(FAMILY)
    (folder / "smooth.py").write_text(SMOOTH.format(package=package))
    (folder / "wide.py").write_text(WIDE.format(package=package))
    (folder / "_helper.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module(package).Kernel
    for name in [name for name in sys.modules if name.startswith(package)]:
        del sys.modules[name]


def add(family: type, name: str, text: str) -> None:
    module = sys.modules[family.__module__]
    Path(str(module.__file__)).with_name(f"{name}.py").write_text(text.format(package=family.__module__))
    importlib.invalidate_caches()


def test_the_members_are_the_files_of_the_folder_but_not_its_helpers(family: type) -> None:
    assert plugins.names(family) == ("smooth", "wide")


def test_a_new_file_is_a_new_member(family: type) -> None:
    add(family, "rough", SMOOTH.replace("Smooth", "Rough"))
    assert plugins.names(family) == ("rough", "smooth", "wide")
    assert plugins.name_of(plugins.build(family, {"name": "rough"})) == "rough"


def test_an_unknown_member_is_refused_with_the_choices(family: type) -> None:
    with pytest.raises(PluginError, match="'sharp' is no kernel; choose one of smooth, wide"):
        plugins.load(family, "sharp")


@pytest.mark.parametrize(("text", "count"), [("", 0), (SMOOTH + SMOOTH.replace("Smooth", "Second"), 2)])
def test_a_file_defines_exactly_one_member(family: type, text: str, count: int) -> None:
    add(family, "odd", text)
    with pytest.raises(PluginError, match=f"must define exactly one kernel, but defines {count}"):
        plugins.load(family, "odd")


def test_building_fills_in_defaults_and_gives_each_value_its_type(family: type) -> None:
    wide = plugins.build(family, {"name": "wide", "width": 4.0, "power": 3})
    config = plugins.config_of(wide)
    assert config == {
        "name": "wide",
        "width": 4,
        "inner": {"name": "smooth", "rate": 0.5},
        "power": 3.0,
        "form": "round",
        "tied": False,
    }
    assert (type(config["width"]), type(config["power"])) == (int, float)
    assert plugins.build(family, config) == wide


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"name": "wide"}, "kernel: wide needs width"),
        ({"name": "wide", "width": 2, "hight": 3}, "kernel.hight: wide has no such field; it has width, inner, power"),
        ({"name": "wide", "width": 1}, "kernel.width: 1 must be an integer >= 2"),
        ({"name": "wide", "width": 2.5}, "kernel.width: 2.5 must be an integer >= 2"),
        ({"name": "wide", "width": True}, "kernel.width: True must be an integer >= 2"),
        ({"name": "wide", "width": 2, "power": float("nan")}, "kernel.power: nan must be a number"),
        ({"name": "wide", "width": 2, "form": "oval"}, "kernel.form: 'oval' must be one of round, square"),
        ({"name": "wide", "width": 2, "tied": 1}, "kernel.tied: 1 must be true or false"),
        (
            {"name": "wide", "width": 2, "inner": {"name": "smooth", "rate": 1}},
            "kernel.inner.rate: 1 must be a number in",
        ),
    ],
)
def test_building_refuses_what_breaks_a_rule(family: type, config: dict[str, object], message: str) -> None:
    with pytest.raises(PluginError) as error:
        plugins.build(family, config)
    assert message in str(error.value)


def test_the_structure_leaves_out_knobs_but_keeps_whether_a_switch_is_on(family: type) -> None:
    config = {"name": "wide", "width": 4, "power": 3}
    on = plugins.build(family, {**config, "inner": {"name": "smooth", "rate": 0.25}})
    more = plugins.build(family, {**config, "power": 7, "inner": {"name": "smooth", "rate": 0.75}})
    off = plugins.build(family, {**config, "inner": {"name": "smooth", "rate": 0}})
    assert plugins.structure_of(on) == plugins.structure_of(more) != plugins.structure_of(off)
    assert plugins.structure_of(off) == {
        "name": "wide",
        "width": 4,
        "inner": {"name": "smooth", "rate": "off"},
        "form": "round",
        "tied": False,
    }


def test_knobs_are_listed_by_path_and_can_be_bound_to_anything(family: type) -> None:
    wide = plugins.build(family, {"name": "wide", "width": 4})
    assert dict(plugins.knobs(wide, "model")) == {"model.inner.rate": 0.5, "model.power": 2.0}
    bound = plugins.bind(wide, {"model.inner.rate": "lanes of rates", "model.power": 7}, "model")
    assert dict(plugins.knobs(bound)) == {"inner.rate": "lanes of rates", "power": 7}
    assert plugins.structure_of(bound)["width"] == 4
    assert dict(plugins.knobs(wide)) == {"inner.rate": 0.5, "power": 2.0}


@pytest.mark.parametrize(
    ("rule", "words", "inside", "outside"),
    [
        (Rule(kind="knob"), "a number", -1e300, float("inf")),
        (Rule(kind="knob", low=0), "a number >= 0", 0, -1e-9),
        (Rule(kind="knob", low=0, open_low=True), "a number > 0", 1e-9, 0),
        (Rule(kind="knob", high=2), "a number <= 2", 2, 2.1),
        (Rule(kind="knob", high=2, open_high=True), "a number < 2", 1.9, 2),
        (Rule(kind="knob", low=0, high=1, open_high=True), "a number in [0, 1)", 0, 1),
        (Rule(kind="size", low=1, integer=True), "an integer >= 1", 1, 0),
        (Rule(kind="knob", low=0, integer=True), "an integer >= 0", 0, 0.5),
    ],
)
def test_a_rule_says_what_it_accepts(rule: Rule, words: str, inside: float, outside: float) -> None:
    assert rule.describe() == words
    assert rule.check("a.b", inside) == inside
    with pytest.raises(PluginError, match=r"a\.b: "):
        rule.check("a.b", outside)


def test_canonical_json_of_equal_values_is_equal() -> None:
    assert plugins.canonical_json({"b": [1, 2.5], "a": None}) == '{"a":null,"b":[1,2.5]}'
    with pytest.raises(ValueError, match="not JSON compliant"):
        plugins.canonical_json(float("nan"))
