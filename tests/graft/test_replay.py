"""`search replay`: a trial of any study trains again alone to the bit, and a number that is not its own is found."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graft.retraining.comparison import MetricPair, ReplayComparison, compare, relative_difference
from graft.stored.fingerprints import StoredFingerprint
from spaces.records import Metric, Report
from tests.support.databases import raw
from tests.support.inside import called
from tests.support.launches import search as search_in_a_process
from workers.numerics.version import NUMERICS

SPACE = """
# Fifty trials in float32, of which some are stopped early and some learn so fast that they overflow.
study: mixed
trial:
  magnitude: choice(-3, -2, -1, -1.5, 35)
task: {name: set_complement, length: 3, vocabulary: 7}
model: {name: minimal, width: 8, key_width: 3, value_width: 6, residual_dropout: "uniform(0.1, 0.5)"}
optimizer: {name: adamw, learning_rate: 10 ** $magnitude, schedule: constant}
averaging: {name: bema, eta: "uniform(0, 1)", rho: 10, kappa: 0.5}
training: {steps: "choice(30, 54)", batch: 8, validate_every: 3, validation_batch: 16}
search:
  sampler: random
  stopping: {asha: {min_steps: 12}}
  trials: 50
  objective: {minimize: tvd/bema}
"""
TRIALS = 50
KINDS = {"finished", "pruned", "diverged"}


@dataclass(frozen=True)
class Answer:
    status: int
    out: str
    error: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


Search = Callable[..., Answer]


@pytest.fixture
def search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Search:
    """Run the program inside this process, in a folder with the space mixed.yaml; its exit status must be as said."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mixed.yaml").write_text(SPACE)

    def run(*arguments: object, status: int = 0) -> Answer:
        code, out, error = called(monkeypatch, capfd, *arguments)
        assert code == status, out + error
        return Answer(status, out, error)

    return run


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/graft.db"


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a study of twelve trials."""
    folder = tmp_path_factory.mktemp("launched")
    (folder / "mixed.yaml").write_text(SPACE)
    search_in_a_process(folder, "launch", "mixed.yaml", "--trials", "12", "--workers", "1", "--pack", "3")
    return folder


@pytest.fixture
def small(launched: Path, url: str) -> dict[str, list[int]]:
    """Return a database of its own with that study; state -> numbers, two finished and one diverged at the least."""
    shutil.copytree(launched, Path(url.removeprefix("sqlite:///")).parent, dirs_exist_ok=True)
    states = numbers_by_state(url)
    assert len(states["finished"]) > 1
    assert states["diverged"]
    return states


def numbers_by_state(url: str) -> dict[str, list[int]]:
    states: dict[str, list[int]] = {}
    for number, state in raw(url, "SELECT number, state FROM trials ORDER BY number"):
        states.setdefault(state, []).append(number)
    return states


def stored_values(url: str) -> dict[tuple[Any, ...], float | None]:
    """Every metric in the database, past our code: (number, step, name, variant, condition) -> value."""
    columns = "number, step, name, variant, condition, value"
    rows = raw(url, f"SELECT {columns} FROM metrics JOIN trials ON trials.id = metrics.trial_id")
    return {row[:-1]: row[-1] for row in rows}


def metrics_of(url: str, number: int) -> int:
    """How many metrics of the trial are stored."""
    return sum(key[0] == number for key in stored_values(url))


def check_every_trial(search: Search, url: str) -> None:
    """All trials of the study `mixed` reproduce: every number in the database is the replay's, to the bit."""
    answer = search("replay", "mixed", *range(TRIALS), "--format", "json")
    verdicts = answer.error.splitlines()
    assert verdicts.pop() == "50 of 50 trials reproduced"
    assert all(re.match(r"trial \d+: reproduced: (\d+) of \1 metrics equal to the bit", line) for line in verdicts)
    replayed = {
        (row["number"], row["step"], row["name"], row["variant"], row["condition"]): row["replayed"]
        for row in json.loads(answer.out)
    }
    assert len(replayed) > 1000
    assert replayed == stored_values(url)


