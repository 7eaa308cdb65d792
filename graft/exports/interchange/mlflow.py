"""Chosen trials as runs of MLflow: an experiment in a SQLite file, `mlflow.db`."""

from __future__ import annotations

import importlib
import logging
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from graft.exports.interchange.logged_trials import LoggedTrial

PACKAGE = "mlflow"
FILE = "mlflow.db"
_METRICS = 1_000
_PARAMS = 100
"""Metrics and params that MLflow takes at once, at most."""
_REFUSED = re.compile(r"[^\w./: -]")


def write(trials: Iterable[LoggedTrial], folder: Path, study: str) -> int:
    """Write a run per trial into the experiment `study`, `:` for `=` in names; return how many."""
    mlflow: Any = importlib.import_module("mlflow")
    entities: Any = importlib.import_module("mlflow.entities")
    logging.getLogger("mlflow").setLevel(logging.WARNING)  # it tells each table that it makes
    folder = folder.absolute()
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{folder / FILE}")
    location = (folder / "artifacts").as_uri()
    experiment = client.create_experiment(study, artifact_location=location)
    count = 0
    for trial in trials:
        start, end = (round(time.timestamp() * 1000) for time in (trial.started, trial.ended))
        tags = {name: str(value) for name, value in trial.facts.items()}
        created = client.create_run(experiment, start_time=start, tags=tags, run_name=trial.name)
        run = created.info.run_id
        values = {**trial.config, **trial.params}
        params = [entities.Param(_name(path), str(value)) for path, value in values.items()]
        for first in range(0, len(params), _PARAMS):
            client.log_batch(run, params=params[first : first + _PARAMS])
        metrics = [
            entities.Metric(_name(name), value, start, step)
            for step, values in trial.validations
            for name, value in values.items()
        ]
        for first in range(0, len(metrics), _METRICS):
            client.log_batch(run, metrics=metrics[first : first + _METRICS])
        client.set_terminated(run, "FINISHED", end)
        count += 1
    return count


def _name(name: str) -> str:
    return _REFUSED.sub(":", name)
