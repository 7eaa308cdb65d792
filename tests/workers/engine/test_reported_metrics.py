"""The metrics of a large model, found by the shapes of its tensors, are those that a small one reports with numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import Tensor

from graft.launching.planning.reading import read_space
from graft.plugins.collecting import plugins_asked_for
from spaces.plugins.active import using
from spaces.records import Trial
from tests.support.pack import assert_equal_to_the_bit
from tests.support.trials import config
from tests.support.trials import trial as support_trial
from workers.data.tasks import Batch
from workers.data.tasks.affine import Affine
from workers.engine import reported_metrics
from workers.engine.retraining import retrain, weights
from workers.engine.trained_model import trained_model

pytestmark = pytest.mark.fast

SPACES = ("affine", "copying_positions", "linear_attention", "max_retrieval", "set_complement", "transfer/curves")
"""Of the packaged ones under `quick`: losses and models of several kinds, conditions, and a learned architecture."""

LOSS = ("loss", "raw", "")


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


EVERY = {"name": "every", "points": 6, "test_length": 8, "test_length_step": 4, "test_sigma": 1}
REGRESSOR = {"name": "regressor", "width": 8, "heads": 2, "depth": 1, "mlp_multiple": 1}


def test_a_task_that_sums_up_its_metrics_drops_no_diagnostics() -> None:
    """The summary of `every` names all that it returns; diagnostics are reported beside it."""
    plain = {**config(steps=1, every=1, validation_batch=4), "task": EVERY, "model": REGRESSOR}
    watched = {**plain, "training": {**plain["training"], "diagnostics": True}}
    names: list[set[tuple[str, str, str]]] = []
    for configuration in (plain, watched):
        candidate = support_trial(0, configuration)
        [report] = retrain(candidate, steps=1, device="cpu", watch=lambda _: None)
        names.append({metric[:3] for metric in report.metrics})
        assert names[-1] == set(reported_metrics.reported_metrics(candidate))
    added = {("attention_entropy layer=0 head=1", variant, where) for _, variant, where in names[0] - {LOSS}}
    assert names[0] | added < names[1]
    arrays = weights(candidate, variant="raw", steps=1, device="cpu", watch=lambda _: None)
    raw = {name for name, variant, where in names[1] - {LOSS} if (variant, where) == ("raw", "")}
    assert trained_model(candidate, arrays).metrics().keys() == raw


PRICED = '''
from dataclasses import dataclass

from spaces.plugins.fields import knob
from workers.data.tasks.set_complement import SetComplement


@dataclass(frozen=True, kw_only=True)
class Priced(SetComplement):
    """Set complement, with a score that follows from a knob."""

    price: float = knob(1.0, low=0)

    def summary(self, means):
        return {**means, "score": 1 - self.price * means["tvd"]}
'''
SHARED = '''
from dataclasses import dataclass

from spaces.plugins.fields import knob
from workers.training.averaging import Averaging, Variant


@dataclass(frozen=True, kw_only=True)
class Shared(Averaging):
    """An average whose condition is the value of a knob."""

    share: float = knob(0.1, low=0, high=1)

    @property
    def variants(self):
        return (Variant("ema", f"share={self.share:g}"),)

    def start(self, parameters):
        return {"mean": parameters.double()}

    def update(self, shadow, parameters, step):
        return {"mean": shadow["mean"] + self.share * (parameters.double() - shadow["mean"])}

    def average(self, shadow, parameters, step, index):
        return shadow["mean"].to(parameters.dtype)
'''


def test_a_pack_reports_by_each_trials_own_knobs(tmp_path: Path) -> None:
    """What a task sums up and an average calls itself may follow from knobs, which lanes do not share."""
    configurations = [config(steps=1, every=1, validation_batch=4) for _ in range(4)]
    for number, configuration in enumerate(configurations):
        configuration["task"] |= {"name": "priced", "price": 1.0 + number}
        configuration["averaging"] = {"name": "shared", "share": (1 + number) / 8}
    for name, text in (("priced", PRICED), ("shared", SHARED)):
        (tmp_path / f"{name}.py").write_text(text)
    with using(plugins_asked_for([str(tmp_path / "priced.py"), str(tmp_path / "shared.py")])):
        assert_equal_to_the_bit([support_trial(*numbered) for numbered in enumerate(configurations)])


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
