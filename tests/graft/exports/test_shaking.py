"""Files that stand alone, cut out of Graft's modules: what goes with what is wanted, and what stays behind."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from graft.exports.cutting.modules import Symbol
from graft.exports.cutting.shaking import Object, Shaken, StandIns, shake
from graft.plugins.collecting import plugins_asked_for
from spaces import plugins
from spaces.errors import StudyError
from spaces.plugins.active import using
from workers.data.splits import Split, draw_in_split
from workers.data.tasks.linear_regression import LinearRegression
from workers.networks.scorers import Scorer
from workers.numerics.randomness import Purpose, Streams

pytestmark = pytest.mark.fast


def cut(wanted: list[Object], methods: Iterable[str], stand_ins: StandIns | None = None) -> tuple[str, Any]:
    """Return the text of a file, and the file as a module."""
    shaken = shake(wanted, methods, stand_ins)
    module = types.ModuleType("cut")
    sys.modules[module.__name__] = module
    try:
        exec(compile(shaken.text, "cut.py", "exec"), vars(module))
    finally:
        del sys.modules[module.__name__]
    return shaken.text, module


def test_what_native_code_and_kernels_do_stays_behind() -> None:
    text, module = cut([Streams], ["normal", "words", "padded_permutations"])
    for left in (
        "ctypes",
        "library",
        "stream_kernels",
        "def uniform_",
        "def bytes",
        "_permute",
        "MemoryError",
    ):
        assert left not in text
    streams = Streams.of(torch.tensor([5, 7]), Purpose.DROPOUT, torch.tensor([3, 4]), 2)
    other = module.Streams(state=streams.state)
    assert torch.equal(other.words(9), streams.words(9))
    torch.testing.assert_close(other.normal(9), streams.normal(9), rtol=1e-12, atol=0)
    sizes = torch.tensor([4, 6]), torch.tensor([3, 2])
    assert torch.equal(other.padded_permutations(5, *sizes, 6, 3), streams.padded_permutations(5, *sizes, 6, 3))


def test_all_members_of_an_enumeration_go_with_it() -> None:
    _, module = cut([draw_in_split], [])
    assert [member.value for member in module.Split] == [member.value for member in Split]


def test_a_method_has_a_stand_in_or_is_left_out() -> None:
    words = Symbol("workers.numerics.randomness", "Streams.words")
    text, module = cut([Streams], ["words"], {words: "    def words(self, count):\n        return math.prod([count])"})
    assert "import math" in text
    assert module.Streams(state=None).words(3) == 3
    text, module = cut([Streams], ["words"], {words: ""})
    assert not hasattr(module.Streams, "words")


def test_what_is_named_by_its_module_has_a_name_of_its_own() -> None:
    """`rules = plugins.rules(...)` stands in a function of linear regression."""
    text, _ = cut([LinearRegression], ["shifted_sets"])
    assert "rules = rules_spaces_plugins(LinearRegression)" in text


ODD = """
from dataclasses import dataclass
from workers.networks import scorers

@dataclass(frozen=True, kw_only=True)
class Odd(scorers.LogitScorer):
    def weigh(self, logits, visible, learned):
        return getattr(scorers, "masked_softmax")(logits, visible)
"""


def test_a_module_itself_cannot_be_taken_out(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(ODD)
    with (
        using(plugins_asked_for([str(tmp_path / "odd.py")])),
        pytest.raises(StudyError, match=r"odd uses the module workers.networks.scorers, which cannot be taken out"),
    ):
        shake([plugins.load(Scorer, "odd")], ["weigh"])


IMPORTS = """
from dataclasses import dataclass
from workers.networks.scorers import LogitScorer
{top}

@dataclass(frozen=True, kw_only=True)
class Importing(LogitScorer):
    def weigh(self, logits, visible, learned):
        {inside}
        return {computing}
