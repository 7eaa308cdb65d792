"""Chosen trials as event files of TensorBoard."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from graft.exports.interchange.logged_trials import LoggedTrial

PACKAGE = "tensorboardX"


def write(trials: Iterable[LoggedTrial], folder: Path, study: str) -> int:
    """Write one run for each trial to a folder of its name in `folder`; return how many.

    Event files hold float32, and one time of day for all validations of a trial: its start.
    """
    from tensorboardX import FileWriter
    from tensorboardX.summary import hparams

    summaries: Any = importlib.import_module("tensorboardX.proto.summary_pb2")
    Summary = summaries.Summary  # noqa: N806 - a class
    count = 0
    for trial in trials:
        writer = FileWriter(str(folder / study / trial.name))
        time, objective = trial.started.timestamp(), trial.facts["objective"]
        for part in hparams(dict(trial.params), {"objective": objective}):
            writer.add_summary(part, 0, time)
        for step, values in trial.validations:
            # The writer's own scalars would replace the = of a condition.
            scalars = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
            writer.add_summary(Summary(value=scalars), step, time)
        last = Summary(value=[Summary.Value(tag="objective", simple_value=objective)])
        writer.add_summary(last, int(trial.facts["steps"]), trial.ended.timestamp())
        writer.close()
        count += 1
    return count
