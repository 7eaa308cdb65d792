"""Scripts that stand alone: trials of all families to write them of, and a Python that knows torch and numpy only."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from graft.plugins.families import family_of
from spaces import plugins
from spaces.plugins.active import current
from spaces.records import Trial
from spaces.settings import Objective
from tests.support.trials import trial
from workers.data.tasks import SetTask, Task, TokenTask, VectorTask
from workers.engine.retraining import retrain

if TYPE_CHECKING:
    from graft.retraining.restored import RestoredTrial

OF_TORCH = "torch torchgen functorch numpy typing_extensions sympy mpmath networkx jinja2 markupsafe fsspec filelock"
"""What a bare environment with torch and numpy can import beside Python's own modules."""

_PROGRAM = '''
import contextlib, io, json, runpy, sys, traceback

KNOWN = {*sys.stdlib_module_names, *sys.argv[1].split()}

class Bare:
    """A finder that finds none of what is installed beside torch."""

    def __init__(self, finder):
        self._finder = finder

    def find_spec(self, name, path=None, target=None):
        known = path is not None or name in KNOWN or name.startswith("_sysconfigdata")
        return self._finder.find_spec(name, path, target) if known else None

    def __getattr__(self, name):
        return getattr(self._finder, name)

sys.meta_path[:] = map(Bare, sys.meta_path)
for line in sys.stdin:
    sys.argv, status, out = json.loads(line), 0, io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as leaving:
        status = leaving.code
    except BaseException:
        status = traceback.format_exc()
    print(json.dumps([status, out.getvalue()]), flush=True)
'''


class Outcome(NamedTuple):
    """What a script left behind."""

    status: int | str
    """Its exit status, or a traceback."""
    lines: list[str]

    @property
    def agreed(self) -> str:
        """The line that says how many metrics agree."""
        return next(line for line in self.lines if "metrics agree" in line)


class Bare:
    """One process that runs scripts one after another: importing torch takes longer than what they do."""

    def __init__(self) -> None:
        command = [sys.executable, "-I", "-c", _PROGRAM, OF_TORCH]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, script: Path, *arguments: object) -> Outcome:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps([str(script), *map(str, arguments)]) + "\n")
        self._process.stdin.flush()
        status, out = json.loads(self._process.stdout.readline())
        return Outcome(status or 0, out.splitlines())

    def close(self) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


def train(planned: Trial) -> RestoredTrial:
    """Return a trial with the metrics that it has when it is trained, as a database would give it."""
    from graft.retraining.restored import RestoredTrial  # needs polars, which a bare GPU machine lacks

    reports = retrain(planned, steps=planned.config["training"]["steps"], device="cpu", watch=lambda _: None)
    rows = [
        (report.step, *metric[:3], metric.value if math.isfinite(metric.value) else None)
        for report in reports
        for metric in report.metrics
    ]
    last = reports[-1]
    return RestoredTrial(
        trial=planned,
        objective=Objective(direction="minimize", metric="loss", variant="raw"),
        row={"state": last.state, "error": last.error},
        metrics=rows,
        steps=last.step,
        trained_on=None,
        fingerprints=[],
        outside=current(),
    )


# ----------------------------------------------------------------------------------------------------------- the trials

_TRAINING = {"steps": 7, "batch": 6, "validate_every": 3, "validation_batch": 10, "dtype": "float64"}
_ADAMW = {"name": "adamw", "learning_rate": 0.05}
_SET_COMPLEMENT = {"name": "set_complement", "length": 4, "vocabulary": 8}
_MINIMAL = {"name": "minimal", "width": 8, "key_width": 4, "value_width": 6}
_LAYERS = {"width": 8, "heads": 2, "depth": 2, "mlp_multiple": 2}
_GPT = {"name": "transformer", **_LAYERS}
_DROPOUTS = {"embedding_dropout": 0.1, "attention_dropout": 0.2, "mlp_dropout": 0.3, "weight_dropout": 0.15}
_REGRESSION: dict[str, Any] = {
    "name": "linear_regression", "dimension": 3, "pairs": 8, "shifts": "input_scale=3; noise=2 pairs=5", "lemma": True,
}  # fmt: skip
_SPLINE = {"name": "spline", "knots": 9, "low": -2, "high": 2}
_FEW = {"linear": {"warmup": 3}, "cosine": {"warmup": 3}, "bema_grid": {"kappas": 2, "etas": 3}}
"""Fields that make a plug-in show in few steps, or small."""


def configuration(**changes: Any) -> dict[str, Any]:
    """Return a small trial; sections replace those of the minimal model on set complement, `training` adds to them."""
    training = {**_TRAINING, **changes.pop("training", {})}
    sections = {"task": _SET_COMPLEMENT, "model": _MINIMAL, "optimizer": _ADAMW, "averaging": {"name": "bema"}}
    return {**sections, "training": training, **changes}


def _model_of(example: dict[str, Any]) -> dict[str, Any]:
    """Return a model that reads the task."""
    task = plugins.build(Task, example)
    if isinstance(task, VectorTask):
        return {"name": "regressor", **_LAYERS}
    if isinstance(task, SetTask):
        return {"name": "attention_pooling", "width": 8}
    assert isinstance(task, TokenTask)
    return _GPT if task.causal else {"name": "encoder", **_LAYERS}


