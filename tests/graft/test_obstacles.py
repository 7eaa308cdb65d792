"""Why trials train by a slower step is said where one looks, with what mends it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from graft.launching.planning.estimate import PACK_SECONDS
from graft.plugins.collecting import plugins_asked_for
from graft.testing import DoesNotApply, check
from graft.testing.training import MODELS, PlainLoop, step_with, time_beside_plain_loop, trial_with
from graft.testing.writing import write_template
from spaces.plugins.active import using
from tests.support.inside import called
from tests.support.trials import config, trial
from workers.data.tasks import TokenTask
from workers.engine.machine.process import prepare
from workers.engine.speed import timing

MEND = "a task that says it by position_loss and position_targets trains natively"
SPACE = """\
study: masked
plugins: [./masked.py]
task: {name: masked, length: 6, symbols: 8}
model: {name: transformer, width: 8, depth: 1, heads: 2, mlp_multiple: 1}
optimizer: {name: adamw}
averaging: none
training: {steps: 4, batch: 4, validate_every: 2, validation_batch: 4}
search: {trials: 2, objective: {maximize: accuracy/raw}}
"""


@pytest.fixture
def masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the template of a task, whose loss is masked, without what says so to the compiled steps."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SEARCH_STORAGE", raising=False)
    file = tmp_path / "masked.py"
    write_template("task", file)
    text = file.read_text()
    start, end = text.index("    # The same loss for the compiled steps"), text.index("    def metrics")
    file.write_text(text[:start] + text[end:])
    (tmp_path / "space.yaml").write_text(SPACE)
    return file


def test_a_masked_loss_is_native_as_the_template_has_it(tmp_path: Path) -> None:
    write_template("task", tmp_path / "masks.py")
    with using(plugins_asked_for([str(tmp_path / "masks.py")])):
        assert step_with("task", {"name": "masks", "length": 6, "symbols": 8}) == "native"


@pytest.mark.long
def test_launch_dry_run_and_check_name_what_a_masked_loss_lacks(
    masked: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(timing, "TURNS", 1)
    status, out, error = called(monkeypatch, capsys, "launch", "space.yaml", "--device=cpu", "--dry-run")
    assert status == 0, error
    assert re.search(rf"step +generated: the loss of masked .*{MEND}", out)
    status, _, error = called(monkeypatch, capsys, "launch", "space.yaml", "--device=cpu", "--workers=1", "--pack=2")
    assert status == 0, error
    assert len(re.findall(rf"note: trials train by code generated from a recording, .*{MEND}", error)) == 1
    status, out, _ = called(monkeypatch, capsys, "plugin", "check", str(masked))
    assert status == 0, out
    assert re.search(rf"  step: generated: the loss of masked .*{MEND}", out)


@pytest.mark.parametrize("line", ["        return 'squared'\n", "        return 'margin'\n", None])
def test_the_contract_finds_a_loss_that_is_told_wrongly(tmp_path: Path, line: str | None) -> None:
    write_template("task", tmp_path / "wrong.py")
    text = (tmp_path / "wrong.py").read_text()
    if line is None:
        text = text.replace('weights_of(batch["wanted"], dtype)', 'weights_of(batch["wanted"] | True, dtype)')
    else:
        text = text.replace('        return "cross_entropy"\n', line)
    (tmp_path / "wrong.py").write_text(text)
    with using(plugins_asked_for([str(tmp_path / "wrong.py")])):
        results = {result.check.name: result for result in check("task", {"name": "wrong", "length": 6, "symbols": 8})}
    assert results["position_loss"].verdict == "broken"
    assert "position_loss and position_targets say another loss" in results["position_loss"].reason


COUNTING = '''
from dataclasses import dataclass

from workers.networks.scorers import LogitScorer, masked_softmax


@dataclass(frozen=True, kw_only=True)
class Counting(LogitScorer):
    """Softmax of logits times the number of all keys."""

    def weigh(self, logits, visible, learned):
        return masked_softmax(logits * logits.shape[-1], visible)
'''
NOT_PADDED = """
    @property
    def may_pad(self):
        return False