@pytest.mark.long
@pytest.mark.parametrize(("width", "workers"), [(2, 1), (5, 2), (16, 1)])
def test_fifty_trials_of_any_pack_reproduce_to_the_bit(search: Search, url: str, width: int, workers: int):
    search("launch", "mixed.yaml", "--executor", "inline", "--pack", width, "--workers", workers)
    states = Counter(state for (state,) in raw(url, "SELECT state FROM trials"))
    assert states.keys() == KINDS
    assert states.total() == TRIALS > width * workers, "lanes are refilled"
    check_every_trial(search, url)


@pytest.mark.long
def test_trials_of_several_shapes_in_one_pack_reproduce_to_the_bit(search: Search, url: str, tmp_path: Path):
    shapes = SPACE.replace("trial:\n", "group: {vocabulary: int(5, 7), width: int(6, 12)}\ntrial:\n")
    shapes = shapes.replace("vocabulary: 7", "vocabulary: $vocabulary").replace("width: 8", "width: $width")
    (tmp_path / "shapes.yaml").write_text(shapes.replace("trials: 50", "trials: 20\n  group: 5"))
    search("launch", "shapes.yaml", "--workers", 1, "--pack", 8, "--set", "training.pad_shapes=true")
    widths = {json.loads(config)["model"]["width"] for (config,) in raw(url, "SELECT config FROM trials")}
    assert len(widths) > 2
    assert search("replay", "mixed", *range(20)).lines[-1] == "20 of 20 trials reproduced"


@pytest.mark.long
def test_the_copies_of_a_population_reproduce_along_their_lines(search: Search, url: str, tmp_path: Path):
    population = SPACE.replace("asha: {min_steps: 12}", "population: {every: 6}").replace("-1.5, 35)", "-1.5, -2.5)")
    (tmp_path / "population.yaml").write_text(population)
    search("launch", "population.yaml", "--trials", 8, "--workers", 1, "--pack", 8)
    copies = [number for (number,) in raw(url, "SELECT number FROM trials WHERE parent IS NOT NULL")]
    assert raw(url, "SELECT count(*) FROM trials WHERE parent >= 8") > [(0,)], "copies of copies"
    assert search("replay", "mixed", *copies).lines[-1] == f"{len(copies)} of {len(copies)} trials reproduced"


@pytest.mark.slow
def test_fifty_trials_of_a_cluster_reproduce_to_the_bit(search: Search, url: str, tmp_path: Path):
    search_in_a_process(tmp_path, "launch", "mixed.yaml", "--executor", "ray", "--pack", "5", "--workers", "2")
    assert numbers_by_state(url).keys() == KINDS
    check_every_trial(search, url)


@pytest.mark.long
def test_a_postgresql_study_reproduces(search: Search, request: pytest.FixtureRequest):
    with request.getfixturevalue("postgres").database() as url:
        search("launch", "mixed.yaml", "--trials", 6, "--workers", 1, "--storage", url)
        assert search("replay", "mixed", *range(6), "--storage", url).lines[-1] == "6 of 6 trials reproduced"


@pytest.mark.long
def test_one_trial_is_shown_with_all_its_numbers_and_the_verdict_last(search: Search, small: dict[str, list[int]]):
    number = small["finished"][0]
    header, *rows, verdict = search("replay", "mixed", number).lines
    assert header.split() == ["step", "name", "variant", "condition", "stored", "replayed", "difference"]
    assert {row.split()[-1] for row in rows} == {"0"}
    assert verdict == f"reproduced: {len(rows)} of {len(rows)} metrics equal to the bit"


def test_a_diverged_trial_diverges_again_at_its_step(search: Search, small: dict[str, list[int]], url: str):
    number = small["diverged"][0]
    [(error,)] = raw(url, f"SELECT error FROM trials WHERE number = {number}")
    assert search("replay", "mixed", number).lines[-1].endswith(f"equal to the bit; {error}, as stored")
    later = error.replace("step ", "step 1")
    raw(url, f"UPDATE trials SET error = '{later}' WHERE number = {number}")
    verdict = search("replay", "mixed", number, status=1).lines[-1]
    assert verdict.startswith(f"differs: stored: {later}, replayed: {error}; ")


