"""A stored trial as a script, and the data beside it."""

from __future__ import annotations

import pprint
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from graft.exports.cutting.loading import open_file
from graft.exports.cutting.plans import TAIL, list_parts, plan_of
from graft.exports.cutting.shaking import Object, shake
from graft.exports.scripts.standing_in import stand_ins
from graft.files import writing
from graft.plugins.families import packaged_names, version
from graft.retraining.restored import RestoredTrial, restore_trials
from spaces import plugins
from spaces.errors import StudyError
from spaces.plugins.active import using
from storage.frames import open_reader

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from workers.training.recipe import Recipe

_MADE_BEFORE = ("corpus", "tokenizer")
"""Families whose work is done in the data that comes with the script."""
_PACKAGES = ("numpy", "torch")


def data_file(output: Path) -> Path:
    """Return the place of a script's data, `trial.npz` beside `trial.py`."""
    return output.with_suffix(".npz")


def restore_alone(url: str, study: str, number: int, *, accept_changes: bool = False) -> RestoredTrial:
    """Return a trial that `check_alone` lets pass; StudyError for other data, unless accepted."""
    with open_reader(url) as reader:
        [restored] = restore_trials(reader, study, [number], accept_changes=accept_changes)
    check_alone(restored, study)
    return restored


def check_alone(restored: RestoredTrial, study: str) -> None:
    """Raise StudyError for a trial without metrics, with autocast or plug-ins that read files."""
    number = restored.trial.number
    if not restored.metrics and restored.row["state"] != "diverged":
        raise StudyError(f"trial {number} of {study} ({restored.row['state']}) has nothing that a script could check")
    reason = None
    if restored.trial.config["training"].get("autocast", "none") != "none":
        reason = "a script knows no training.autocast"
    with using(restored.outside):
        for part in _parts(_recipe(restored.trial.config)):
            if plugins.code_of(part) is not None and any(plugins.files_of(part)):
                reason = f"{plugins.name_of(part)!r} from outside reads a file"
    if reason:
        message = f"trial {number} of {study} cannot stand alone: {reason}"
        raise StudyError(f"{message}; `search replay` trains the trial again")


def write_script(restored: RestoredTrial, study: str, output: Path) -> list[Path]:
    """Write the script, and its data where it needs some; return the files that were written.

    Raises StudyError if the data is too large for a file, or the code of a plug-in from outside
    does not run by itself.
    """
    from workers.engine.recording import record_data

    with using(restored.outside):
        is_from_outside = any(map(plugins.code_of, _parts(_recipe(restored.trial.config))))
        try:
            arrays = record_data(restored.trial, restored.steps)
        except StudyError as error:
            message = f"trial {restored.trial.number} of {study} cannot stand alone: {error}"
            raise StudyError(message) from error
        text = compose(restored, study, arrays)
    if is_from_outside:
        with TemporaryDirectory() as folder:
            _write(Path(folder) / output.name, text, arrays)
            with open_file(Path(folder) / output.name) as script:
                # One step of each stage, and a validation, which may need what no step does.
                stages = [script.build(_shorten(plan, step)) for step, plan in enumerate(script.STAGES, 1)]
                end = len(stages)
                script.train(stages, evaluation_seed=script.EVALUATION_SEED, until=end, steps={end})
    return _write(output, text, arrays)


def _shorten(plan: Mapping[str, Any], until: int) -> dict[str, Any]:
    """Return the plan of a stage that ends at a step, with a validation there."""
    recipe = plan["recipe"]
    training = {**recipe["training"], "validate_every": 1}
    return {**plan, "until": until, "recipe": {**recipe, "training": training}}


def _write(output: Path, text: str, arrays: Mapping[str, NDArray[Any]]) -> list[Path]:
    import numpy as np

    with writing(output):
        output.write_text(text, encoding="utf-8")
    if not arrays:
        return [output]
    with writing(data_file(output)):
        np.savez_compressed(data_file(output), allow_pickle=False, **arrays)
    return [output, data_file(output)]


