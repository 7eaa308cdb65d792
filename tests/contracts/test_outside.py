"""Plug-ins from outside the package: a task, a scorer and a sampler, one file each, in `tests/data/outside`.

What is stored with a study is what is run, whatever became of the files; every door for them refuses what it cannot
use in one line.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pytest

from graft.plugins.collecting import plugins_asked_for, plugins_of_space
from graft.plugins.families import FAMILIES, families, family_of, packaged_names
from graft.plugins.stored import plugins_of_study
from graft.testing.writing import write_template
from spaces import load, plugins
from spaces.errors import GraftError, PluginError, StorageError
from spaces.plugins.active import current, using
from spaces.plugins.bundles import Bundle, Outside
from spaces.plugins.importing import explain
from tests.support.databases import raw
from tests.support.inside import called
from tests.support.launches import ROOT, ended, finished, kill, running, search, wait_until
from workers.networks.scorers import Scorer

FILES = Path(__file__).parents[1] / "data" / "outside"
QUICK = ("--trials=3", "--steps=6", "--set=training.validate_every=3", "--device=cpu", "--workers=1", "--pack=2")
CHANGED = r"note: {file} has changed since {study} was launched; what is stored with it is run, `search plugin show"

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the files and a sampler as its template has it, which is the current one."""
    shutil.copytree(FILES, tmp_path / "mine", ignore=shutil.ignore_patterns("__pycache__"))
    write_template("sampler", tmp_path / "mine" / "near.py")
    monkeypatch.chdir(tmp_path / "mine")
    monkeypatch.delenv("SEARCH_STORAGE", raising=False)
    return tmp_path / "mine"


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return lambda *arguments: called(monkeypatch, capsys, *arguments)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an installed package that offers a scorer and an activation, and says so by its entry points."""
    site = tmp_path / "site"
    (site / "extra").mkdir(parents=True)
    (site / "extra" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (site / "extra" / "scorers").mkdir()
    (site / "extra" / "scorers" / "__init__.py").write_text("")
    text = (FILES / "lukewarm.py").read_text().replace("Lukewarm", "Tepid")
    (site / "extra" / "scorers" / "tepid.py").write_text(text)
    (site / "extra-1.2.dist-info").mkdir()
    (site / "extra-1.2.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: extra\nVersion: 1.2\n")
    (site / "extra-1.2.dist-info" / "entry_points.txt").write_text("[graft.plugins]\nextra = extra.scorers\n")
    monkeypatch.syspath_prepend(site)
    return site


# -- a study ---------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_study_of_outside_plug_ins_is_killed_resumed_and_replayed_after_their_files_changed(
    folder: Path, run: Run
) -> None:
    """On two workers, packed; a helper that the task imports changes while the study is down."""
    url = f"sqlite:///{folder}/graft.db"
    arguments = ("launch", "space.yaml", "--workers=2", "--pack=3", "--device=cpu", "--steps=600", "--trials=8")
    with running(folder, *arguments) as process:
        wait_until(lambda: finished(url, "walks") >= 1)
        kill(process)
    assert finished(url, "walks") < 8
    helper = folder / "noise.py"
    helper.write_text(helper.read_text().replace("SCALE = 0.5", "SCALE = 3.0"))
    (folder / "walk.py").unlink()
    with running(folder, "resume", "walks", "--workers=2", "--pack=3", "--device=cpu") as process:
        lines = ended(process, 0)
    notes = [line for line in lines if line.startswith("note: ")]
    assert len(notes) == 1
    assert re.match(CHANGED.format(file=re.escape(str(helper)), study="walks"), notes[0])
    assert finished(url, "walks") == 8
    status, out, error = run("replay", "walks", 0, 7)
    assert status == 0, out
    assert out.count("metrics equal to the bit") == 2
    assert len(re.findall(CHANGED.format(file=re.escape(str(helper)), study="walks"), error)) == 1
    params = [json.loads(text)["model.scorer"] for (text,) in raw(url, "SELECT params FROM trials")]
    assert set(params) == {"softmax", "lukewarm"}
    assert run("trials", "walks", "--where", "params.model.scorer = 'lukewarm'", "--format=csv")[1].count("\n") > 1
    status, out, error = run("launch", "space.yaml")
    assert (status, out) == (2, "")
    assert error.startswith("error: space.yaml:3: plugins: plug-in './walk.py': there is no file")


@pytest.mark.long
def test_a_transfer_carries_outside_plug_ins_and_its_matrix_names_their_task_and_scorer(run: Run) -> None:
    """The task's own space asks for the task, the transfer for the scorer."""
    status, _, error = run("launch", "transfer.yaml", "--device=cpu", "--workers=2")
    assert status == 0, error
    for form in ("csv", "html"):
        assert run("report", "transfer", "walks-transfer", "-o", f"matrix.{form}")[0] == 0
    cells = pl.read_csv("matrix.csv")
    assert {*cells["source"]} == {"short", "long"}
    assert {*cells["target"]} == {"short", "long"}
    status, out, _ = run("replay", "walks-transfer", 0, 6, 15)
    assert status == 0, out
    assert out.count("equal to the bit") == 3


