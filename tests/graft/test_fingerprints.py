"""A study knows its code: what determined each trial's numbers is stored with it, and a change of it is asked about."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import graft
from graft.plugins.families import FAMILIES, families, family_of
from graft.stored.fingerprints import StoredFingerprint, compare_fingerprints
from spaces import load, plugins
from tests.support.databases import raw
from tests.support.inside import called
from tests.support.launches import ROOT
from workers.engine import fingerprints
from workers.engine.step import method_of
from workers.numerics.version import NUMERICS
from workers.training.recipe import Recipe

OF_TRIALS = "SELECT number, fingerprint FROM trials ORDER BY number"
QUICK = ("--device=cpu", "--workers=1", "--pack=2")

Run = Callable[..., tuple[int, str, str]]


# -- what a worker says ----------------------------------------------------------------------------------------------


def test_the_folders_of_plug_ins_are_those_of_the_families() -> None:
    modules = {family.module for family in FAMILIES.values() if family.module.startswith("workers.")}
    assert modules == {f"workers.{folder.replace('/', '.')}" for folder in fingerprints.FAMILIES}


def test_a_trial_is_of_the_plug_ins_that_it_names_and_of_what_these_share() -> None:
    trial = load("quick/set_complement", families()).sample(0, lambda _: 0.3)
    fingerprint = fingerprints.fingerprint_of(Recipe.of(trial.config), "traced AVX2", fingerprints.torch.device("cpu"))
    names = [name for name, _ in fingerprint.sources]
    assert {"task set_complement", "model minimal", "averaging bema", "optimizer adamw"} <= {*names}
    assert names == sorted(names)
    assert (fingerprint.numerics, fingerprint.compiler) == (NUMERICS, "")
    assert all(
        re.fullmatch("[0-9a-f]{16}", digest) for digest in (fingerprint.code, *dict(fingerprint.sources).values())
    )


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """Return a copy of what trains, whose digests are not remembered."""
    shutil.copytree(ROOT / "workers", tmp_path / "workers", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "workers"


@pytest.mark.parametrize(
    ("file", "code", "plugin"),
    [
        ("training/averaging/ema.py", False, True),  # bema takes its average from there
        ("training/averaging/bema.py", False, True),
        ("training/averaging/none.py", False, False),
        ("training/recipe.py", True, False),
        ("numerics/native/minimal.hpp", True, False),
        ("pool/worker.py", False, False),
    ],
)
def test_a_digest_changes_with_what_it_is_of(
    copied: Path, monkeypatch: pytest.MonkeyPatch, file: str, code: bool, plugin: bool
) -> None:
    monkeypatch.setattr(fingerprints.workers, "__file__", str(copied / "__init__.py"))
    bema = plugins.load(family_of("averaging"), "bema")

    def digests() -> tuple[str, str]:
        fingerprints.code_digest.cache_clear()
        fingerprints._packaged_digest.cache_clear()  # pyright: ignore[reportPrivateUsage]
        return fingerprints.code_digest(), fingerprints.source_digest(bema)

    before = digests()
    (copied / file).write_text((copied / file).read_text() + "\n")
    after = digests()
    monkeypatch.undo()
    fingerprints.code_digest.cache_clear()
    fingerprints._packaged_digest.cache_clear()  # pyright: ignore[reportPrivateUsage]
    assert [old != new for old, new in zip(before, after, strict=True)] == [code, plugin]


# -- what is compared ------------------------------------------------------------------------------------------------

NOW = StoredFingerprint(
    number=0,
    numerics=NUMERICS,
    version="0.2.0",
    code="c0de",
    torch="2.9.0",
    processor="AVX2, some",
    compiler="c++ 14",
    step_kind="native AVX2, traced AVX2",
    sources={"averaging bema": "aa", "scorer ssa": "bb"},
)


@pytest.mark.parametrize(
    ("change", "deciding", "other"),
    [
        ({}, [], []),
        ({"numerics": 1}, [f"numerics 1, now {NUMERICS}"], []),
        ({"torch": "2.8.0"}, ["torch 2.8.0, now 2.9.0"], []),
        ({"step_kind": "native AVX512"}, ["native steps, now traced ones"], []),
        ({"step_kind": "traced cuda 9.0"}, ["traced cuda steps, now traced ones"], []),
        ({"sources": {"averaging bema": "a2", "averaging ema": "cc"}}, ["the source of averaging bema"], []),
        ({"processor": "AVX512, other"}, [], ["processor AVX512, other, now AVX2, some"]),
        ({"compiler": "c++ 13"}, [], ["compiler c++ 13, now c++ 14"]),
        ({"version": "0.1.9", "code": "0ther"}, [], ["Graft 0.1.9, now 0.2.0"]),
        ({"code": "0ther"}, [], ["the code of Graft 0.2.0, which was edited"]),
        (dict.fromkeys(("version", "code", "torch", "processor", "compiler", "step_kind")), [], []),
    ],
)
def test_what_moves_numbers_decides_and_the_rest_is_told(
    change: dict[str, object], deciding: list[str], other: list[str]
) -> None:
    before = replace(NOW, **change)  # type: ignore[arg-type]
    comparison = compare_fingerprints([before], NOW)
    assert ([*comparison.deciding], [*comparison.other]) == (deciding, other)
    assert comparison.voids_promise == bool({"numerics", "torch"} & change.keys() and deciding)
    assert not compare_fingerprints([before, NOW], NOW).all, "what was accepted before is not asked about again"


# -- a study that goes on --------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEARCH_STORAGE", "graft.db")
    return lambda *arguments: called(monkeypatch, capsys, *arguments)


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a database with a study of which two trials ended and the third has yet to be trained."""
    folder = tmp_path_factory.mktemp("launched")
    command = [
        sys.executable,
        "-c",
        "from cli.main import main; main()",
        "launch",
        str(ROOT / "tests/support/tiny_space.yaml"),
    ]
    environment = {**os.environ, "SEARCH_STORAGE": f"{folder}/graft.db"}
    subprocess.run([*command, "--trials=3", *QUICK], check=True, env=environment, cwd=ROOT, capture_output=True)
    reopen(f"sqlite:///{folder}/graft.db")
    return folder / "graft.db"