def test_a_number_off_by_its_last_bit_is_found(search: Search, small: dict[str, list[int]], url: str):
    changed, other = small["finished"][:2]
    [(step, value)] = raw(
        url,
        "SELECT step, value FROM metrics WHERE name = 'tvd' AND variant = 'bema' "
        f"AND trial_id = 1000000000 + {changed} ORDER BY step LIMIT 1",
    )
    wrong = math.nextafter(value, 1)
    raw(
        url,
        f"UPDATE metrics SET value = {wrong!r} WHERE name = 'tvd' AND variant = 'bema' "
        f"AND trial_id = 1000000000 + {changed} AND step = {step}",
    )
    total = metrics_of(url, changed)
    verdict = search("replay", "mixed", changed, status=1).lines[-1]
    assert verdict.startswith(f"differs: tvd/bema at step {step}: stored {wrong!r}, replayed {value!r} (relative ")
    assert verdict.endswith(f"; {total - 1} of {total} equal; {SAME}")
    lines = search("replay", "mixed", other, changed, status=1).lines
    assert [line.split(": ")[1] for line in lines[:-1]] == ["reproduced", "differs"]
    assert lines[-1] == "1 of 2 trials reproduced"
    assert "differs: " in search("replay", "mixed", changed, "--format", "csv", status=1).error


@pytest.mark.parametrize("change", ["value = NULL", "step = step - 1", "name = 'tv'", "condition = 'length=5'"])
def test_a_stored_number_that_the_replay_does_not_give_is_found(
    search: Search, small: dict[str, list[int]], url: str, change: str
):
    number = small["finished"][0]
    where = f"trial_id = 1000000000 + {number} AND name = 'tvd' AND variant = 'bema' AND step = 30"
    raw(url, f"UPDATE metrics SET {change} WHERE {where}")
    assert search("replay", "mixed", number, status=1).lines[-1].startswith("differs: ")


def test_a_replay_stops_where_it_is_told(search: Search, small: dict[str, list[int]], url: str):
    number = small["finished"][0]
    raw(url, f"UPDATE metrics SET value = 0.5 WHERE trial_id = 1000000000 + {number} AND step > 10")
    rows = json.loads(search("replay", "mixed", number, "--until", 10, "--format", "json").out)
    assert {row["step"] for row in rows} == {3, 6, 9}
    search("replay", "mixed", number, "--until", 12, status=1)


def test_a_running_trial_is_replayed_up_to_its_last_report(search: Search, small: dict[str, list[int]], url: str):
    number = small["finished"][0]
    raw(url, f"UPDATE trials SET state = 'running', steps = 9, objective = NULL WHERE number = {number}")
    assert search("replay", "mixed", number).lines[-1] == "reproduced: 21 of 21 metrics equal to the bit"


def test_another_kind_of_device_is_held_to_a_tolerance(search: Search, small: dict[str, list[int]], url: str):
    number = small["finished"][0]
    [(kind,)] = raw(url, f"SELECT step_kind FROM trials WHERE number = {number}")
    raw(url, "UPDATE trials SET step_kind = 'traced cuda 9.0'")
    said = f"; trained by traced cuda 9.0 steps, replayed by {kind} ones, so bits are not promised"
    verdict = search("replay", "mixed", number, "--device", "cpu").lines[-1]
    assert re.fullmatch(rf"reproduced: (\d+) of \1 metrics within 0.001; largest relative .*{said}", verdict)
    last = f"trial_id = 1000000000 + {number} AND name = 'loss' AND step = 18"
    raw(url, f"UPDATE metrics SET value = value * 1.0005 WHERE {last}")
    verdict = search("replay", "mixed", number, "--device", "cpu").lines[-1]
    assert f"; largest relative difference 5.0e-04 (loss/raw at step 18){said}" in verdict
    raw(url, "UPDATE trials SET step_kind = NULL")  # as one that an earlier version trained
    raw(url, "UPDATE workers SET device = 'cuda:0'")
    verdict = search("replay", "mixed", number, "--device", "cpu").lines[-1]
    assert verdict.endswith("; trained by cuda steps, replayed by cpu ones, so bits are not promised")
    raw(url, f"UPDATE metrics SET value = value * 1.01 WHERE {last}")
    assert search("replay", "mixed", number, "--device", "cpu", status=1).lines[-1].startswith("differs: loss/raw at")