@pytest.mark.long
def test_a_launch_of_a_changed_file_goes_on_with_what_is_stored_and_another_name_takes_the_new(
    folder: Path, run: Run
) -> None:
    assert run("launch", "space.yaml", *QUICK)[0] == 0
    (folder / "lukewarm.py").write_text((folder / "lukewarm.py").read_text() + "\n# more\n")
    file = re.escape(str(folder / "lukewarm.py"))
    assert re.search(CHANGED.format(file=file, study="walks"), run("launch", "space.yaml", *QUICK)[2])
    status, _, error = run("launch", "space.yaml", *QUICK, "--study=newer")
    assert (status, "has changed" in error) == (0, False)
    texts = raw(f"sqlite:///{folder}/graft.db", "SELECT text FROM sources WHERE module = 'lukewarm' ORDER BY study_id")
    assert [text.endswith("# more\n") for (text,) in texts] == [False, True]
    assert run("weights", "walks", 0, "-o", "one.safetensors")[2].startswith("note: ")
    assert run("plugin", "show", "walks", "lukewarm")[1] == texts[0][0]
    status, listed, _ = run("plugin", "show", "walks", "--format=json")
    modules = {row["module"]: row["plugins"] for row in json.loads(listed)}
    assert modules == {"lukewarm": "scorer lukewarm", "near": "sampler near", "noise": "", "walk": "task walk"}
    assert run("plugin", "show", "walks", "nothing")[0] == 2
    assert run("db", "copy", "graft.db", "other.db")[0] == 0
    assert run("replay", "walks", 2, "--storage", "other.db")[0] == 0
    assert run("db", "check")[0] == 0


@pytest.mark.long
def test_a_stored_source_that_was_tampered_with_is_not_run(folder: Path, run: Run) -> None:
    assert run("launch", "space.yaml", *QUICK)[0] == 0
    url = f"sqlite:///{folder}/graft.db"
    raw(url, "UPDATE sources SET text = text || '#' WHERE module = 'walk'")
    with pytest.raises(StorageError, match="another SHA-256"):
        plugins_of_study(url, "walks")
    status, out, error = run("replay", "walks", 0)
    assert (status, out, error.count("\n")) == (2, "", 1)


@pytest.mark.long  # Ray takes ten seconds to start
def test_workers_of_a_cluster_need_no_file(folder: Path) -> None:
    """Its processes start in another folder; they get the sources with their work."""
    search(folder, "launch", "space.yaml", "--executor=ray", "--workers=2", "--pack=3")
    assert finished(f"sqlite:///{folder}/graft.db", "walks") == 16
    for file in folder.glob("*.py"):
        file.unlink()
    search(folder, "replay", "walks", "0", "9", "--device=cpu")


# -- installed packages ----------------------------------------------------------------------------------------------