def reopen(url: str) -> None:
    raw(url, "UPDATE studies SET state = 'stopped', steps = steps - (SELECT steps FROM trials WHERE number = 2)")
    raw(url, "DELETE FROM metrics WHERE trial_id = (SELECT id FROM trials WHERE number = 2)")
    raw(url, "DELETE FROM trials WHERE number = 2")


@pytest.fixture
def url(launched: Path, tmp_path: Path) -> str:
    """Return a copy of it, in the folder where `run` is."""
    shutil.copy(launched, tmp_path / "graft.db")
    return f"sqlite:///{tmp_path}/graft.db"


DECIDING = {
    "numerics = 1": f"numerics 1, now {NUMERICS}",
    "torch = '2.0.0'": r"torch 2\.0\.0, now \S+",
    'sources = replace(sources, \'"averaging bema":"\', \'"averaging bema":"x\')': "the source of averaging bema",
    "step_kind = 'traced cuda 9.0'": "traced cuda steps, now (native|traced) ones",
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("change", DECIDING)
def test_a_study_does_not_go_on_otherwise_than_before_unless_that_is_accepted(run: Run, url: str, change: str) -> None:
    raw(url, f"UPDATE fingerprints SET {change}")
    before = Path(url.removeprefix("sqlite:///")).read_bytes()
    for command in (("resume", "tiny"), ("launch", ROOT / "tests/support/tiny_space.yaml", "--trials=3")):
        status, out, error = run(*command, *QUICK)
        assert (status, out, error.count("\n")) == (2, "", 1), error
        asked = f"error: study 'tiny' would not train as before: {DECIDING[change]}; resume with --accept-"
        assert re.match(asked, error), error
    assert Path(url.removeprefix("sqlite:///")).read_bytes() == before
    status, _, error = run("resume", "tiny", *QUICK, "--accept-changes")
    assert status == 0, error
    assert re.search(f"note: from here on tiny is trained otherwise: {DECIDING[change]}; the column `finger", error)
    assert raw(url, OF_TRIALS) == [(0, 0), (1, 0), (2, 1)]
    listed = run("trials", "tiny")[1].splitlines()
    assert "fingerprint" in listed[0]
    counted = run("query", "SELECT fingerprint, count(*) AS n FROM trials GROUP BY 1 ORDER BY 1", "--format=csv")[1]
    assert counted.split() == ["fingerprint,n", "0,2", "1,1"]
    assert run("report", "study", "tiny", "-o", "report.md")[0] == 0
    page = Path("report.md").read_text()
    assert "## How the trials were computed" in page
    assert "Not all trials were computed alike" in page or change.startswith("step_kind")
    assert f"fingerprint 1: Graft {raw(url, 'SELECT version FROM studies')[0][0]}, " in run("show", "tiny", 2)[1]
    reopen(url)
    status, _, error = run("resume", "tiny", *QUICK)
    assert (status, "otherwise" in error) == (0, False), "it was accepted before"
    assert run("db", "check")[0] == 0
    assert run("db", "copy", "graft.db", "copy.db")[0] == 0


OTHER = {
    "processor = 'AVX, old'": r"note: tiny was trained by processor AVX, old, now \S+, ",
    "version = '0.1.9'": "note: tiny was trained by Graft 0.1.9, now ",
    "code = 'x'": "note: tiny was trained by the code of Graft .*, which was edited",
}


@pytest.mark.parametrize("change", OTHER)
def test_what_does_not_move_numbers_is_told_and_the_study_goes_on(run: Run, url: str, change: str) -> None:
    raw(url, f"UPDATE fingerprints SET {change}")
    status, _, error = run("resume", "tiny", *QUICK)
    assert status == 0, error
    assert re.match(OTHER[change], error), error
    assert raw(url, OF_TRIALS)[2] == (2, 1)


def test_python_says_what_a_command_says(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    raw(url, "UPDATE fingerprints SET processor = 'AVX, old'")
    graft.open(url)["tiny"].resume(run=graft.Run(device="cpu", workers=1, pack=2))
    assert re.match(OTHER["processor = 'AVX, old'"], capsys.readouterr().err)


def test_a_study_that_goes_on_as_before_is_not_asked_about(run: Run, url: str) -> None:
    status, _, error = run("resume", "tiny", *QUICK)
    assert (status, error.startswith("study tiny in ")) == (0, True)
    assert {number for _, number in raw(url, OF_TRIALS)} <= {0, 1}
    assert "fingerprint" not in run("trials", "tiny")[1].splitlines()[0]
    assert "How the trials were computed" not in run("report", "study", "tiny", "-o", "report.md")[1]


def test_a_replay_that_differs_says_whether_anything_has_changed(run: Run, url: str) -> None:
    raw(url, "UPDATE metrics SET value = value * 1.5 WHERE name = 'loss'")
    verdict = run("replay", "tiny", 0)[1].splitlines()[-1]
    assert "; nothing that determines its numbers has changed (code, plug-ins, torch, steps, processor)" in verdict
    raw(url, 'UPDATE fingerprints SET sources = replace(sources, \'"averaging bema":"\', \'"averaging bema":"x\')')
    status, out, _ = run("replay", "tiny", 0)
    assert status == 1
    assert out.splitlines()[-1].endswith("; changed since it was trained: the source of averaging bema")


def test_how_a_trial_would_train_is_what_its_pack_says(url: str, run: Run) -> None:
    [(config, kind)] = raw(url, "SELECT config, step_kind FROM trials WHERE number = 0")
    assert kind.startswith(f"{method_of(json.loads(config), 'cpu')} ")


# -- code that changes under a study ---------------------------------------------------------------------------------


@pytest.mark.long
def test_a_formula_that_changes_between_launches_is_noticed(tmp_path: Path) -> None:
    """Fails on 0.1.0, which went on: two thirds of the metrics then came from one formula, a third from another."""
    for package in ("cli", "graft", "graft_search", "search", "spaces", "storage", "workers"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    environment = {**os.environ, "SEARCH_STORAGE": f"{tmp_path}/graft.db", "PYTHONPATH": str(tmp_path)}

    def search(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, "-c", "from cli.main import main; main()", *arguments, *QUICK]
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
        return done.returncode, done.stderr

    assert search("launch", str(ROOT / "tests/support/tiny_space.yaml"), "--trials=3")[0] == 0
    url = f"sqlite:///{tmp_path}/graft.db"
    reopen(url)
    bema = tmp_path / "workers/training/averaging/bema.py"
    bema.write_text(bema.read_text().replace("-self.eta", "-2 * self.eta"))
    status, error = search("resume", "tiny")
    assert (status, error.count("\n")) == (2, 1), error
    assert "would not train as before: the source of averaging bema" in error
    assert search("resume", "tiny", "--accept-changes")[0] == 0
    assert raw(url, OF_TRIALS) == [(0, 0), (1, 0), (2, 1)]


@pytest.fixture
def outside(tmp_path: Path, run: Run) -> Path:
    """Return a study of plug-ins from outside, of which two trials ended; the file of one of them has changed since."""
    shutil.copytree(ROOT / "tests/data/outside", tmp_path / "mine", ignore=shutil.ignore_patterns("__pycache__"))
    space = (tmp_path / "mine/space.yaml").read_text().replace(", ./near.py", "").replace("near", "random")
    (tmp_path / "mine/space.yaml").write_text(space)
    short = ("--trials=3", "--steps=6", "--set=training.validate_every=3")
    status, _, error = run("launch", "mine/space.yaml", *QUICK, *short)
    assert status == 0, error
    reopen(f"sqlite:///{tmp_path}/graft.db")
    noise = tmp_path / "mine/noise.py"
    noise.write_text(noise.read_text().replace("SCALE = 0.5", "SCALE = 0.75"))
    return noise


@pytest.mark.long
def test_changed_files_are_run_only_if_accepted_and_each_trial_is_replayed_by_its_own(run: Run, outside: Path) -> None:
    url = f"sqlite:///{outside.parents[1]}/graft.db"
    changed = f"{outside} has changed since walks was launched; what is stored with it is run"
    status, _, error = run("resume", "walks", *QUICK)
    assert (status, error.count(changed)) == (0, 1)
    assert {number for _, number in raw(url, OF_TRIALS)} == {0}
    reopen(url)
    status, _, error = run("resume", "walks", *QUICK, "--accept-changes")
    assert status == 0, error
    assert f"note: from here on walks runs {outside.parent}/" in error
    assert "the source of scorer lukewarm, task walk" in error or "the source of task walk" in error
    assert changed not in error
    assert raw(url, OF_TRIALS) == [(0, 0), (1, 0), (2, 1)]
    outside.write_text("SCALE = 'gone'\n")
    status, out, error = run("replay", "walks", 0, 1, 2)
    assert (status, out.count("equal to the bit")) == (0, 3), out
    assert error.count(changed) == 1
    rows = json.loads(run("plugin", "show", "walks", "--format=json")[1])
    assert [row["state"] for row in rows if row["module"] == "noise"] == ["in use", "replaced"]
    assert "SCALE = 0.75" in run("plugin", "show", "walks", "noise")[1]
    assert run("db", "check")[0] == 0
    assert run("db", "copy", "graft.db", "copy.db")[0] == 0
    assert run("replay", "walks", 0, 2, "--storage", "copy.db")[0] == 0


def test_a_changed_file_that_cannot_be_used_is_refused_in_a_line(run: Run, outside: Path) -> None:
    (outside.parent / "walk.py").write_text("def (:\n")
    status, out, error = run("resume", "walks", *QUICK, "--accept-changes")
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert re.match(r"error: .*walk\.py:1: SyntaxError", error), error
    url = f"sqlite:///{outside.parents[1]}/graft.db"
    assert raw(url, "SELECT count(*) FROM sources WHERE successor IS NOT NULL") == [(0,)]
