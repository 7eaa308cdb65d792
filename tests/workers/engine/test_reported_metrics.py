"""The metrics of a large model, found by the shapes of its tensors, are those that a small one reports with numbers."""

from __future__ import annotations

import pytest
from torch import Tensor

from graft.launching.planning.reading import read_space
from spaces.records import Trial
from workers.data.tasks import Batch
from workers.data.tasks.affine import Affine
from workers.engine import reported_metrics

pytestmark = pytest.mark.fast

SPACES = ("affine", "copying_positions", "linear_attention", "max_retrieval", "set_complement", "transfer/curves")
"""Of the packaged ones under `quick`: losses and models of several kinds, conditions, and a learned architecture."""


def trial_of(name: str) -> Trial:
    return read_space(f"quick/{name}", {}).sample(0, lambda _: 0.5)


def by_shapes(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, str]]:
    """Return the metrics found as those of a large model are."""
    monkeypatch.setattr(reported_metrics, "LARGEST_EVALUATED", 0)
    return reported_metrics.reported_metrics(trial)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", SPACES)
def test_shapes_give_the_metrics_that_numbers_give(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = trial_of(name)
    expected = reported_metrics.reported_metrics(trial)
    assert len(expected) > 1
    assert by_shapes(trial, monkeypatch) == expected


def test_a_task_that_reads_a_number_is_evaluated_with_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    trial, metrics, read = trial_of("affine"), Affine.metrics, list[float]()
    expected = reported_metrics.reported_metrics(trial)

    def read_a_number(task: Affine, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        read.append(outputs.sum().item())
        return metrics(task, outputs, batch)

    monkeypatch.setattr(Affine, "metrics", read_a_number)
    assert by_shapes(trial, monkeypatch) == expected
    assert read


def test_an_error_of_a_task_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(task: Affine, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        raise ValueError("no metrics today")

    monkeypatch.setattr(Affine, "metrics", fail)
    with pytest.raises(ValueError, match="no metrics today"):
        by_shapes(trial_of("affine"), monkeypatch)