@pytest.mark.long
def test_an_installed_package_offers_plug_ins_that_are_listed_used_and_stored(
    package: Path, folder: Path, run: Run
) -> None:
    (package / "extra" / "__init__.py").write_text("")
    status, out, error = run("list", "scorers")
    assert (status, error) == (0, "")
    assert "tepid (from extra 1.2): Softmax at `floor` plus the square of what is learned." in out.splitlines()
    origins = {row["name"]: row["origin"] for row in json.loads(run("list", "scorers", "--format=json")[1])}
    assert {*origins.values()} == {"Graft", "extra 1.2"}
    text = (folder / "space.yaml").read_text().replace("lukewarm:", "tepid:")
    (folder / "space.yaml").write_text(text.replace("./lukewarm.py, ", ""))
    assert run("launch", "space.yaml", *QUICK)[0] == 0
    shutil.rmtree(package)
    answer = run("replay", "walks", 0, 1, 2)
    assert answer[0] == 0, answer[1]
    assert "tepid" not in run("list", "scorers")[1]


@pytest.mark.long
def test_a_package_that_pip_installs_is_listed(tmp_path: Path) -> None:
    """A wheel of one scorer and an entry point, installed by pip without a network; nothing names its folder."""
    wheel, site = tmp_path / "extra-1.2-py3-none-any.whl", tmp_path / "site"
    text = (FILES / "lukewarm.py").read_text().replace("Lukewarm", "Tepid")
    files = {
        "extra/__init__.py": "",
        "extra/scorers/__init__.py": "",
        "extra/scorers/tepid.py": text,
        "extra-1.2.dist-info/METADATA": "Metadata-Version: 2.1\nName: extra\nVersion: 1.2\n",
        "extra-1.2.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "extra-1.2.dist-info/entry_points.txt": "[graft.plugins]\nextra = extra.scorers\n",
    }
    record = "extra-1.2.dist-info/RECORD"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in {**files, record: "".join(f"{name},,\n" for name in (*files, record))}.items():
            archive.writestr(name, content)
    pip = ("-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(site), str(wheel))
    subprocess.run([sys.executable, *pip], check=True, capture_output=True)
    listing = subprocess.run(
        [sys.executable, "-m", "graft", "list", "scorers"],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(site)))},
    )
    assert "tepid (from extra 1.2): " in listing.stdout


@pytest.mark.long
def test_a_package_that_is_not_used_is_neither_imported_nor_stored(package: Path, folder: Path, run: Run) -> None:
    """Importing this one raises."""
    assert run("space", "check", "space.yaml", "quick/add")[0] == 0
    assert run("launch", "space.yaml", *QUICK)[0] == 0
    modules = raw(f"sqlite:///{folder}/graft.db", "SELECT module FROM sources ORDER BY module")
    assert [module for (module,) in modules] == ["lukewarm", "near", "noise", "walk"]
    status, out, _ = run("list", "scorers")
    assert status == 0
    assert f"scorer 'tepid' of extra 1.2:16 cannot be imported: {package}/extra/__init__.py:1: RuntimeError" in out
    text = (folder / "space.yaml").read_text().replace("lukewarm:", "tepid:")
    (folder / "space.yaml").write_text(text)
    status, out, error = run("space", "check", "space.yaml")
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert re.match(r"error: space\.yaml:\d+: model\.scorer: scorer 'tepid' of extra 1\.2:16 cannot be", error)


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        ("softmax.py", None, "Graft has a scorer of this name"),
        ("tepid.py", "x = (\n", "SyntaxError"),
        ("tepid.py", "x = 1\n", "no class in it derives from a family's class"),
    ],
)
def test_a_package_that_offers_what_cannot_be_used_is_told_where_a_name_is_asked_for(
    package: Path, run: Run, file: str, text: str | None, reason: str
) -> None:
    scorers = package / "extra" / "scorers"
    source = (scorers / "tepid.py").read_text()
    (scorers / "tepid.py").unlink()
    (scorers / file).write_text(source if text is None else text)
    status, out, error = run("list", "scorers")
    assert (status, error.count("\n")) == (0, 1)
    assert "softmax: " in out
    assert error.startswith("note: the installed package extra 1.2 offers extra.scorers, but ")
    assert reason in error
    status, _, error = run("space", "check", "quick/add", "--plugins=./lukewarm.py")
    assert status == 0, error
    with using(plugins_asked_for()), pytest.raises(PluginError, match=r"'tepid' is no scorer.*extra 1\.2 offers"):
        plugins.load(Scorer, "tepid")