def test_a_trial_that_this_version_reads_otherwise_is_refused(search: Search, small: dict[str, list[int]], url: str):
    number = small["finished"][0]
    [(config, seed)] = raw(url, f"SELECT config, seed FROM trials WHERE number = {number}")
    wider = config.replace('"width":8', '"width":9')
    raw(url, f"UPDATE trials SET config = '{wider}' WHERE number = {number}")
    error = search("replay", "mixed", number, status=2).error
    assert error.startswith(f"error: trial {number} of mixed: model.width is stored as 9, but Graft ")
    assert " reads 8; replay it with Graft " in error
    raw(url, f"UPDATE trials SET config = '{config}', seed = seed + 1 WHERE number = {number}")
    assert f"seed is stored as {seed + 1}, but" in search("replay", "mixed", number, status=2).error


def test_what_cannot_be_replayed_is_one_line_and_status_two(search: Search, small: dict[str, list[int]], url: str):
    number = small["finished"][0]
    cases: dict[tuple[object, ...], str] = {
        ("nope", 1): "study 'nope' does not exist; there are mixed",
        ("mixed", 99): "study 'mixed' has no trial 99; the highest is 11",
        ("mixed", number, "--until", 1): "(finished) has no report up to step 1: there is nothing to compare",
        ("mixed", number, "--device", "tpu"): "--device: 'tpu' is not on this machine",
        ("mixed", number, "--until", 0): "--until",
    }
    for arguments, words in cases.items():
        answer = search("replay", *arguments, status=2)
        assert words in answer.error
        assert answer.error.startswith("error: ")
        assert (answer.error.count("\n"), answer.out) == (1, "")
    raw(url, f"DELETE FROM metrics WHERE trial_id = 1000000000 + {number}")
    raw(url, f"UPDATE trials SET state = 'queued', worker = NULL, steps = 0, objective = NULL WHERE number = {number}")
    assert "(queued) has no report up to step 0" in search("replay", "mixed", number, status=2).error


numbers = st.none() | st.floats(allow_nan=False, allow_infinity=False)


@given(numbers, numbers)
def test_a_difference_is_symmetric_and_zero_for_equal_numbers_alone(first: float | None, second: float | None):
    difference = relative_difference(first, second)
    assert difference == relative_difference(second, first)
    assert difference >= 0
    assert (difference == 0) == (first == second)


def test_numbers_that_are_not_finite_are_equal_to_null():
    reports = [Report(number=0, step=3, metrics=(Metric("tvd", "raw", "", math.nan), Metric("itp", "raw", "", 2.0)))]
    stored = {(3, "tvd", "raw", ""): None, (3, "itp", "raw", ""): 1.0, (3, "itr", "raw", ""): None}
    assert compare(stored, reports) == [
        MetricPair(3, "itp", "raw", "", 1.0, 2.0, 0.5),
        MetricPair(3, "itr", "raw", "", None, None, math.inf),  # not in the replay
        MetricPair(3, "tvd", "raw", "", None, None, 0.0),
    ]


NOW = StoredFingerprint(
    number=0,
    numerics=NUMERICS,
    version="0.2.0",
    code="c0de",
    torch="2.9.0",
    processor="AVX2, some",
    compiler="c++ 14",
    step_kind="native AVX2",
    sources={"averaging bema": "aa", "optimizer adamw": "bb"},
)
SAME = "nothing that determines its numbers has changed (code, plug-ins, torch, steps, processor)"
REPLAYED = ReplayComparison(
    objective=None,
    number=0,
    pairs=[],
    divergence=None,
    replayed_divergence=None,
    trained_step_kind="native AVX2",
    replayed_step_kind="native AVX2",
    fingerprints=[NOW],
    replayed_under=NOW,
)


