"""Every plug-in keeps the contract of its family (`graft.testing`), with each of its own examples."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from graft.plugins.families import FAMILIES, family_of
from graft.testing import Check, DoesNotApply, checks
from spaces import plugins
from tests.support.registries import write_registry
from workers.data.tokenizers.bpe import BytePairEncoding

EXCEPTIONS = {
    ("position", "none", "effect"): "it is there to tell nothing",
}
"""Family, name and check -> why a plug-in of ours does not keep it."""
LONG = ("packed_is_alone", "nothing_diverges", "each_derivative")
"""Checks that take seconds: in every run for one plug-in of each family, in the long ones for all."""
FITTED = {("sampler", "gp"), ("sampler", "learned")}
"""What fits models to a hundred trials, which takes a second: in every run for one check."""
SLOW = {("corpus", "python")}
"""What takes many seconds: all of the standard library is made into tokens."""
REPRESENTATIVES = {"scorer": "ssa", "model": "minimal", "corpus": "stories", "task": "add"}
"""The one of a family, where it is not its first."""
NOT_PACKED_HERE = {("corpus", "huggingface"): "its documents come from elsewhere"}


def cases() -> Iterator[Any]:
    """Check and configuration; those that train take the first example of a plug-in."""
    for family in FAMILIES:
        seen: set[str] = set()
        shown = REPRESENTATIVES.get(family, plugins.names(family_of(family))[0])
        for configuration in plugins.examples(family_of(family)):
            name = configuration["name"]
            for check in checks(family):
                if check.trains and name in seen:
                    continue
                quick = check.name not in LONG or (name == shown and check.name == "packed_is_alone")
                quick = quick and ((family, name) not in FITTED or check.name == "direction")
                slow = check.trains and (family, name) in SLOW
                marks = [] if quick else [pytest.mark.slow if slow else pytest.mark.long]
                yield pytest.param(family, check, configuration, marks=marks, id=f"{family} {name} {check.name}")
            seen.add(name)


@pytest.mark.parametrize(("family", "check", "configuration"), [*cases()])
def test_a_plug_in_keeps_the_contract_of_its_family(
    family: str, check: Check, configuration: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if "path" in configuration and family == "tokenizer":  # the example names a file that is there, and no tokenizer
        Path("tokenizer.json").write_text(BytePairEncoding(vocabulary=270).learn(["The cat sat.\nA hat, a mat!\n"]))
        configuration = {**configuration, "path": "tokenizer.json"}
    if family == "sampler":  # an example may name a registry there
        write_registry(Path("registry"))
    monkeypatch.setattr("workers.data.corpora._tokens.cache_folder", lambda: tmp_path / "cache")
    name = configuration["name"]
    if (family, name, check.name) in EXCEPTIONS:
        with pytest.raises(AssertionError):
            check.run(configuration)
        return
    try:
        check.run(configuration)
    except DoesNotApply:
        if check.name == "packed_is_alone" and (family, name) not in NOT_PACKED_HERE:
            raise


@pytest.mark.parametrize("family", FAMILIES)
def test_every_plug_in_of_a_family_has_an_example(family: str) -> None:
    members = family_of(family)
    assert {configuration["name"] for configuration in plugins.examples(members)} == set(plugins.names(members))