# -- names and files -------------------------------------------------------------------------------------------------


def test_names_are_found_without_importing_in_files_folders_and_packages(folder: Path) -> None:
    (folder / "parts").mkdir()
    (folder / "parts" / "__init__.py").write_text("")
    (folder / "parts" / "_base.py").write_text(
        "from abc import ABC\nfrom workers.networks import scorers\n"
        "class Own(scorers.LogitScorer, ABC):\n    '''A base.'''\n"
    )
    (folder / "parts" / "cool.py").write_text(
        "raise RuntimeError\nfrom ._base import Own as Base\nfrom search.stopping import Stopping\n"
        "class _Not(Base): pass\nclass Cool(Base): pass\nclass Never(Stopping): pass\n"
    )
    for entry in ("parts", "./parts"):
        members = [(m.family, m.name, m.line) for b in plugins_asked_for([entry]).bundles for m in b.members]
        assert members == [("scorer", "cool", 5), ("stopping", "cool", 6)]
    assert [*plugins_asked_for(["parts"]).bundles[0].by_module] == ["parts.cool", "parts", "parts._base"]


def test_files_of_one_folder_share_what_they_import_and_those_of_two_do_not(folder: Path) -> None:
    (folder / "other").mkdir()
    for file in ("lukewarm.py", "walk.py", "noise.py"):
        shutil.copy(folder / file, folder / "other" / file)
    text = (folder / "other" / "walk.py").read_text()
    (folder / "other" / "drift.py").write_text(text.replace("class Walk", "class Drift"))
    (folder / "other" / "noise.py").write_text((folder / "noise.py").read_text().replace("0.5", "0.25"))
    both = plugins_asked_for(["./walk.py", "./lukewarm.py", "./other/drift.py"])
    assert [len(bundle.members) for bundle in both.bundles] == [2, 1]
    with using(both):
        task = family_of("task")
        scales = [sys.modules[plugins.load(task, name).__module__].__dict__["steps_of"] for name in ("walk", "drift")]
        assert [function.__globals__["SCALE"] for function in scales] == [0.5, 0.25]


def test_two_versions_of_a_file_live_side_by_side_and_never_share_a_recording(folder: Path) -> None:
    before = plugins_asked_for(["./lukewarm.py"])
    (folder / "lukewarm.py").write_text((folder / "lukewarm.py").read_text().replace("knob(0.5", "knob(0.75"))
    after = plugins_asked_for(["./lukewarm.py"])
    built = []
    for outside in (before, after, before):
        with using(outside):
            built.append(plugins.build(Scorer, {"name": "lukewarm"}))
    assert [scorer.floor for scorer in built] == [0.5, 0.75, 0.5]
    assert type(built[0]) is type(built[2]) is not type(built[1])
    assert plugins.structure_of(built[0]) != plugins.structure_of(built[1])
    assert not current().bundles
    with pytest.raises(PluginError, match="'lukewarm' is no scorer"):
        plugins.load(Scorer, "lukewarm")


def test_equal_files_in_other_places_are_the_same_code(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "moved")
    packages = [plugins_of_space(str(root / "space.yaml")).bundles[0].package for root in (folder, tmp_path / "moved")]
    assert packages[0] == packages[1]


