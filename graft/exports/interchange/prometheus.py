"""A database in Prometheus' text format.

Source: "Exposition formats", prometheus.io/docs/instrumenting/exposition_formats, version 0.0.4.
"""

from __future__ import annotations

from typing import NamedTuple, get_args

from graft.stored.status import read_status
from spaces.records import State
from storage.frames import open_reader
from storage.schema import StudyState


class Sample(NamedTuple):
    """A number of a metric, and its labels."""

    metric: str
    labels: dict[str, str]
    value: float


_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
"""Characters that the value of a label may not have as they are."""
_HELP = {
    "graft_study_state": "1 for the state that a study is in, 0 for the others.",
    "graft_trials": "Trials of a study that were started, by state.",
    "graft_trials_planned": "Trials that a study is to have.",
    "graft_steps": "Optimizer steps that the reports of a study stand for; fewer after a retry.",
    "graft_lane_steps": "Optimizer steps that workers made for a study, restarts included.",
    "graft_lane_room": "What these steps would have been with no lane free.",
    "graft_steps_per_second": "Optimizer steps a second of the running trials.",
    "graft_trials_per_minute": "Trials of a study that ended a minute, in the last ten.",
    "graft_workers": "Workers of a study whose lease holds.",
    "graft_best_objective": "The best objective of a study.",
}
"""Each metric of studies, a gauge, in the order in which they are written."""
_HELP_OF_SERVER = {
    "graft_http_processor_seconds": "Processor seconds that the process of HTTP has used.",
    "graft_http_processor_left_seconds": "Processor seconds that answers may take at once; below 0 they wait.",
    "graft_http_waits": "Answers that waited because studies train.",
    "graft_http_wait_seconds": "Seconds for which they waited, together.",
    "graft_http_wait_refusals": "Requests that were refused because they would have waited too long.",
    "graft_http_answers_again": "Answers of a moment ago that were given again.",
}
"""Each metric of a server beside a service."""
_STATES = (*get_args(StudyState), "interrupted")


def prometheus(database: str, study: str | None = None) -> str:
    """Return the standing of a database's studies, without archived ones, as Prometheus' text.

    `study`: only this one. An unknown number, such as the rate of a study that does not run, has no
    line.
    """
    with open_reader(database) as reader, reader.moment():
        studies = reader.studies()
        names = [study] if study else studies.filter(~studies["archived"])["name"].to_list()
        standings = [read_status(reader, name) for name in names]
    samples: dict[str, list[Sample]] = {metric: [] for metric in _HELP}

    def add(metric: str, value: float | None, **labels: str) -> None:
        if value is not None:
            samples[metric].append(Sample(metric, labels, value))

    for now in standings:
        this, progress = now.study, now.progress
        for state in _STATES:
            add("graft_study_state", float(state == now.state), study=this, state=state)
        for state in get_args(State):
            add("graft_trials", progress.counts.get(state, 0), study=this, state=state)
        add("graft_trials_planned", progress.planned, study=this)
        add("graft_steps", progress.steps, study=this)
        add("graft_lane_steps", progress.model_steps, study=this)
        add("graft_lane_room", progress.lane_room, study=this)
        add("graft_steps_per_second", now.steps_per_second, study=this)
        add("graft_trials_per_minute", now.trials_per_minute, study=this)
        add("graft_workers", len(now.workers), study=this)
        best = {"objective": progress.objective, "direction": now.direction}
        add("graft_best_objective", progress.best, study=this, **best)
    return "".join(map(write_metric, samples.keys(), samples.values()))


def write_metric(metric: str, samples: list[Sample]) -> str:
    """Return one of the metrics described here, with all of its samples, which stand together."""
    lines = [f"# HELP {metric} {(_HELP | _HELP_OF_SERVER)[metric]}", f"# TYPE {metric} gauge"]
    for _, labels, value in samples:
        inner = ",".join(f'{name}="{text.translate(_ESCAPES)}"' for name, text in labels.items())
        lines.append(f"{metric}{{{inner}}} {value!r}" if labels else f"{metric} {value!r}")
    return "\n".join(lines) + "\n"
