"""Data is part of a trial's identity: a byte that changes in what a study reads is noticed, or does no harm."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graft.plugins.collecting import plugins_of_space
from graft.plugins.families import families
from spaces import load
from spaces.errors import PluginError
from spaces.plugins import digests
from spaces.plugins.active import current, using
from spaces.plugins.bundles import Outside
from spaces.plugins.digests import read_data, state_of
from spaces.plugins.files import FilePath, find_file
from tests.databases import raw
from tests.inside import called

FILES = Path(__file__).parent / "outside"
REST = """
model: {transformer: {width: 8, depth: 1, heads: 1}}
optimizer: {adam: {learning_rate: "10 ** uniform(-3, -2)"}}
training: {steps: 4, validate_every: 2, batch: 4, validation_batch: 4}
search: {trials: 2, seed: 1, objective: {minimize: loss/raw}, sampler: random}
"""
TASKS = {
    "file": "task: {language: {corpus: {file: {path: text/a.txt}}, length: 8, rare: 1}}",
    "folder": "task: {language: {corpus: {file: {path: text}}, length: 8, rare: 1}}",
    "probes": "task: {language: {corpus: {stories: {words: 2000}}, length: 8, rare: 1, probes: probes}}",
    "outside": "plugins: ./pairs.py\ntask: {pairs: {table: table.npz}}",
}
EDITED = {"file": "text/a.txt", "folder": "text/b.txt", "probes": "probes/one.txt", "outside": "table.npz"}
NAMED = {"file": "text/a.txt", "folder": "text/b.txt", "probes": "probes/one.txt", "outside": "table.npz"}
WORKERS = ("--device=cpu", "--workers=1", "--pack=2")

Search = Callable[..., tuple[int, Any, Any]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a space of each kind of data, and another one that is the current one."""
    place = tmp_path / "spaces"
    (place / "text").mkdir(parents=True)
    (place / "probes").mkdir()
    for name in "ab":
        lines = (f"{name} says that {number} times {number} is {number * number}\n" for number in range(120))
        (place / "text" / f"{name}.txt").write_text("".join(lines))
    (place / "text" / "notes.md").write_text("not read")
    (place / "probes" / "one.txt").write_text("the dogs was happy .\nthe dogs were happy .\n")
    np.savez(place / "table.npz", values=np.arange(8)[::-1])
    shutil.copy(FILES / "pairs.py", place)
    for kind, task in TASKS.items():
        (place / f"{kind}.yaml").write_text(f"study: {kind}\n{task}{REST}")
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.delenv("SEARCH_STORAGE", raising=False)
    return place


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Search:
    def run(*arguments: object) -> tuple[int, Any, Any]:
        # These alone train, and are told where.
        options = WORKERS if arguments[0] in ("launch", "resume") else ()
        return called(monkeypatch, capsys, *arguments, *options)

    return run


def change_byte(path: Path) -> None:
    """Another byte of the same length; of an .npz in its last array."""
    content = bytearray(path.read_bytes())
    place = content.rindex(b"\x01\x00") if path.suffix == ".npz" else content.index(b"s")
    content[place] ^= 2
    path.write_bytes(content)


@pytest.mark.parametrize("kind", ["file", "outside", pytest.param("folder", marks=pytest.mark.long), "probes"])
def test_one_byte_between_launch_and_resume_is_refused_in_one_line(folder: Path, search: Search, kind: str) -> None:
    assert search("launch", folder / f"{kind}.yaml")[0] == 0
    path = folder / EDITED[kind]
    before = state_of(path)
    # A time that alone is another one is no change, nor a file of the folder that is not read.
    os.utime(path, ns=(1, before.modified + 10**9))
    (folder / "text" / "notes.md").write_text("not read, still")
    status, _, error = search("resume", kind, "--trials=3")
    assert status == 0, error
    change_byte(path)
    status, _, error = search("resume", kind, "--trials=4")
    assert status == 2
    [line] = [line for line in error.splitlines() if line.startswith("error: ")]
    after = state_of(path)
    assert line.startswith(f"error: study '{kind}' would not train as before: {NAMED[kind]} had ")
    for state in (before, after):
        assert f"{state.size:,} bytes" in line
        assert f"SHA-256 {state.digest}" in line
    assert "--accept-changes" in line
    # A launch again is refused alike, and so is whatever trains a trial again.
    assert search("launch", folder / f"{kind}.yaml", "--set=search.trials=4") == (2, "", error)
    assert [line for line in search("replay", kind, 0)[2].splitlines() if "was trained on other data" in line]
    assert search("replay", kind, 0)[0] == search("weights", kind, 0, "-o", "w.safetensors")[0] == 2
    if kind != "outside":
        assert search("export", kind, 0, "--script", "t.py")[0] == 2
    told = search("db", "check")
    assert (told[0], f"study {kind}: {NAMED[kind]} had" in told[2]) == (0, True)
    # Accepted, it is told apart.
    status, _, error = search("resume", kind, "--accept-changes")
    assert status == 0, error
    assert f"note: from here on {kind} is trained otherwise: {NAMED[kind]} had" in error
    with raw("sqlite:///graft.db") as connection:
        prints = connection.exec_driver_sql("SELECT fingerprint FROM trials ORDER BY number").scalars().all()
    assert prints == [0, 0, 0, 1]
    assert search("replay", kind, 3)[0] == 0
    status, _, error = search("replay", kind, 0)
    assert (status, f"{NAMED[kind]} had {before.size:,} bytes" in error) == (2, True)
    status, out, error = search("replay", kind, 0, "--accept-changes")
    assert "note: trial 0 is trained again on other data" in error
    assert status == 0 or f"changed since it was trained: the content of {NAMED[kind].partition('/')[0]}" in out
    search("report", "study", kind, "-o", "report.md")
    assert "Not all trials were computed alike: the content of" in Path("report.md").read_text()
    change_byte(path)  # what the first trials have read is there again
    assert search("replay", kind, 0)[0] == 0
    assert search("replay", kind, 3)[0] == 2