def compose(restored: RestoredTrial, study: str, data: Mapping[str, object]) -> str:
    """Return the script's text; `data` is in the file beside it, if there is some."""
    from graft.exports.scripts.comparing import main
    from spaces.settings import Training
    from workers.engine.pack.lane_tensors import evaluation_seed_of
    from workers.engine.recording import read_batch, read_data, read_sets
    from workers.training.plain import Stage, train
    from workers.training.recipe import Recipe

    trial, diagnostics = restored.trial, packaged_names("diagnostic")
    metrics = [row for row in restored.metrics if row[1].partition(" ")[0] not in diagnostics]
    not_computed = sorted({row[1].partition(" ")[0] for row in restored.metrics} & set(diagnostics))
    stages = [
        (member.seed, until, _recipe(member.config))
        for member, until in [*((past, past.until) for past in trial.lineage), (trial, restored.steps)]
    ]
    kinds = dict.fromkeys(type(part) for *_, recipe in stages for part in _parts(recipe))
    parts = [Stage, Recipe, Training, *kinds]
    reading: list[Callable[..., Any]] = [read_data, read_sets, read_batch] if data else []
    task = type(stages[-1][-1].task)
    shaken = shake([main, train, *parts, *reading], [], stand_ins(task, data))
    names, [imports, code] = shaken.names, shaken.text.split("\n\n\n", 1)
    plans = [
        {"class": names[Stage], "seed": seed, "until": until, "recipe": _plan(recipe, names)}
        for seed, until, recipe in stages
    ]
    diverged = restored.row["error"] if restored.row["state"] == "diverged" else None
    ordered = sorted(metrics, key=lambda metric: metric[:4])
    rows = "\n".join(f"    {(step, *name)!r}: {value!r}," for step, *name, value in ordered)
    constants = [
        f"STAGES = {pprint.pformat(plans, width=110, sort_dicts=False)}",
        f"EVALUATION_SEED = {evaluation_seed_of(trial)}",
        f"NOT_COMPUTED = {not_computed!r}",
        f"DIVERGENCE = {diverged!r}",
    ]
    call = f"{names[main]}([build(plan) for plan in STAGES], EVALUATION_SEED, STORED, NOT_COMPUTED, DIVERGENCE)"
    return "\n\n".join(
        [
            _describe(restored, study, shaken.needed(*_PACKAGES), left_out=bool(not_computed), with_data=bool(data)),
            imports,
            *constants,
            f"\n{code}{TAIL.format(classes=', '.join(names[part] for part in parts))}",
            *([f"DATA = {names[read_data]}(__file__)"] if data else []),
            f"STORED = {{\n{rows}\n}}",
            f'if __name__ == "__main__":\n    sys.exit({call})\n',
        ]
    )


def _describe(restored: RestoredTrial, study: str, needed: str, *, left_out: bool, with_data: bool) -> str:
    sentences = [
        f'"""Trial {restored.trial.number} of the study {study}, which stands alone: it needs {needed}.',
        "It trains the trial from its configuration and its seed, and compares its metrics with the stored ones.\n"
        "    python FILE.py            # all steps\n"
        "    python FILE.py 100        # the first 100",
        "It adds in another order than Graft does, and where training is chaotic, rounding grows from step to step.\n"
        "So metrics that differ are compared with what one last bit of the start changes: if they differ by no more\n"
        "than a few times that, they agree (exit status 0), else something is wrong (1).",
    ]
    if with_data:
        sentences.append("FILE.npz, which came with it, has its data.")
    if left_out:
        sentences.append("It computes no diagnostics of attention, and says which of them are stored.")
    return "\n\n".join([*sentences, f'Written by Graft {version()}.\n"""'])


def _recipe(config: Mapping[str, Any]) -> Recipe:
    from workers.training.recipe import Recipe

    return Recipe.of(config)


def _sections(recipe: Recipe) -> Mapping[str, object]:
    """Return section -> plug-in, of all sections but `training`."""
    from workers.training.recipe import SECTIONS

    return {section: getattr(recipe, section) for section in SECTIONS if section != "training"}


def _parts(recipe: Recipe) -> Iterator[object]:
    """Yield every plug-in of a trial that a script needs."""
    for plugin in _sections(recipe).values():
        yield from list_parts(plugin, _MADE_BEFORE)


def _plan(recipe: Recipe, names: Mapping[Object, str]) -> dict[str, Any]:
    """Return a recipe as `build` of the script reads it."""
    fields = plugins.rules(type(recipe.training))
    training = {field: getattr(recipe.training, field) for field in fields}
    return {
        "class": names[type(recipe)],
        **{name: plan_of(plugin, names, _MADE_BEFORE) for name, plugin in _sections(recipe).items()},
        "training": {"class": names[type(recipe.training)], **training},
    }
