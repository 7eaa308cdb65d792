"""A database that Graft 0.1.0 wrote: it is read, brought up, reported on, resumed, and replayed.

`data/graft-0.1.0.db` holds six small studies, launched by `search launch` of 0.1.0 on one worker (their spaces are in
the column `studies.space`); `data/graft-0.1.0.safetensors` is the newest checkpoint file of the one that was stopped.
Hosts and folders were made neutral, nothing else was changed.

minimal      24 trials of the minimal model in three shapes: AdamW, BEMA, both dropouts; some pruned, some diverged
layered      12 trials of a two-layer transformer with two dropouts: softmax at three temperatures, and ssa
population   8 lines, of which 6 were replaced by copies, some of them copies of copies
transfer     46 trials: splines learned on two tasks, carried to three in three forms beside a baseline
conditions   6 trials evaluated under twelve conditions
halted       stopped at step 900 of 1,000 with four trials in the queue, which have checkpoints, and two not started

0.1.0 rounded differently: its steps added in another order. So replays are held to CLOSE, and say so.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import optuna
import pytest

from graft.exports.interchange.optuna_studies import open_storage
from graft.stored.params import StoredParams
from storage import open_reader
from tests.support.databases import raw
from tests.support.inside import called
from workers.numerics.version import NUMERICS

DATA = Path(__file__).parents[1] / "data"
CLOSE = 1e-4
"""Largest relative difference of a metric from what 0.1.0 stored."""
ENDED = {"minimal": 24, "layered": 12, "population": 14, "transfer": 46, "conditions": 6, "halted": 0}
"""Study -> its trials that ended."""
BEST = {
    "minimal": (17, 0.4115201495587826),
    "layered": (0, 0.1111111111111111),
    "population": (13, 0.43972530495375395),
    "conditions": (2, 1.400485918435031),
}
"""Study -> number and objective of its best trial."""
REPLAYED = {
    "minimal": {0: "finished", 1: "pruned", 3: "diverged"},
    "layered": {0: "softmax at temperature 0.5", 2: "softmax at temperature 2", 3: "ssa"},
    "population": {10: "copy of the copy 8", 13: "copy of the copy 9"},
    "transfer": {3: "stage one, learned on seven", 28: "stage two, from seven to five"},
}
"""Study -> the trials that are trained again, and what they are."""
FOLDER = "/graft/checkpoints"
"""Where the halted study's checkpoints are said to lie."""

Search = Callable[..., str]


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Return a copy that may be written."""
    shutil.copy(DATA / "graft-0.1.0.db", tmp_path / "graft.db")
    return f"sqlite:///{tmp_path}/graft.db"


@pytest.fixture
def search(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Search:
    """Run the program beside the copy, once it is brought up; what it wrote to stdout."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEARCH_STORAGE", url)

    def run(*arguments: object, status: int | tuple[int, ...] = 0) -> str:
        code, out, error = called(monkeypatch, capfd, *arguments)
        assert code == status or (isinstance(status, tuple) and code in status), out + error
        assert "Traceback" not in error
        return out

    run("db", "upgrade")
    return run


def check_replay(search: Search, study: str, *numbers: int) -> None:
    """Train these trials again: every stored metric is the replay's, but for the rounding of 0.1.0, which is named."""
    for number in numbers:
        *_, verdict = search("replay", study, number).splitlines()
        assert re.match(r"reproduced: (\d+) of \1 metrics within 0.001; .* made by Graft 0.1.0, whose steps", verdict)
    rows = json.loads(search("replay", study, *numbers, "--format", "json"))
    assert rows
    assert max(row["difference"] for row in rows) <= CLOSE


@pytest.mark.long
@pytest.mark.parametrize("study", REPLAYED)
def test_named_trials_of_every_kind_of_study_replay(search: Search, study: str) -> None:
    check_replay(search, study, *REPLAYED[study])


def test_the_database_is_whole_and_stays_so_when_it_is_brought_up(search: Search, url: str) -> None:
    tables = ("studies", "trials", "metrics", "architectures", "checkpoints", "workers")
    counts = {table: raw(url, f"SELECT count(*) FROM {table}")[0][0] for table in tables}
    assert counts == {
        "studies": 6,
        "trials": 106,
        "metrics": 2532,
        "architectures": 4,
        "checkpoints": 8,
        "workers": 6,
    }
    assert re.search(r": good, \d+ rules looked at\n$", search("db", "check"))
    search("db", "upgrade", "--dry-run")


def test_optuna_tells_the_options_of_0_1_0_apart(search: Search, url: str) -> None:
    """That version wrote `softmax` for softmax at any temperature."""
    study = optuna.load_study(study_name="layered", storage=open_storage(url))
    with open_reader(url) as reader:
        stored = reader.study("layered")
        present = StoredParams(stored).unpack(stored.trials())["params.model.scorer"].to_list()
    assert [trial.params["model.scorer"] for trial in study.trials] == present
    distribution = study.trials[0].distributions["model.scorer"]
    assert isinstance(distribution, optuna.distributions.CategoricalDistribution)
    assert set(distribution.choices) == {
        "{softmax: {temperature: 0.5}}",
        "{softmax: {temperature: 1}}",
        "{softmax: {temperature: 2}}",
        "ssa",
    }


def test_trials_of_0_1_0_have_fingerprints_of_what_is_known_of_them(search: Search, url: str) -> None:
    """Its version and its numerics; one row a study, which all its trials that were trained have."""
    known = raw(url, "SELECT study_id, number, numerics, version, torch, step_kind, sources FROM fingerprints")
    assert sorted(known) == [(study, 0, 1, "0.1.0", None, None, "{}") for study in range(1, 7)]
    assert raw(url, "SELECT DISTINCT fingerprint FROM trials WHERE steps > 0") == [(0,)]


