"""Pages that are made from the code say what the code says."""

from __future__ import annotations

from docs import generate


def test_the_page_of_plug_ins_is_up_to_date() -> None:
    assert generate.PAGE.read_text() == generate.page(), "run `python -m docs.generate`"
