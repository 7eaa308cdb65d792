"""The command report evaluations: scores of lm-evaluation-harness, arm by arm over seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.options import PAGES, Force, OptionError, check_output


def evaluations_report(
    files: Annotated[list[Path], typer.Argument(help="What `search evaluate -o FILE.json` wrote, of any trials.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="FILE.html or FILE.md.")],
    force: Force = False,
) -> None:
    """Put scores of several models into one table: arms side by side, with the standard error over their seeds.

    Example: search report evaluations scores-0.json scores-1.json -o scores.html
    """
    if output.suffix not in PAGES:
        raise OptionError(f"-o {output}: the ending must be one of {', '.join(PAGES)}")
    check_output(output, force)
    from graft.report.papers.evaluations import read_evaluations, write_evaluations

    write_evaluations(read_evaluations(files), output)
    typer.echo(str(output), err=True)