@pytest.mark.long
def test_an_object_of_an_outside_class_can_be_pickled_to_a_process_that_has_the_sources(folder: Path) -> None:
    outside = plugins_asked_for(["./lukewarm.py"])
    with using(outside):
        content = pickle.dumps((outside, plugins.build(Scorer, {"name": "lukewarm", "floor": 0.9})))
    code = (
        "import pickle, pickletools, sys; from spaces.plugins.active import install; "
        "content = sys.stdin.buffer.read(); install(pickle.loads(content[:int(sys.argv[1])])); "
        "print(pickle.loads(content[int(sys.argv[1]):])[1])"
    )
    first = pickle.dumps(outside)
    command = [sys.executable, "-c", code, str(len(first))]
    done = subprocess.run(command, input=first + content, capture_output=True, cwd=ROOT)
    assert done.stdout.decode() == "Lukewarm(floor=0.9)\n", done.stderr.decode()


def test_what_python_packages_and_graft_have_is_no_local_file(folder: Path) -> None:
    for name in ("random", "torch", "search"):
        (folder / f"{name}.py").write_text("raise RuntimeError\n")
    [bundle] = plugins_asked_for(["./near.py"]).bundles
    assert [*bundle.by_module] == ["near"]


# -- what goes wrong -------------------------------------------------------------------------------------------------

HEAD = (
    "from dataclasses import dataclass\nfrom spaces.plugins.fields import knob\n"
    "from workers.networks.scorers import LogitScorer, masked_softmax\n"
)
CLASS = "@dataclass(frozen=True, kw_only=True)\nclass {name}(LogitScorer):\n    '''x'''\n"
BODY = "    def weigh(self, logits, visible, learned):\n        {line}\n"
BROKEN = {
    "no file": (None, r"plug-in './odd\.py': there is no file .*/odd\.py"),
    "no plug-in": ("x = 1\n", "no class in it derives from a family's class \\(task, model, scorer"),
    "no syntax": ("x = 1\ndef f(:\n", r"/odd\.py:2: SyntaxError"),
    "no UTF-8": (b"x = '\xff'\n", r"/odd\.py:1: byte 0xff is not UTF-8"),
    "too large": (b"#" * ((1 << 20) + 1), "a plug-in's file may have 1,048,576 bytes, this one has 1,048,577"),
    "two scorers": (
        HEAD + CLASS.format(name="One") + BODY.format(line="pass") + CLASS.format(name="Two"),
        r"/odd\.py:\d+: Two is the second scorer of the file, after One in line 5",
    ),
    "no module": (HEAD + "import no_such_module\n" + CLASS.format(name="Odd"), r"odd\.py:4: ModuleNotFoundError"),
    "no method": (HEAD + CLASS.format(name="Odd"), r"scorer 'odd' of \./odd\.py:5: Odd must define weigh"),
    "an error": (HEAD + "1 / 0\n" + CLASS.format(name="Odd"), r"odd\.py:4: ZeroDivisionError: division by zero"),
    "an exit": (HEAD + "raise SystemExit(3)\n" + CLASS.format(name="Odd"), r"odd\.py:4: SystemExit: 3"),
}


