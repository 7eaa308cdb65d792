"""The command report norms: the lengths of the token vectors of a trial or a pretrained model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.options import PAGE, PAGES, Force, OptionError, RetrainingOptions, check_output


def norms_report(
    study: Annotated[str | None, typer.Argument(metavar="[STUDY]", help="Name of the study.")] = None,
    number: Annotated[int | None, typer.Argument(metavar="[N]", help="Number of the trial.")] = None,
    output: Annotated[Path | None, PAGE] = None,
    pretrained: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="A model of the kind of Llama or Gemma, in place of a trial.")
    ] = None,
    *,
    retraining: RetrainingOptions,
    force: Force = False,
) -> None:
    """Draw how long the vectors of tokens are: of a trial, trained again, or a pretrained model.

    Example: search report norms quick-web 0 -o norms.html
    """
    if output is None or output.suffix not in PAGES:
        raise OptionError(f"-o {output or 'FILE'}: the ending must be one of {', '.join(PAGES)}")
    if (study is None or number is None) == (pretrained is None):
        raise OptionError("norms needs a trial, STUDY N, or --pretrained FOLDER")
    check_output(output, force)
    from graft.report.papers.norms import norms_of, write_norms

    if pretrained is not None:
        from workers.networks.pretrained import embedding_norms

        write_norms(f"Norms of token embeddings of {pretrained.name}", embedding_norms(pretrained), output)
    else:
        assert study is not None
        assert number is not None
        title = f"Norms of token embeddings of trial {number} of {study}"
        write_norms(title, norms_of(retraining.train(study, number)), output)
    typer.echo(str(output), err=True)
