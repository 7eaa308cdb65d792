"""A stored trial as a script, and the data beside it."""

from __future__ import annotations

import pprint
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from graft.exports.scripts.gathering import gather, piece_names
from graft.files import writing
from graft.plugins.families import family_of, packaged_names, version
from graft.retraining.restored import RestoredTrial, restore_trials
from spaces import plugins
from spaces.errors import StudyError
from spaces.plugins.active import using
from spaces.records import Trial
from spaces.settings import Training
from storage.frames import open_reader

_SECTIONS = ("task", "model", "optimizer", "averaging", "learning")
_MADE_BEFORE = ("corpus", "tokenizer")
"""Families whose work is done in the data that comes with the script."""
_WIDTH = 110


def data_file(output: Path) -> Path:
    """`trial.npz` beside `trial.py`."""
    return output.with_suffix(".npz")


def restore_alone(url: str, study: str, number: int, *, accept_changes: bool = False) -> RestoredTrial:
    """Return a trial of which a script can be written.

    Raises StudyError for one that has nothing to compare, that needs a plug-in from outside, or that was trained on
    other data, unless that is accepted.
    """
    with open_reader(url) as reader:
        _, [restored] = restore_trials(reader, study, [number], accept_changes=accept_changes)
    if not restored.metrics and restored.row["state"] != "diverged":
        raise StudyError(f"trial {number} of {study} ({restored.row['state']}) has nothing that a script could check")
    if restored.trial.config["training"].get("autocast", "none") != "none":
        raise StudyError(f"trial {number} of {study} cannot stand alone: a script knows no training.autocast")
    with using(restored.outside):
        for family, name, code in _parts(restored.trial.config):
            if code is not None or class_name(family, name) not in piece_names():
                raise StudyError(
                    f"trial {number} of {study} cannot stand alone: the {family} {name!r} "
                    + ("comes from outside" if code is not None else "has no piece in graft/exports/scripts/pieces")
                    + "; `search replay` trains the trial again"
                )
    return restored


def write_script(restored: RestoredTrial, study: str, output: Path) -> list[Path]:
    """Write the script, and its data where it needs some; the files that were written.

    Raises StudyError if the data is too large for a file.
    """
    import numpy as np

    from workers.engine.recording import record_data

    with using(restored.outside):
        try:
            arrays = record_data(restored.trial, restored.steps)
        except StudyError as error:
            raise StudyError(f"trial {restored.trial.number} of {study} cannot stand alone: {error}") from error
        text = compose(restored, study, with_data=bool(arrays))
    with writing(output):
        output.write_text(text, encoding="utf-8")
    if not arrays:
        return [output]
    with writing(data_file(output)):
        np.savez_compressed(data_file(output), allow_pickle=False, **arrays)
    return [output, data_file(output)]


def compose(restored: RestoredTrial, study: str, *, with_data: bool = False) -> str:
    """Return the script's text."""
    trial, diagnostics = restored.trial, packaged_names("diagnostic")
    metrics = [row for row in restored.metrics if row[1].partition(" ")[0] not in diagnostics]
    not_computed = sorted({row[1].partition(" ")[0] for row in restored.metrics} & set(diagnostics))
    stages: list[dict[str, Any]] = [
        {"seed": one.seed, "until": until, "config": _complete(one.config)}
        for one, until in [*((past, past.until) for past in trial.lineage), (trial, restored.steps)]
    ]
    parts: dict[str, dict[str, str]] = {}
    for stage in stages:
        for family, name, _ in _parts(stage["config"]):
            parts.setdefault(family, {})[name] = class_name(family, name)
    diverged = restored.row["error"] if restored.row["state"] == "diverged" else None
    given = {
        "STAGES": f"STAGES = {_show(stages)}",
        "EVALUATION_SEED": f"EVALUATION_SEED = {_evaluation_seed(trial)}",
        "STORED": "",
        "NOT_COMPUTED": f"NOT_COMPUTED = {not_computed!r}",
        "DIVERGENCE": f"DIVERGENCE = {diverged!r}",
        "PARTS": "",
    }
    classes = [name for named in parts.values() for name in named.values()]
    imports, _, pieces = gather(["main", *classes], given).partition("\n\n\n")
    rows = "\n".join(f"    {(step, *name)!r}: {value!r}," for step, *name, value in sorted(metrics, key=_place))
    return "\n\n".join(
        [
            _describe(restored, study, left_out=bool(not_computed), with_data=with_data),
            f"from __future__ import annotations\n\n{imports}",
            "\n\n".join(given[name] for name in ("STAGES", "EVALUATION_SEED", "NOT_COMPUTED", "DIVERGENCE")),
            f"\n{pieces}\n",
            f"PARTS = {{\n{_table(parts)}\n}}",
            f"STORED = {{\n{rows}\n}}",
            'if __name__ == "__main__":\n    sys.exit(main())\n',
        ]
    )


def _place(metric: tuple[int, str, str, str, float | None]) -> tuple[int, str, str, str]:
    return metric[:4]


def class_name(family: str, name: str) -> str:
    """Return the name of a plug-in's class among the pieces: `SetComplementTask`."""
    return "".join(word.capitalize() for word in (*name.split("_"), family))


def _describe(restored: RestoredTrial, study: str, *, left_out: bool, with_data: bool) -> str:
    sentences = [
        f'"""Trial {restored.trial.number} of the study {study}, which stands alone: it needs torch and numpy.',
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


def _evaluation_seed(trial: Trial) -> int:
    return trial.seed if trial.evaluation_seed is None else trial.evaluation_seed


def _build(config: Mapping[str, Any]) -> Mapping[str, object]:
    """Section -> plug-in. There was no choice of `learning` before there were several ways."""
    whole = {"learning": {"name": "weights"}, **config}
    return {section: plugins.build(family_of(section), whole[section], section) for section in _SECTIONS}


def _complete(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the configuration with every default filled in."""
    training = Training(**config["training"])
    sections = {section: plugins.config_of(plugin) for section, plugin in _build(config).items()}
    return {**sections, "training": {field: getattr(training, field) for field in plugins.rules(Training)}}


def _parts(config: Mapping[str, Any]) -> Iterator[tuple[str, str, str | None]]:
    """Family, name and outside code of every plug-in of a configuration."""
    for section, plugin in _build(config).items():
        yield from _parts_of(section, plugin)


def _parts_of(family: str, plugin: object) -> Iterator[tuple[str, str, str | None]]:
    yield family, plugins.name_of(plugin), plugins.code_of(plugin)
    for field, rule in plugins.rules(type(plugin)).items():
        if rule.family and (inner := plugins.title(rule.family)) not in _MADE_BEFORE:
            yield from _parts_of(inner, getattr(plugin, field))


def _show(value: object) -> str:
    return pprint.pformat(value, width=_WIDTH, sort_dicts=False)


def _table(parts: Mapping[str, Mapping[str, str]]) -> str:
    """Python of family -> name -> class."""
    rows = {
        family: ", ".join(f"{name!r}: {own}" for name, own in sorted(named.items())) for family, named in parts.items()
    }
    return "\n".join(f"    {family!r}: {{{row}}}," for family, row in rows.items())
