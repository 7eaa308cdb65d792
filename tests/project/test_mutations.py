"""The list of mutations fits the code that it changes and the tests that it names."""

from __future__ import annotations

import re

import pytest

from tests.mutations import ROOT, Mutation
from tests.mutations.__main__ import main

pytestmark = pytest.mark.fast

MUTATIONS = Mutation.read_all()


@pytest.mark.parametrize("mutation", MUTATIONS, ids=range(1, len(MUTATIONS) + 1))
def test_a_mutation_changes_one_place_of_its_file_and_leaves_python(mutation: Mutation) -> None:
    text = (ROOT / mutation.file).read_text()
    assert text.count(mutation.old) == 1, f"{mutation.file} must have this text once: {mutation.old}"
    assert mutation.new != mutation.old
    compile(mutation.apply(text), mutation.file, "exec")


@pytest.mark.parametrize("mutation", MUTATIONS, ids=range(1, len(MUTATIONS) + 1))
def test_the_tests_that_should_notice_a_mutation_exist(mutation: Mutation) -> None:
    for test in mutation.tests:
        file, _, name = test.partition("::")
        text = (ROOT / "tests" / file).read_text()
        assert not name or re.search(rf"^def {name}\(", text, re.MULTILINE), f"there is no test {test}"


def test_a_number_out_of_the_list_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_status:
        main(["--only", "0"])
    assert exit_status.value.code == 2
    assert f"there is no mutation 0; there are 1 to {len(MUTATIONS)}" in capsys.readouterr().err