"""
HELPER = "import torch\n\ndef power(z):\n    return torch.exp(z)\n"


def shake_importing(folder: Path, *, top: str = "", inside: str = "", computing: str = "logits") -> Shaken:
    """Cut out a scorer beside `helper.py` and `parts/deep.py`, which imports the former."""
    (folder / "helper.py").write_text(HELPER)
    (folder / "parts").mkdir()
    (folder / "parts" / "deep.py").write_text("from helper import power\n\ndef deep(z):\n    return power(z)\n")
    (folder / "importing.py").write_text(IMPORTS.format(top=top, inside=inside, computing=computing))
    with using(plugins_asked_for([str(folder / "importing.py")])):
        return shake([plugins.load(Scorer, "importing")], ["weigh"])


@pytest.mark.parametrize(
    ("statement", "computing", "choice"),
    [
        (
            "from workers.networks.scorers import masked_softmax",
            "masked_softmax(logits, visible)",
            "write `from workers.networks.scorers import NAME` at the top of the module",
        ),
        (
            "import workers.networks.scorers as scorers",
            "scorers.masked_softmax(logits, visible)",
            "write `from workers.networks.scorers import NAME` at the top of the module",
        ),
        ("from helper import power", "power(logits)", "write `from helper import NAME` at the top of the module"),
        ("from . import helper", "helper.power(logits)", "write `from . import NAME` at the top of the module"),
        ("import helper", "helper.power(logits)", "write `from helper import NAME` at the top of the module"),
        (
            "from search import objectives",
            "objectives",
            "of Graft, only code of spaces and workers can go with a plug-in",
        ),
    ],
)
def test_an_import_of_graft_or_a_neighbour_in_a_function_is_refused(
    tmp_path: Path, statement: str, computing: str, choice: str
) -> None:
    with pytest.raises(StudyError) as refused:
        shake_importing(tmp_path, inside=statement, computing=computing)
    fault = f"importing has `{statement}`, which a file that stands alone cannot have"
    assert str(refused.value) == f"{fault}; {choice}"


@pytest.mark.parametrize(
    ("statement", "computing", "choice"),
    [
        (
            "import workers.networks.scorers",
            "workers.networks.scorers.masked_softmax(logits, visible)",
            "write `from workers.networks.scorers import NAME` at the top of the module",
        ),
        ("import search", "search", "of Graft, only code of spaces and workers can go with a plug-in"),
    ],
)
def test_an_import_of_graft_that_cannot_be_taken_over_is_refused(
    tmp_path: Path, statement: str, computing: str, choice: str
) -> None:
    with pytest.raises(StudyError, match=f"importing has `{statement}`.*; {choice}"):
        shake_importing(tmp_path, top=statement, computing=computing)


@pytest.mark.parametrize(
    ("statement", "computing"),
    [
        ("import workers.networks.scorers as scorers", "scorers.masked_softmax(logits, visible)"),
        ("import helper", "helper.power(logits)"),
        ("import helper as other", "other.power(logits)"),
        ("import parts.deep", "parts.deep.deep(logits)"),
        ("import parts.deep as deep", "deep.deep(logits)"),
        ("from parts import deep", "deep.deep(logits)"),
    ],
)
def test_what_a_module_that_is_imported_whole_defines_goes_with_it(
    tmp_path: Path, statement: str, computing: str
) -> None:
    shaken = shake_importing(tmp_path, top=statement, computing=computing)
    assert set(shaken.packages) <= {*sys.stdlib_module_names, "torch"}
    for other in ("import helper", "import workers", "import parts"):
        assert other not in shaken.text
    assert re.search(r"return (masked_softmax|power|deep)\(logits", shaken.text)


def test_packages_that_functions_import_are_named_and_stay_where_they_are(tmp_path: Path) -> None:
    shaken = shake_importing(
        tmp_path,
        top="from helper import power",
        inside="import scipy.special as power",
        computing="power.expit(logits)",
    )
    assert "scipy" in shaken.packages
    assert shaken.text.count("scipy") == 1
    assert "def power" not in shaken.text


def test_one_name_for_two_imports_is_refused(tmp_path: Path) -> None:
    source = ODD.replace("from workers.networks", "from math import pi as torch\nfrom workers.networks")
    (tmp_path / "odd.py").write_text(
        source.replace('getattr(scorers, "masked_softmax")(', "scorers.masked_softmax(torch * ")
    )
    with using(plugins_asked_for([str(tmp_path / "odd.py")])):
        scorer = plugins.load(Scorer, "odd")
    with pytest.raises(StudyError, match=r"'from math import pi as torch' and 'import torch' cannot stand in one file"):
        shake([scorer, Streams], ["weigh", "words"])