def test_bits_are_promised_by_one_kind_of_step_and_a_tolerance_elsewhere():
    near, far = (MetricPair(3, "tvd", "raw", "", 0.5, 0.5 - change, 2 * change) for change in (1e-7, 0.01))
    tolerated = [
        replace(REPLAYED, replayed_step_kind="cuda"),
        replace(REPLAYED, trained_step_kind="traced AVX2"),
        replace(REPLAYED, trained_step_kind="traced cuda 9.0", replayed_step_kind="traced cuda 9.0"),
        replace(REPLAYED, fingerprints=[replace(NOW, numerics=NUMERICS - 1)]),
        replace(REPLAYED, fingerprints=[replace(NOW, torch="2.8.0")]),
    ]
    exact = [
        REPLAYED,
        replace(REPLAYED, fingerprints=[replace(NOW, processor="AVX2, other")]),
        replace(REPLAYED, fingerprints=[replace(NOW, code="0ther")]),
        replace(REPLAYED, fingerprints=[replace(NOW, sources={"averaging bema": "cc"})]),
    ]
    assert REPLAYED.reproduced
    for comparison in (*tolerated, *exact):
        reproduced = comparison in tolerated
        assert replace(comparison, pairs=[near]).reproduced == reproduced
        assert replace(comparison, objective=near).reproduced == reproduced
        assert not replace(comparison, pairs=[far]).reproduced
        assert not replace(comparison, objective=far).reproduced


def test_a_replay_on_a_gpu_says_why_bits_are_not_promised():
    near = MetricPair(3, "tvd", "raw", "", 0.5, 0.5 - 1e-7, 2e-7)
    on_gpu = replace(REPLAYED, trained_step_kind="traced cuda 9.0", replayed_step_kind="traced cuda 9.0", pairs=[near])
    assert on_gpu.verdict == (
        "reproduced: 1 of 1 metrics within 0.001; largest relative difference 2.0e-07 (tvd/raw at step 3); "
        "a GPU's sums depend on how wide the pack is, so bits are not promised"
    )


def test_a_replay_that_diverges_where_the_trial_did_not_is_no_replay():
    comparison = replace(REPLAYED, replayed_divergence="x at step 3")
    assert not comparison.reproduced
    assert comparison.verdict == f"differs: stored: no divergence, replayed: x at step 3; 0 of 0 equal; {SAME}"


def test_a_replay_that_differs_names_what_has_changed_and_says_so_if_nothing_has():
    differing = replace(REPLAYED, pairs=[MetricPair(3, "tvd", "raw", "", 0.5, 0.6, 0.2)])

    def last_words(*conditions: StoredFingerprint) -> str:
        return replace(differing, fingerprints=conditions).verdict.partition("; 0 of 1 equal; ")[2]

    assert last_words(NOW) == SAME
    changed = replace(NOW, sources={"averaging bema": "cc", "optimizer adamw": "bb"})
    assert last_words(changed) == "changed since it was trained: the source of averaging bema"
    assert last_words(replace(NOW, processor="AVX2, other")) == (
        "changed since it was trained: processor AVX2, other, now AVX2, some"
    )
    assert last_words(replace(NOW, code="0ther")) == (
        "changed since it was trained: the code of Graft 0.2.0, which was edited"
    )
    assert (
        last_words(replace(NOW, version="0.1.9", code="0ther"))
        == "changed since it was trained: Graft 0.1.9, now 0.2.0"
    )
    mixed = last_words(NOW, replace(changed, number=1))
    assert mixed == "it was trained under 2 fingerprints; changed since: the source of averaging bema"
    unknown = StoredFingerprint(numerics=NUMERICS, version="0.2.0", sources={})
    assert last_words(unknown) == "what determined its numbers was not stored with it"
    assert (
        "trained with torch 2.8.0, replayed with 2.9.0, so bits are not promised"
        in replace(REPLAYED, fingerprints=[replace(NOW, torch="2.8.0")]).verdict
    )
