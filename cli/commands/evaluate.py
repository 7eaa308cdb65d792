"""The command evaluate: scores a trial or a pretrained model by lm-evaluation-harness."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.options import Format, OptionError, RetrainingOptions, check_output, say_changes, storage_url
from cli.tables import show

if TYPE_CHECKING:
    import polars as pl

    from graft.exports.huggingface.evaluation import Asked


@dataclass(frozen=True, kw_only=True)
class HarnessOptions:
    """The tasks that a model is evaluated on."""

    tasks: Annotated[
        list[str], typer.Option(metavar="TASK", help="A task of lm-evaluation-harness; several: repeat it, or a,b.")
    ]
    include: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Tasks of your own, as the harness' YAML files.")
    ] = None
    limit: Annotated[int | None, typer.Option(min=1, help="Examples of each task.", show_default="all")] = None
    few_shot: Annotated[
        int | None, typer.Option(min=0, help="Examples shown before each question.", show_default="the task's")
    ] = None
    batch: Annotated[int, typer.Option(min=1, help="Sequences at once.")] = 8


@dataclass(frozen=True, kw_only=True)
class PretrainedOptions:
    """A pretrained model in place of a trial."""

    pretrained: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="A model of the kind of Llama or Gemma, in place of a trial.")
    ] = None
    scorer: Annotated[
        str | None,
        typer.Option(metavar="YAML", help="In place of its softmax: ssa, 'adaptive_temperature: {phase: always}'."),
    ] = None
    dtype: Annotated[str, typer.Option(metavar="float32|bfloat16|float16", help="Its precision.")] = "float32"


def evaluate(
    study: Annotated[str | None, typer.Argument(metavar="[STUDY]", help="Name of the study.")] = None,
    number: Annotated[int | None, typer.Argument(metavar="[N]", help="Number of the trial.")] = None,
    variant: Annotated[
        str | None, typer.Option(help="Parameters of the trial: raw, ema, bema ...", show_default="the objective's")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="FILE.json: the numbers and what they are of.")
    ] = None,
    *,
    harness: HarnessOptions,
    pretrained: PretrainedOptions,
    retraining: RetrainingOptions,
    form: Format = "table",
) -> None:
    """Score a language model by lm-evaluation-harness, with standard errors over its examples.

    A trial is trained again for it and read as Hugging Face transformers read it. It needs the
    extra `evaluate`. With --pretrained a folder is scored that is no trial: as it is, or with a
    scorer of Graft in place of softmax.

    Example: search evaluate tinystories 4 --tasks lambada_openai --limit 200
    """
    from graft.exports.huggingface.evaluation import Harness, find_tasks, write_results

    if (study is None or number is None) == (pretrained.pretrained is None):
        raise OptionError("evaluate needs a trial, STUDY N, or --pretrained FOLDER")
    if pretrained.pretrained is None and pretrained.scorer is not None:
        raise OptionError("--scorer goes with --pretrained: a trial has the scorer that it was trained with")
    if pretrained.dtype not in ("float32", "bfloat16", "float16"):
        raise OptionError(f"--dtype: {pretrained.dtype!r} must be one of float32, bfloat16, float16")
    if output is not None:
        check_output(output, False)
    wanted = Harness(
        tasks=[name for text in harness.tasks for name in text.split(",")],
        include=harness.include,
        limit=harness.limit,
        examples=harness.few_shot,
        batch=harness.batch,
        device=retraining.device or "cpu",
    )
    asked = find_tasks(wanted)
    if pretrained.pretrained is not None:
        scores, about = _score_pretrained(pretrained, asked)
    else:
        assert study is not None
        assert number is not None
        scores, about = _score_trial(study, number, variant, retraining, asked)
    if output is not None:
        write_results(scores, output, about)
    show(scores, form)


def _score_trial(
    study: str, number: int, variant: str | None, retraining: RetrainingOptions, asked: Asked
) -> tuple[pl.DataFrame, dict[str, Any]]:
    from cli.progress import training_bar, waiting
    from graft.exports.huggingface.evaluation import evaluate_folder
    from graft.exports.huggingface.exporting import begin_export, finish_export

    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / f"trial_{number}"
        url, device, accept = storage_url(retraining.storage), retraining.device, retraining.accept_changes
        begun = begin_export(url, study, number, folder, variant=variant, device=device, accept_changes=accept)
        say_changes(study, begun.restored.outside)
        with training_bar(number, begun.restored.steps) as watch:
            written = finish_export(begun, watch)
        with waiting("lm-evaluation-harness asks the model"):
            scores = evaluate_folder(folder, asked)
    params = begun.restored.trial.params
    about = {"study": study, "trial": number, "variant": written.variant, "steps": written.steps}
    return scores, about | {name: params[name] for name in ("arm", "seed") if name in params}


def _score_pretrained(pretrained: PretrainedOptions, asked: Asked) -> tuple[pl.DataFrame, dict[str, Any]]:
    import yaml

    from cli.progress import waiting
    from graft.exports.huggingface.evaluation import evaluate_pretrained

    folder, scorer = pretrained.pretrained, None
    assert folder is not None
    if pretrained.scorer is not None:
        try:
            read: Any = yaml.safe_load(pretrained.scorer)
        except yaml.YAMLError as error:
            raise OptionError(f"--scorer: {pretrained.scorer!r} is no YAML") from error
        if isinstance(read, str):
            scorer = {"name": read}
        elif isinstance(read, dict) and len(read) == 1 and isinstance(fields := next(iter(read.values())), dict):
            scorer = {"name": next(iter(read)), **fields}
        else:
            raise OptionError(f"--scorer: {pretrained.scorer!r} must be a name, or 'NAME: {{FIELD: VALUE}}'")
    with waiting("lm-evaluation-harness asks the model"):
        scores = evaluate_pretrained(folder, scorer, pretrained.dtype, asked)
    return scores, {"pretrained": str(folder), "scorer": scorer, "dtype": pretrained.dtype}
