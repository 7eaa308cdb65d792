"""The command doctor: an examination of this machine, and the rate of its training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from cli.options import Force, NestedFormat, OptionError, check_output, storage_url
from cli.tables import show_json, show_text

PROBLEM = 1
"""Exit status if something asked for cannot be used."""


def doctor(
    storage: Annotated[
        str | None, typer.Option(metavar="URL", help="A database to look at, too; nothing is written into it.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda or cuda:N, to be timed. Default: a GPU if there is one.")
    ] = None,
    bench: Annotated[bool, typer.Option("--bench", help="Time more cases and widths; takes minutes.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="FILE.json for what --bench finds.", show_default=False)
    ] = None,
    force: Force = False,
    form: NestedFormat = "table",
) -> None:
    """Say what this machine has and how fast it trains. Exit status 1 if a part is broken.

    Example: search doctor --bench -o machine.json
    """
    from cli.progress import waiting
    from graft.files import writing
    from graft.machine.devices import check_device
    from graft.machine.doctor import Finding, Rate, examine, measure, to_json
    from spaces.messages import one_line
    from workers.engine.machine.devices import default_device

    if output is not None:
        if not bench:
            raise OptionError(f"--output {output} goes with --bench")
        check_output(output, force)
    where = device or default_device()
    check_device(where)
    findings: list[Finding] = []
    for finding in examine(storage_url(storage) if storage else None):
        findings.append(finding)
        if form == "table":
            show_text(one_line(f"{finding.name:<11} {'problem: ' if finding.is_problem else ''}{finding.text}"))
    rates: list[Rate] = []
    with waiting("timing steps") as say:
        # Each rate is shown and written at once, since the next one may crash.
        for rate in measure(where, bench=bench, show=say):
            rates.append(rate)
            if form == "table":
                lanes = f"{rate.lanes:,} lane{'s' if rate.lanes > 1 else ''}"
                speed = f"{rate.model_steps_per_second:>9,.0f} model-steps/s"
                speed = f"failed ({one_line(rate.failure)})" if rate.failure else speed
                show_text(f"{'rate':<11} {speed}: {rate.case}, {rate.step}, {lanes}")
            if output is not None:
                with writing(output):
                    output.write_text(json.dumps(to_json(findings, rates, where), indent=1) + "\n")
    if form == "json":
        show_json(to_json(findings, rates, where))
    else:
        show_text(f"{'':<11} of one worker on {where}, steps with their data and without validation")
    if output is not None:
        typer.echo(f"{output}: {len(rates)} rates", err=True)
    if any(finding.is_problem for finding in findings):
        raise typer.Exit(PROBLEM)
