"""`python -m benchmarks.source` counts what it says, on a package small enough to be counted by hand."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import source
from benchmarks.source import Measures, back_up, circles, floors, is_participle

pytestmark = pytest.mark.fast

HOUSE = {
    "__init__.py": "",
    "roof.py": '''"""The top."""

from typing import TYPE_CHECKING

from house import wall  # by its package
from house.wall import Brick

if TYPE_CHECKING:
    from house.cellar.wine import Wine

__all__ = ["Brick", "wall"]


def covered(brick: Brick, *more: Brick, wine: "Wine") -> int:
    """Two lines
    of docstring."""
    return _folded(brick) + _twice(1) + _twice(2)  # why: a roof is folded


def _folded(brick):
    return _folded(brick)


def _twice(number):

    return number
''',
    "wall.py": """from .cellar import wine


class Brick:
    # ---- a ruler
    def is_moved(self): ...

    def _left(self, a, b, c, d, e, f, /): return self._left, self._right()  # noqa: E704

    def _right(self, a=1, *b, c=2, d, e, f, **g): return wine


class _Hidden: ...
""",
    "cellar/__init__.py": "",
    "cellar/wine.py": "def read():\n    from house.roof import covered\n    return covered\n\n\nclass Brick: ...\n",
    "cellar/shelf/__init__.py": "from house.cellar import wine\n",
    "cellar/shelf/wall.py": "from house.cellar.shelf import floor\n",
    "cellar/shelf/floor.py": "import house.cellar.shelf.wall\n\n\nasync def thrown_out():\n    class Row:\n"
    + "".join(f"        def m{number}(self): ...\n" for number in range(21)),
}


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """Return the package `house`: roof over wall over cellar, and in the cellar a shelf over the wine."""
    for name, text in HOUSE.items():
        path = tmp_path / "house" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "house"


@pytest.fixture
def found(house: Path) -> Measures:
    return source.measured(source.read([house]))


def test_lines_functions_and_classes_are_counted(found: Measures, house: Path) -> None:
    sizes = found.sizes
    assert sizes.lines == sum(len(path.read_text().splitlines()) for path in house.rglob("*.py"))
    assert (sizes.files, sizes.short_files) == (8, 8)
    assert sizes.comment_lines == 2, "neither the ruler nor what is said to a tool"
    assert sizes.functions == 3 + 3 + 1 + 1 + 21
    assert (sizes.median_lines, sizes.ninth_decile_lines) == (1, 3)
    assert sizes.longest == {"house.cellar.shelf.floor.thrown_out": 23}
    assert sizes.many_methods == {"house.cellar.shelf.floor.Row": 21}
    assert sizes.many_parameters == {"house.wall.Brick._right": 7}


def test_lines_of_code_are_without_blanks_comments_and_docstrings(house: Path) -> None:
    [roof] = [module for module in source.read([house]) if module.name == "house.roof"]
    assert source.code_lines(roof) == 12
    covered, *_, twice = source.functions_of(roof)
    assert (covered.lines, twice.lines) == (2, 3)


def test_participles_and_names_that_occur_again_are_found(found: Measures) -> None:
    names = found.names
    assert names.participles == {"_folded": 1, "_left": 1, "covered": 1}
    assert names.ending_in_participles == {}
    assert names.modules_of_one_name == {"wall": ["house.cellar.shelf.wall", "house.wall"]}
    assert names.classes_of_one_name == {"Brick": ["house.cellar.wine", "house.wall"]}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("drawn", True),
        ("_checked", True),
        ("values_kept", True),
        ("unknown", True),
        ("overwritten", True),
        ("draw", False),
        ("seed", False),
        ("is_closed", False),
        ("read", False),
        ("kept_values", False),
        ("__added__", False),
    ],
)
def test_a_participle_is_told_by_its_last_word(name: str, expected: bool) -> None:
    assert is_participle(name) == expected


def test_a_private_function_is_used_once_where_one_other_place_names_it(found: Measures) -> None:
    assert found.names.private_functions == 4
    assert found.names.used_once == ["house.roof._folded", "house.wall.Brick._right"]
    assert found.names.with_one_caller == found.names.used_once


def test_a_helper_that_another_module_imports_is_used_there(tmp_path: Path) -> None:
    pack = tmp_path / "pack"
    pack.mkdir()
    (pack / "__init__.py").write_text("")
    (pack / "one.py").write_text("def _a(): ...\ndef _b(): ...\ndef _c(): ...\ndef _d(): ...\n_c()\n_RULES = {1: _d}\n")
    (pack / "two.py").write_text("from pack.one import _a as a, _b as b, _c\na()\nb()\nb()\n_c()\n")
    measures = source.measured(source.read([pack]))
    assert measures.names.used_once == ["pack.one._a", "pack.one._d"]
    assert measures.names.with_one_caller == ["pack.one._a"], "an entry of a table is not called"


def test_circles_are_those_of_the_imports_that_are_followed(found: Measures) -> None:
    shelf = ["house.cellar.shelf.floor", "house.cellar.shelf.wall"]
    assert found.circles == {
        "load": [shelf],
        "load+types": [shelf],
        "all": [["house.cellar.wine", "house.roof", "house.wall"], shelf],
    }


def test_folders_have_rooms_floors_and_arrows_back_up(found: Measures) -> None:
    folders = {folder.name: folder for folder in found.folders}
    assert folders.keys() == {"house", "house.cellar", "house.cellar.shelf"}
    house, cellar, shelf = folders.values()
    assert [(folder.neighbours, folder.modules) for folder in (house, cellar, shelf)] == [(3, 2), (2, 1), (2, 2)]
    assert [folder.rooms for folder in (house, cellar, shelf)] == [3, 2, 2]
    assert [folder.floors for folder in (house, cellar, shelf)] == [3, 2, 1]
    assert [folder.floors_of_all for folder in (house, cellar, shelf)] == [1, 2, 1]
    assert (house.back_up, cellar.back_up) == ([], [])
    assert shelf.back_up == [("floor", "wall"), ("wall", "floor")]
    assert house.back_up_of_all == [("cellar", "roof"), ("roof", "cellar"), ("roof", "wall"), ("wall", "cellar")]


def test_a_plug_in_stands_alone_also_where_it_shares_a_private_module(tmp_path: Path) -> None:
    family = tmp_path / "family"
    family.mkdir()
    (family / "__init__.py").write_text("class Scorer: ...\n")
    (family / "_shared.py").write_text("from family import Scorer\n")
    (family / "one.py").write_text("from family import Scorer\nfrom family import _shared\n")
    (family / "two.py").write_text("from family import Scorer\n")
    [folder] = source.measured(source.read([family])).folders
    assert (folder.rooms, folder.neighbours, folder.floors) == (3, 1, 2)
    (family / "three.py").write_text("def now():\n    from family import two\n    return two\n")
    [folder] = source.measured(source.read([family])).folders
    assert (folder.rooms, folder.neighbours) == (4, 3)


def test_several_top_folders_are_rooms_of_one_house(house: Path) -> None:
    garden = house.parent / "garden"
    garden.mkdir()
    (garden / "tree.py").write_text("from house.roof import covered\n")
    whole = source.measured(source.read([house, garden])).folders[0]
    assert (whole.name, whole.neighbours, whole.modules, whole.floors) == (".", 2, 0, 2)


def test_a_folder_inside_a_package_keeps_its_full_name(house: Path) -> None:
    names = [module.name for module in source.read([house / "cellar"])]
    assert names[0] == "house.cellar"
    assert "house.cellar.shelf.wall" in names


def test_graphs() -> None:
    edges = {("a", "b"), ("b", "c"), ("c", "b"), ("c", "d"), ("e", "e")}
    assert circles(edges) == [["b", "c"]]
    assert floors("abcdef", edges) == 3
    assert back_up(edges) == [("b", "c"), ("c", "b")]
    assert floors([], set()) == 0


def test_the_program_prints_a_table_or_json(
    house: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(house.parent)
    monkeypatch.setattr(sys, "argv", ["source", "house"])
    source.main()
    lines = capsys.readouterr().out.splitlines()
    assert "files                                      8" in lines
    assert "  house.roof._folded" in lines
    monkeypatch.setattr(sys, "argv", ["source", "house", "--json"])
    source.main()
    assert json.loads(capsys.readouterr().out)["sizes"]["files"] == 8
    monkeypatch.setattr(sys, "argv", ["source"])
    with pytest.raises(SystemExit):
        source.main()