@pytest.mark.parametrize(("text", "reason"), BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("command", ["launch", "space check"])
def test_a_file_that_cannot_be_used_is_refused_in_a_line_and_nothing_is_written(
    folder: Path, run: Run, command: str, text: str | bytes | None, reason: str
) -> None:
    if text is not None:
        (folder / "odd.py").write_bytes(text if isinstance(text, bytes) else text.encode())
    space = (folder / "base.yaml").read_text().replace("./walk.py", "[./walk.py, ./odd.py]")
    (folder / "odd.yaml").write_text(space.replace("mlp_multiple: 1", "mlp_multiple: 1, scorer: odd"))
    there = {*folder.iterdir()}
    status, out, error = run(*command.split(), "odd.yaml")
    assert (status, out, error.count("\n")) == (2, "", 1), error
    assert error.startswith("error: odd.yaml:")
    assert re.search(reason, error), error
    assert {*folder.iterdir()} == there


DOORS = {
    "a number": ("plugins: [3]", "plugins: 3 must be a file"),
    "a section": ("plugins: {a: b}", "plugins: {a: b} must be a file"),
    "no module": ("plugins: no.such.thing", "there is no such module here, and none is installed"),
    "no word": ("plugins: ['a b']", "write a file \\(./mine.py\\), a folder \\(./mine\\) or a module"),
    "no name": ("plugins: [./space.yaml]", "the file's name is the plug-in's: letters, digits and _"),
    "ours": ("plugins: [workers.networks.scorers]", "what Graft packages needs not be asked for"),
    "an empty folder": ("plugins: [./nothing]", "there is no file"),
}


@pytest.mark.parametrize(("line", "reason"), DOORS.values(), ids=DOORS)
def test_an_entry_that_names_nothing_is_refused_at_its_line(folder: Path, run: Run, line: str, reason: str) -> None:
    (folder / "odd.yaml").write_text((folder / "base.yaml").read_text().replace("plugins: ./walk.py", line))
    status, out, error = run("launch", "odd.yaml")
    assert (status, out, error.count("\n")) == (2, "", 1), error
    assert re.match(rf"error: odd\.yaml:3: .*{reason}", error), error
    assert not (folder / "graft.db").exists()


def test_a_name_that_exists_is_refused_with_both_origins(folder: Path, run: Run) -> None:
    (folder / "more").mkdir()
    shutil.copy(folder / "lukewarm.py", folder / "more" / "lukewarm.py")
    shutil.copy(folder / "lukewarm.py", folder / "softmax.py")
    for asked, reason in (
        (("./lukewarm.py", "more/lukewarm.py"), "'lukewarm' of more/lukewarm.py:16: this name is taken by scorer "),
        (("./softmax.py",), "scorer 'softmax' of ./softmax.py:16: Graft has a scorer of this name"),
    ):
        status, out, error = run("list", "scorers", *(f"--plugins={entry}" for entry in asked))
        assert (status, out, error.count("\n")) == (2, "", 1)
        assert reason in error


def test_an_error_inside_a_plug_in_is_a_line_with_file_and_line(folder: Path, run: Run) -> None:
    (folder / "lukewarm.py").write_text(HEAD + CLASS.format(name="Odd") + BODY.format(line="return logits.no_such"))
    (folder / "base.yaml").write_text(
        (folder / "base.yaml").read_text().replace("./walk.py", "[./walk.py, ./lukewarm.py]")
        .replace("mlp_multiple: 1", "mlp_multiple: 1, scorer: lukewarm")
    )  # fmt: skip
    status, _, error = run("launch", "base.yaml", "--device=cpu", "--workers=1")
    last = error.splitlines()[-1]
    assert status == 2
    assert "Traceback" not in error
    assert re.match(rf"error: a plug-in failed: {folder}/lukewarm\.py:8: AttributeError: .*no_such", last), error


def test_a_shape_that_is_wrong_elsewhere_is_the_plug_ins(folder: Path, run: Run) -> None:
    (folder / "lukewarm.py").write_text(HEAD + CLASS.format(name="Odd") + BODY.format(line="return logits[..., :1]"))
    (folder / "base.yaml").write_text(
        (folder / "base.yaml").read_text().replace("./walk.py", "[./walk.py, ./lukewarm.py]")
        .replace("mlp_multiple: 1", "mlp_multiple: 1, scorer: lukewarm")
    )  # fmt: skip
    status, out, error = run("launch", "base.yaml", "--device=cpu", "--workers=1")
    assert (status, out, error.count("\n")) == (2, "", 1), error
    assert re.search(r"a trial cannot be computed with .*scorer 'lukewarm' of \./lukewarm\.py:5.*plugin check", error)
    assert not (folder / "graft.db").exists()


def test_a_file_is_not_called_as_a_module_of_python_or_graft(folder: Path, run: Run) -> None:
    for name in ("random", "copy", "graft"):
        (folder / f"{name}.py").write_text(HEAD + CLASS.format(name="Odd") + BODY.format(line="return logits"))
        status, out, error = run("list", "scorers", f"--plugins=./{name}.py")
        assert (status, out, error.count("\n")) == (2, "", 1), error
        assert f"Python or Graft has a module {name!r} of its own; rename the file" in error


def test_errors_of_others_are_not_taken_for_a_plug_ins() -> None:
    assert explain(ValueError("x")) is None
    assert explain(GraftError("x")) is None


# -- templates and checks --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_a_new_file_of_a_family_is_a_plug_in_that_a_space_can_name(family: str, folder: Path, run: Run) -> None:
    status, out, error = run("plugin", "new", family, "my_own.py")
    assert (status, out) == (0, "")
    article = "an" if family in ("activation", "averaging", "objective", "optimizer") else "a"
    assert error.startswith(f"my_own.py: {article} {family}; a space names it by `plugins: [./my_own.py]`")
    with using(plugins_asked_for(["./my_own.py"])) as outside:
        [member] = outside.bundles[0].members
        assert (member.family, member.name) == (family, "my_own")
        assert plugins.load(family_of(family), "my_own").__name__ == "MyOwn"
    assert run("plugin", "new", family, "my_own.py")[0] == 2


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("scorers", "mine.py"), "'scorers' is no family, did you mean 'scorer'?"),
        (("scorer", "softmax.py"), "Graft has a scorer 'softmax'"),
        (("scorer", "my-own.py"), "the file's name is the plug-in's"),
        (("scorer", "no/mine.py"), "there is no folder no"),
        (("scorer", "walk.py"), "walk.py exists"),
    ],
)
def test_a_file_that_cannot_be_begun_is_refused(
    run: Run, folder: Path, arguments: tuple[str, str], reason: str
) -> None:
    there = {*folder.iterdir()}
    status, out, error = run("plugin", "new", *arguments)
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert reason in error
    assert {*folder.iterdir()} == there