def _of_family(family: str, example: dict[str, Any]) -> dict[str, Any]:
    """Return a trial that uses a plug-in."""
    if family in ("schedule", "averaging"):
        example = {**example, **_FEW.get(example["name"], {})}
    match family:
        case "task":
            return configuration(task=example, model=_model_of(example))
        case "scorer" | "activation" | "position":
            return configuration(model={**_GPT, "heads": 4, "width": 16, family: example})
        case "optimizer":
            shown = {"learning_rate": 0.02, "weight_decay": 0.1, "clip_norm": 0.5}
            return configuration(model=_GPT, optimizer={**example, **shown})
        case "schedule":
            return configuration(optimizer={**_ADAMW, "schedule": example})
        case _:
            return configuration(averaging=example)


_MIXTURES: dict[str, dict[str, Any]] = {
    "minimal with dropout in float32": configuration(
        model={**_MINIMAL, "embedding_dropout": 0.3, "residual_dropout": 0.2}, training={"dtype": "float32"}
    ),
    "gpt with every dropout in float32": configuration(model={**_GPT, **_DROPOUTS}, training={"dtype": "float32"}),
    "masked language": configuration(
        task={"name": "masked_language", "corpus": {"name": "stories", "words": 20_000}, "length": 12, "rare": 50},
        model={"name": "encoder", **_LAYERS},
    ),
    "minimal, padded, dropout of tokens": configuration(
        model={**_MINIMAL, "width": 9, "embedding_dropout": 0.3, "residual_dropout": 0.2, "dropout_unit": "token"},
        training={"pad_shapes": True},
    ),
    "minimal with cosformer": configuration(
        model={**_MINIMAL, "embedding_dropout": 0.3, "scorer": {"name": "cosformer"}}
    ),
    "post-norm with Canon layers": configuration(
        task=_REGRESSION,
        model={
            "name": "regressor", **_LAYERS, "norm": "rms_norm", "query_key_norm": True, "pre_norm": False,
            "canon": "ABCD", "activation": {"name": "swiglu"},
        },
    ),
    "tied, capped, without biases, a spline a layer": configuration(
        model={
            **_GPT, "tied": True, "logit_cap": 3.0, "bias": False, "norm": "rms_norm", "pre_norm": False, "canon": "AD",
            "activation_per_layer": True, "activation": _SPLINE,
        },
    ),
    "attention alone": configuration(model={**_GPT, "mlp_multiple": 0}),
    "linearised attention at temperatures": configuration(
        task=_REGRESSION, model={"name": "linearised_attention", "temperature": 1.5, "temperatures": "0.5 3"}
    ),
    "linear attention": configuration(task=_REGRESSION, model={"name": "linearised_attention", "centred": False}),
    "pooling with muon": configuration(
        task={"name": "max_retrieval", "largest": 64},
        model={"name": "attention_pooling", "width": 8},
        optimizer={"name": "muon", "adjustment": "match_adamw"},
    ),
    "othello from a pool": configuration(task={"name": "othello", "length": 20, "games": 64}, model=_GPT),
    "diagnostics": configuration(model=_GPT, training={"diagnostics": True}),
    "an architecture learned": configuration(
        task={"name": "copying", "length": 4, "validation_length": 5, "test_length": 6, "test_together": True},
        model={**_GPT, "activation": _SPLINE},
        learning={"name": "architecture", "models": 2, "optimizer": {"name": "sgd", "learning_rate": 0.1}},
    ),
    "an architecture learned with lives": configuration(
        task={"name": "add_mod", "modulus": 7},
        model={**_GPT, "activation": _SPLINE, "scorer": {"name": "spline_kernel", "phi": {**_SPLINE, "low": -1}}},
        learning={"name": "architecture", "models": 2, "life": 4, "held_out_one_in": 0},
        training={"steps": 9},
    ),
    "a frozen spline, symmetrised": configuration(
        model={
            **_GPT,
            "activation": {
                **_SPLINE, "start": "given", "frozen": True, "symmetrised": True,
                "values": "0 -0.1 0.2 -0.3 0 0.4 0.9 1.5 2",
            },
        },
    ),
    "it diverges": configuration(
        optimizer={"name": "sgd", "learning_rate": 1e30, "clip_norm": 1e30}, training={"dtype": "float32"}
    ),
}  # fmt: skip


def cases() -> Iterator[tuple[str, dict[str, Any]]]:
    """Name -> configuration: mixtures, then each example of each plug-in that a trial is made of."""
    yield from _MIXTURES.items()
    for family in ("task", "scorer", "activation", "position", "optimizer", "schedule", "averaging"):
        counts = Counter[str]()  # of each plug-in's examples, so that another plug-in renames no case
        for example in plugins.examples(family_of(family)):
            name = f"{family} {example['name']}"
            yield f"{name} {counts[name]}", _of_family(family, example)
            counts[name] += 1


def alone(name: str) -> Trial:
    """Return the trial of one case."""
    return trial(3, dict(cases())[name])