@pytest.mark.long
def test_studies_and_their_best_trials_are_listed(search: Search) -> None:
    rows = {row["name"]: row for row in json.loads(search("studies", "--format", "json"))}
    assert {name: row["ended"] for name, row in rows.items()} == ENDED
    assert {name: row["state"] for name, row in rows.items()} == {
        name: "stopped" if name == "halted" else "finished" for name in ENDED
    }
    assert {name: (rows[name]["best_number"], rows[name]["best"]) for name in BEST} == BEST
    assert all(name in search("studies") for name in ENDED)


@pytest.mark.parametrize("study", ENDED)
def test_a_study_and_its_trials_are_shown(search: Search, study: str) -> None:
    assert f"{ENDED[study]} of {ENDED[study] or 6} ended" in search("status", study)
    listed = search("trials", study).splitlines()
    rows = json.loads(search("trials", study, "--format", "json"))
    assert len(rows) == len(listed) - 1 == (ENDED[study] or 4)
    for number in (0, rows[-1]["number"]):
        assert search("show", study, number).startswith(f"trial {number} of {study}: ")
    shown = json.loads(search("show", study, rows[-1]["number"], "--format", "json"))
    assert shown["metrics"]


@pytest.mark.long
def test_reports_are_written(search: Search, tmp_path: Path) -> None:
    search("report", "study", "minimal", "-o", "minimal.md")
    search("report", "study", "conditions", "-o", "conditions.html")
    search("report", "transfer", "transfer", "-o", "matrix.csv")
    search("report", "transfer", "transfer", "-o", "matrix.html")
    assert all((tmp_path / name).stat().st_size > 1000 for name in ("minimal.md", "conditions.html", "matrix.html"))
    header, *lines = (tmp_path / "matrix.csv").read_text().splitlines()
    columns = header.split(",")
    cells = {tuple(line.split(",")[columns.index(name)] for name in ("source", "target")) for line in lines}
    forms = ("", " symmetrised", " polynomial")
    sources = [f"{task}{form}" for task in ("five", "seven") for form in forms]
    assert cells == {(source, target) for source in sources for target in ("five", "seven", "memorize")}


@pytest.mark.long
def test_plug_ins_of_one_name_are_told_apart(search: Search, tmp_path: Path) -> None:
    """0.1.0 stored `softmax` for each of the three temperatures."""
    rows = json.loads(search("trials", "layered", "--format", "json"))
    shown = [json.loads(search("show", "layered", row["number"], "--format", "json")) for row in rows[:4]]
    configs = [trial["config"] for trial in shown]
    for row, trial in zip(rows, shown, strict=False):
        assert trial["params"]["model.scorer"] == row["params.model.scorer"]
    chosen = {
        row["params.model.scorer"]: config["model"]["scorer"].get("temperature")
        for row, config in zip(rows, configs, strict=False)
    }
    assert len(chosen) == len({*chosen.values()}) >= 3
    assert {row["params.model.scorer"] for row in rows} == {*chosen} | {"ssa"}
    search("export", "layered", "-o", "trials.csv")
    search("report", "study", "layered", "-o", "layered.md")
    for file in ("trials.csv", "layered.md"):
        text = (tmp_path / file).read_text()
        assert all(f"temperature: {temperature:g}" in text for temperature in chosen.values() if temperature), file


@pytest.mark.long
def test_a_stopped_study_goes_on_from_its_checkpoints(
    search: Search, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    [(path,)] = raw(url, "SELECT max(path) FROM checkpoints")
    there = tmp_path / Path(path).relative_to(FOLDER)
    there.parent.mkdir(parents=True)
    shutil.copy(DATA / "graft-0.1.0.safetensors", there)
    raw(url, f"UPDATE checkpoints SET path = replace(path, '{FOLDER}', '{tmp_path}')")
    raw(url, f"UPDATE studies SET checkpoints = '{tmp_path}' WHERE name = 'halted'")
    options = ("--executor", "inline", "--device", "cpu", "--workers", 1, "--pack", 4)
    of_halted = "study_id = (SELECT id FROM studies WHERE name = 'halted')"
    where_study = f"FROM trials WHERE {of_halted}"
    of_study = f"FROM fingerprints WHERE {of_halted}"
    status, _, said = called(monkeypatch, capfd, "resume", "halted", *options)
    assert (status, said.count("\n")) == (2, 1), said
    assert f"error: study 'halted' would not train as before: numerics 1, now {NUMERICS}; resume with --acc" in said
    status, _, said = called(monkeypatch, capfd, "resume", "halted", *options, "--accept-changes")
    assert status == 0, said
    assert (
        f"note: from here on halted is trained otherwise: numerics 1, now {NUMERICS}; the column `fingerprint`" in said
    )
    prints = raw(url, f"SELECT trials.number, fingerprint {where_study} ORDER BY trials.number")
    assert prints == [*((number, 1) for number in range(4)), (4, 2), (5, 2)]
    assert raw(url, f"SELECT number, previous, numerics {of_study} ORDER BY number") == [
        (0, None, 1), (1, 0, NUMERICS), (2, None, NUMERICS)
    ]  # fmt: skip
    where = "FROM {} JOIN studies ON studies.id = study_id WHERE name = 'halted'"
    [(ended, trained)] = raw(url, f"SELECT count(*), sum(trials.steps) {where.format('trials')}")
    [(made,)] = raw(url, f"SELECT sum(workers.steps) {where.format('workers')}")
    assert ended == 6
    assert made == trained, "no step was trained a second time"
    assert search("db", "check").endswith("rules looked at\n")
    check_replay(search, "halted", 3)
