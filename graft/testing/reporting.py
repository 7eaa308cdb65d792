"""The contracts run on the examples of plug-ins from outside, told line by line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from graft.plugins.families import family_of
from graft.testing import DoesNotApply, check
from graft.testing.contracts.task import share_seen
from graft.testing.training import Speed, step_with, time_beside, time_beside_plain_loop
from spaces import plugins
from spaces.errors import PluginError
from spaces.plugins.bundles import Member, Outside

_WORDS = {"kept": "kept", "broken": "BROKEN", "none": "does not apply"}


class Line(NamedTuple):
    """A line for a person."""

    text: str
    is_broken: bool = False


def check_plugins(outside: Outside) -> Iterator[Line]:
    """Check all plug-ins in use (`spaces.plugins.active`), but for those of installed packages."""
    for bundle in outside.bundles:
        for member in () if bundle.is_installed else bundle.members:
            yield Line(member.title)
            yield from _check_member(member)


def _check_member(member: Member) -> Iterator[Line]:
    family = family_of(member.family)
    try:
        plugin = plugins.load(family, member.name)
    except PluginError as error:
        yield Line(f"  BROKEN: {error}", is_broken=True)
        return
    for fields in getattr(plugin, "EXAMPLES", ({},)):
        configuration = {"name": member.name, **fields}
        if fields:
            yield Line(f"  with {fields}:")
        kept, before = True, ""
        for finding in check(member.family, configuration):
            reason = f" ({finding.reason})" if finding.reason else ""
            reason, before = " (for the same reason)" if reason and reason == before else reason, reason
            broken = finding.verdict == "broken"
            kept = kept and not broken
            yield Line(f"  {_WORDS[finding.verdict]}: {finding.check.promise}{reason}", is_broken=broken)
        if not kept:
            continue
        # Measurements are worth knowing, and neither right nor wrong.
        with suppress(DoesNotApply):
            yield Line(f"  step: {step_with(member.family, configuration)}")
            yield _describe_speed(time_beside(member.family, configuration))
            if member.family == "model":
                yield _describe_speed(time_beside_plain_loop(configuration))
            if member.family == "task":
                share = f"{share_seen(configuration):.0%} of validation sequences"
                yield Line(f"  splits: {share} come in 4 training batches too")


def _describe_speed(speed: Speed) -> Line:
    return Line(
        f"  speed: {speed.rate / speed.rate_beside:.2f} of that of {speed.beside} "
        f"({speed.rate:,.0f} against {speed.rate_beside:,.0f} model-steps/s of a small trial, one worker, CPU)"
    )