"""


@pytest.mark.parametrize(("rest", "verdict"), [("", "broken"), (NOT_PADDED, "none")])
def test_the_contract_finds_a_scorer_that_padding_would_change(tmp_path: Path, rest: str, verdict: str) -> None:
    (tmp_path / "counting.py").write_text(COUNTING + rest)
    with using(plugins_asked_for([str(tmp_path / "counting.py")])):
        results = {result.check.name: result for result in check("scorer", {"name": "counting"})}
    assert results["padding"].verdict == verdict
    assert ("may_pad" in results["padding"].reason) is (verdict == "broken")


def test_packs_that_are_timed_beside_one_another_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock of the test's: a machine that gets slower from turn to turn slows all alike."""
    now = [0.0]
    order: list[float] = []
    steps: Mapping[int, float] = {0: 1.0, 1: 4.0}

    def take(pack: Any, count: int, clock: Any) -> float:
        now[0] += 1
        order.append(pack.speed)
        return pack.speed * now[0]

    class Pack:
        def __init__(self, speed: float) -> None:
            self.speed = speed

        def train(self, count: int) -> None:
            pass

    monkeypatch.setattr(timing, "make_pack_of_copies", lambda copied, width, device: Pack(steps[copied.number]))
    monkeypatch.setattr(timing, "_seconds_a_step", take)
    fast, slow = timing.rates_beside([trial(0, config()), trial(1, config())], 8, "cpu")
    assert order == [1.0, 4.0] * (timing.TURNS + 1)
    assert fast / slow == pytest.approx(4, rel=0.1)


def test_the_rate_is_that_of_the_processors_seconds_or_of_a_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """By clocks of the test's, which only training moves: a burst that something slowed does not count."""
    spent = [0.0, 0.0]
    turns = iter([1.0, 1.0, 7.0])

    class Pack:
        running = (0, 1, 2, 3)

        def train(self, count: int) -> None:
            seconds = next(turns, 1.0)
            spent[0] += count * seconds
            spent[1] += 10 * count * seconds

        def evaluate(self, few: object) -> None:
            spent[0] += 3
            spent[1] += 30

    monkeypatch.setattr(timing, "make_pack_of_copies", lambda *_: Pack())
    monkeypatch.setattr(timing, "WARM_UP_STEPS", 1)
    monkeypatch.setattr(timing.time, "thread_time", lambda: spent[0])
    every = 2
    probe = trial(0, config(every=every))
    seconds = 1 + 3 * 2 / every  # a step, and its share of a validation of twice as many lanes as are timed
    rate = timing.model_steps_per_second(probe, width=4, device="cpu", seconds=20)
    assert rate == pytest.approx(4 / seconds)
    by_the_wall = timing.model_steps_per_second(probe, width=4, device="cpu", seconds=200, clock=lambda: spent[1])
    assert by_the_wall == pytest.approx(rate / 10)


@pytest.mark.long
def test_a_module_is_timed_beside_a_plain_loop_that_trains_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "TURNS", 1)
    write_template("model", tmp_path / "net.py", from_module=True)
    with using(plugins_asked_for([str(tmp_path / "net.py")])):
        speed = time_beside_plain_loop({"name": "net"})
        loop = PlainLoop(trial_with("model", {"name": "net"}))
        before = [parameter.detach().clone() for parameter in loop._module.parameters()]
        loop.train(3)
        assert not [old for old, now in zip(before, loop._module.parameters(), strict=True) if torch.equal(old, now)]
    assert speed.rate > 0 < speed.rate_beside
    with pytest.raises(DoesNotApply, match=r"no torch\.nn\.Module"):
        time_beside_plain_loop(MODELS[TokenTask])


@pytest.mark.slow
def test_the_rate_of_a_dry_run_repeats_within_a_fifth() -> None:
    prepare()
    probe = trial_with("scorer", {"name": "softmax"})
    rates = [timing.model_steps_per_second(probe, width=8, device="cpu", seconds=PACK_SECONDS) for _ in range(5)]
    assert max(rates) <= 1.2 * min(rates), rates


@pytest.mark.slow
def test_the_ratio_of_speeds_repeats_within_a_fifth() -> None:
    trials = [trial_with("scorer", {"name": name}) for name in ("entmax", "softmax")]
    ratios = [entmax / softmax for entmax, softmax in (timing.rates_beside(trials, 8, "cpu") for _ in range(5))]
    assert max(ratios) <= 1.2 * min(ratios), ratios