@pytest.mark.long
def test_a_check_says_in_words_what_is_kept_and_what_is_broken(folder: Path, run: Run) -> None:
    write_template("schedule", folder / "good.py")
    text = (folder / "good.py").read_text()
    (folder / "bad.py").write_text(text.replace("class Good", "class Bad").replace("** -0.5", "** 0.5"))
    status, out, _ = run("plugin", "check", "good.py")
    assert (status, out.splitlines()[-1]) == (0, "all kept")
    assert "  speed: " in out
    status, out, _ = run("plugin", "check", "bad.py")
    assert (status, out.splitlines()[-1]) == (1, "1 broken")
    assert "BROKEN: No update has a rate of zero or above the peak, however many steps there are. (the factor of" in out


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_begun_keeps_the_contract_of_its_family(family: str, folder: Path, run: Run) -> None:
    assert run("plugin", "new", family, "my_own.py")[0] == 0
    status, out, error = run("plugin", "check", "./my_own.py")
    assert (status, error) == (0, ""), out


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    yield
    assert isinstance(current(), Outside)
    assert not current().bundles


def test_the_table_of_families_has_them_all() -> None:
    """Those that sections name, that parts of their members name, and those that nothing names."""
    reached = {*families().values(), family_of("diagnostic"), family_of("section")}
    waiting = [*reached]
    while waiting:
        family = waiting.pop()
        rules = [rule for name in plugins.names(family) for rule in plugins.rules(plugins.load(family, name)).values()]
        new = {rule.family for rule in rules if rule.family} - reached
        reached |= new
        waiting += new
    assert {plugins.title(family): family for family in reached} == {name: family_of(name) for name in FAMILIES}
    for name in FAMILIES:
        assert packaged_names(name) == list(plugins.names(family_of(name)))


def test_the_files_here_keep_their_contracts_and_the_space_is_good(folder: Path, run: Run) -> None:
    assert run("space", "check", "space.yaml", "transfer.yaml", "base.yaml")[0] == 0
    with using(plugins_of_space("space.yaml")):
        assert load("space.yaml", families()).sample(0, lambda _: 0.9).config["model"]["scorer"]["name"] == "lukewarm"
    assert all(isinstance(bundle, Bundle) for bundle in plugins_of_space("space.yaml").bundles)
