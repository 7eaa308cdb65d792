"""One file of each family, as `search plugin new` begins it, in a folder of one's own: all else takes it up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from graft.plugins.collecting import plugins_asked_for
from graft.plugins.families import FAMILIES, family_of
from graft.testing.writing import write_template
from spaces import plugins
from spaces.plugins.active import using
from tests.support.pack import assert_equal_to_the_bit
from tests.support.search_spaces import PLAIN, bowl, search_once, space
from tests.support.trials import config, trial

pytestmark = pytest.mark.long

NAME = "newcomer"


@pytest.fixture(autouse=True)
def added(tmp_path: Path) -> Iterator[None]:
    """Each family has one more member, in a folder of its own."""
    for family in FAMILIES:
        (tmp_path / family).mkdir()
        write_template(family, tmp_path / family / f"{NAME}.py")
    with using(plugins_asked_for([str(tmp_path / family) for family in FAMILIES])):
        yield


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "section"])
def test_one_file_is_enough_to_be_listed_and_built(family: str) -> None:
    members = family_of(family)
    assert NAME in plugins.names(members)
    [configuration] = [example for example in plugins.examples(members) if example["name"] == NAME]
    assert plugins.name_of(plugins.build(members, configuration)) == NAME


SMALL = config(steps=2, every=2, batch=4, validation_batch=8, dtype="float32")
TRANSFORMER = {"name": "transformer", "width": 8, "depth": 1, "heads": 2, "mlp_multiple": 1}
LANGUAGE = {"name": "language", "corpus": {"name": NAME}, "tokenizer": {"name": NAME}, "length": 8, "rare": 1}


@pytest.mark.parametrize(
    "sections",
    [
        {"task": {"name": NAME, "length": 4}},
        {"task": LANGUAGE, "model": TRANSFORMER},
        {"model": {"name": NAME}},
        {"model": {**TRANSFORMER, "scorer": {"name": NAME}}},
        {"model": {**TRANSFORMER, "activation": {"name": NAME}}},
        {"model": {**TRANSFORMER, "position": {"name": NAME}}},
        {"optimizer": {"name": NAME}},
        {"optimizer": {"name": "adamw", "schedule": {"name": NAME}}},
        {"averaging": {"name": NAME}},
        {"learning": {"name": NAME}},
        {"model": TRANSFORMER, "training": {**SMALL["training"], "diagnostics": True}},
    ],
    ids=["task", "corpus and tokenizer", "model", "scorer", "activation", "position", "optimizer", "schedule",
         "averaging", "learning", "diagnostic"],
)  # fmt: skip
def test_one_file_is_enough_to_train_in_a_pack_as_alone(
    sections: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.data.corpora._tokens.cache_folder", lambda: tmp_path / "cache")
    assert_equal_to_the_bit([trial(number, {**SMALL, **sections}) for number in range(2)])


def test_one_file_is_enough_to_search() -> None:
    here = space(PLAIN, sampler=NAME, stopping=NAME, trials=8)
    assert len(search_once(here, bowl)) == 8
    assert [plugins.name_of(policy) for policy in here.search.stopping] == [NAME]
