"""Claims before a launch: written into a space, and whether its seeds can find what is claimed."""

from __future__ import annotations

from collections.abc import Mapping

from graft.plugins.collecting import plugins_of_space
from graft.plugins.families import families
from spaces import parse
from spaces.errors import SpaceError
from spaces.experiment import Claim, ExperimentSpace
from spaces.plugins.active import using
from spaces.reading import catalogue


def add_claim(origin: str, fields: Mapping[str, str]) -> tuple[str, tuple[Claim, ...]]:
    """Return the text of a space with one claim at its end, given the fields as YAML values; and the claim, read.

    Raises SpaceError as reading the space does, which may have a claim already.
    """
    written = ", ".join(f"{name}: {value}" for name, value in fields.items())
    text = f"{catalogue.read_text(origin).rstrip()}\nclaim: {{{written}}}\n"
    with using(plugins_of_space(origin)):
        space = parse(text, origin, families())
    if not isinstance(space, ExperimentSpace):
        raise SpaceError(f"{origin}: a claim compares two arms: name them under arms")
    return text, space.claims
