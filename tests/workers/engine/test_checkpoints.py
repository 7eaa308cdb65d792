"""Checkpoints: a restored trial gives the numbers of one that was never stopped, and a bad file is no file."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem
from safetensors.torch import load, save
from torch import Tensor

from spaces.errors import StudyError
from spaces.records import Checkpoint, Report, Trial
from tests.support.learning import settings, stage_one
from tests.support.pack import assert_same, reports_of
from tests.support.padding import knobs_of
from tests.support.padding import settings as padded_settings
from tests.support.population import copied
from tests.support.trials import config, random_knobs, trial
from workers.engine.checkpoints import Archive, SavedTrial, Snapshot
from workers.engine.pack import Pack
from workers.engine.pack.reporting import Reporting
from workers.numerics.blocks import Blocks
from workers.numerics.tracing import tree_leaves

Reports = dict[tuple[int, int], Report]
Weights = dict[int, dict[str, dict[str, Tensor]]]
"""Number -> variant -> name -> parameters at the end."""


class Killed(BaseException):
    """What ends a process at once, and which nothing expects."""


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive(str(tmp_path / "checkpoints"), "study")


@pytest.fixture
def folder(tmp_path: Path, archive: Archive) -> Path:
    return tmp_path / "checkpoints" / "study"


# ----------------------------------------------------------------------------------------- resumed equals uninterrupted


def trained(pack: Pack, trials: dict[int, Trial], most: int, reports: Reports, weights: Weights) -> None:
    """Train once; what is reported again has to be as before, and the weights of a trial that ends are kept."""
    places = pack.running
    for original in pack.train(most):
        assert original.fence == trials[original.number].fence
        report = replace(original, fence=0)
        assert reports.setdefault((report.number, report.step), report) == report
        if report.state != "running":
            weights[report.number] = pack.parameters_by_variant(places[report.number], trials[report.number])


def uninterrupted(candidate: Trial) -> tuple[Reports, Weights]:
    pack, reports, weights = Pack(candidate, width=1), Reports(), Weights()
    pack.fill([candidate])
    while pack.running:
        trained(pack, {candidate.number: candidate}, 1000, reports, weights)
    return reports, weights


def on_from(candidate: Trial, saved: dict[int, Checkpoint]) -> Trial:
    """Return the trial as it is started again."""
    checkpoints = (saved[candidate.number],) if candidate.number in saved else ()
    return replace(candidate, fence=candidate.fence + 1, checkpoints=checkpoints)


def assert_resumed_is_uninterrupted(trials: list[Trial], archive: Archive, seed: int, lives: int = 3) -> None:
    """Packs of random widths and orders that are thrown away after a checkpoint and some steps more."""
    numbers, reports, weights = random.Random(seed), Reports(), Weights()
    left, saved, restored = {candidate.number: candidate for candidate in trials}, dict[int, Checkpoint](), 0
    for life in range(lives + 1):
        left = {number: on_from(candidate, saved) for number, candidate in left.items() if number not in weights}
        order = numbers.sample([*left.values()], len(left))
        if not order:
            break
        pack = Pack(order[0], width=len(order) + numbers.randrange(2), archive=archive)
        pack.fill(order)
        for lane in filter(None, pack.lanes):
            assert lane.step == (saved[lane.number].step if lane.number in saved else 0)
            restored += lane.step > 0
        if life == lives:
            while pack.running:
                trained(pack, left, 1000, reports, weights)
            break
        for _ in range(numbers.randint(1, 3)):
            trained(pack, left, numbers.randint(1, 4), reports, weights)
        if snapshot := pack.snapshot():
            saved |= {checkpoint.number: checkpoint for checkpoint in archive.write(f"worker-{life}", snapshot)}
        trained(pack, left, numbers.randint(1, 4), reports, weights)
    assert restored >= lives
    for candidate in trials:
        expected, parameters = uninterrupted(candidate)
        assert {key: report for key, report in reports.items() if key[0] == candidate.number} == expected
        for variant, named in parameters[candidate.number].items():
            assert all(torch.equal(weights[candidate.number][variant][name], value) for name, value in named.items())


def minimal_trials() -> list[Trial]:
    """Every knob drawn: dropout, warm-up, BEMA."""
    numbers = random.Random(1)
    return [trial(i, config(steps=24 + i, every=6, **random_knobs(numbers))) for i in range(4)]


def transformer_trials(optimizer: str) -> list[Trial]:
    """Return a grid of averages, dropout, warm-up; matrices that muon turns."""
    model = {"name": "transformer", "width": 8, "depth": 1, "heads": 2, "mlp_multiple": 2, "mlp_dropout": 0.1}
    return [
        trial(
            number,
            {
                **config(steps=20 + number, every=7, dtype="float32"),
                "model": model,
                "optimizer": {
                    "name": optimizer,
                    "learning_rate": 0.01 * (number + 1),
                    "schedule": {"name": "linear", "warmup": 3 + 4 * number, "end_multiplier": 0.1},
                },
                "averaging": {"name": "bema_grid", "rho": 1.0 + number, "kappas": 2, "etas": 2},
            },
        )
        for number in range(3)
    ]


def padded_trials() -> list[Trial]:
    """Tokens, length, width, key width and value width of each."""
    shapes, trials = [(9, 4, 12, 5, 9), (17, 8, 16, 16, 24), (32, 3, 10, 32, 9)], list[Trial]()
    for number, shape in enumerate(shapes):
        made = padded_settings(shape, pad=True, dtype="float32", **knobs_of(number, (0.3, 0.2)))
        made["training"]["steps"] = 15 + number
        trials.append(trial(number, made))
    assert len({candidate.structure for candidate in trials}) == 1
    return trials


def learning_trials() -> list[Trial]:
    """Models that begin anew every two steps, so that lanes are renewed right after they were restored, too."""
    return [trial(number, settings(learning=stage_one(life=6), steps=14 + number)) for number in range(3)]


def kin_trials() -> list[Trial]:
    tasks = ({"name": name, "digits": 2} for name in ("add", "add_reversed", "add"))
    trials = [trial(number, {**settings(steps=16), "task": task}) for number, task in enumerate(tasks)]
    assert len({candidate.structure for candidate in trials}) == 1
    return trials


RECORDED_LONG = ("kin", "architecture", "transformer, muon")
"""Families whose steps take longest to record, for each of the packs that their trials move through."""
FAMILIES: dict[str, Callable[[], list[Trial]]] = {
    "minimal": minimal_trials,
    "transformer, adamw": lambda: transformer_trials("adamw"),
    "transformer, muon": lambda: transformer_trials("muon"),
    "padded": padded_trials,
    "architecture": learning_trials,
    "kin": kin_trials,
}


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=[pytest.mark.long] if name in RECORDED_LONG else []) for name in FAMILIES]
)
def test_trials_that_go_on_in_other_packs_end_as_if_they_had_never_stopped(family: str, archive: Archive) -> None:
    assert_resumed_is_uninterrupted(FAMILIES[family](), archive, seed=len(family))


def test_a_trial_killed_at_twenty_random_steps_ends_as_if_it_had_never_been(archive: Archive) -> None:
    candidate = trial(5, config(steps=60, every=9, **random_knobs(random.Random(4))))
    kills = sorted(random.Random(3).sample(range(1, 60), 20))
    reports, weights, saved = Reports(), Weights(), dict[int, Checkpoint]()
    for kill in (*kills, 60):
        candidate = on_from(candidate, saved)
        pack = Pack(candidate, width=2, archive=archive)
        pack.fill([candidate])
        while pack.running and (lane := pack.lanes[0]) and lane.step < kill:
            trained(pack, {5: candidate}, kill - lane.step, reports, weights)
        if snapshot := pack.snapshot():
            saved = {5: archive.write("worker", snapshot)[0]}
            assert saved[5].step == kill
        assert pack.take_counts()[0] == kill - max([0, *(other for other in kills if other < kill)])
    expected, parameters = uninterrupted(candidate)
    assert reports == expected
    assert all(torch.equal(weights[5]["bema"][name], value) for name, value in parameters[5]["bema"].items())


def line() -> tuple[list[Trial], Trial]:
    """Two trials, and a copy of the first one's state at step 10 with knobs and randomness of its own."""
    numbers = random.Random(11)
    *trials, knobs = [trial(i, config(steps=30, every=10, **random_knobs(numbers))) for i in range(3)]
    return trials, copied(trials[0], 8, 10, knobs)


def test_a_copy_goes_on_without_its_ancestors(archive: Archive) -> None:
    trials, child = line()
    pack, reports, weights = Pack(trials[0], width=3), Reports(), Weights()
    pack.fill(trials)
    pack.train(100)
    pack.fill([child])
    pack.train(4)
    snapshot = pack.snapshot()
    assert snapshot
    assert [lane[0] for lane in snapshot.trials] == [0, 1, 8]
    saved = {checkpoint.number: checkpoint for checkpoint in archive.write("worker", snapshot)}
    again = on_from(child, saved)
    pack = Pack(again, width=4, archive=archive)
    pack.fill([trials[1], again])
    while pack.running:
        trained(pack, {1: trials[1], 8: again}, 1000, reports, weights)
    assert pack.take_counts()[0] == 30 + 16
    expected, parameters = uninterrupted(child)
    assert {key: report for key, report in reports.items() if key[0] == 8} == expected
    assert all(torch.equal(weights[8]["raw"][name], value) for name, value in parameters[8]["raw"].items())


def test_a_lane_is_saved_once_it_trains_its_own_trial_and_has_gone_further(archive: Archive) -> None:
    _, child = line()
    pack = Pack(child, width=2, archive=archive)
    pack.fill([child])
    assert pack.snapshot() is None, "no step made"
    pack.train(5)
    assert pack.snapshot() is None, "an ancestor's steps"
    pack.train(5)
    snapshot = pack.snapshot()
    assert snapshot
    assert snapshot.trials == [SavedTrial(8, 0, 10, 10)]
    again = on_from(child, {checkpoint.number: checkpoint for checkpoint in archive.write("worker", snapshot)})
    pack = Pack(again, width=2, archive=archive)
    pack.fill([again])
    assert pack.snapshot() is None, "where it went on from"
    pack.train(1)
    assert pack.snapshot()


@pytest.mark.long
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_states_that_are_moved_in_place_beside_free_lanes_are_saved_and_resumed_by_the_same_bits(
    optimizer: str, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of large models are, in memory that holds no numbers where a lane is free."""
    trials = transformer_trials(optimizer)
    expected = [uninterrupted(candidate) for candidate in trials]
    monkeypatch.setattr("workers.training.native_update.LEAST", 1)
    monkeypatch.setattr(Blocks, "empty_like", lambda _, tensor: torch.full_like(tensor, torch.nan))
    assert_resumed_is_uninterrupted(trials, archive, seed=2)
    for candidate, (reports, parameters) in zip(trials, expected, strict=True):
        actual, moved = uninterrupted(candidate)
        assert actual == reports
        for variant, named in parameters[candidate.number].items():
            assert all(torch.equal(moved[candidate.number][variant][name], value) for name, value in named.items())


def test_a_checkpoint_has_every_tensor_of_a_state_and_no_lane_of_nobody(archive: Archive) -> None:
    trials = transformer_trials("adamw")
    pack = Pack(trials[0], width=7)
    pack.fill(trials)
    pack.train(2)
    pack.release([1])
    snapshot = pack.snapshot()
    assert snapshot
    assert len(snapshot.tensors) == len(tree_leaves(pack._tensors.state))  # pyright: ignore[reportPrivateUsage]
    assert {len(stacked) for stacked in snapshot.tensors.values()} == {2}


def test_a_trial_saved_between_a_validations_step_and_its_validation_is_validated_first(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when memory ran out while it was validated."""
    candidate = minimal_trials()[0]
    pack = Pack(candidate, width=2)
    pack.fill([candidate])

    def short(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as context:
        context.setattr(Reporting, "evaluate", short)
        with pytest.raises(MemoryError):
            pack.train(100)
    snapshot = pack.snapshot()
    assert snapshot
    assert snapshot.trials == [SavedTrial(0, 0, 6, 0)]
    again = on_from(candidate, {0: archive.write("worker", snapshot)[0]})
    pack = Pack(again, width=2, archive=archive)
    pack.fill([again])
    reports = reports_of(pack)
    assert {key: replace(report, fence=0) for key, report in reports.items()} == uninterrupted(candidate)[0]


def test_every_report_carries_the_fence_of_its_start() -> None:
    wild = config(steps=8, every=4, optimizer={"learning_rate": 1e30})
    trials = [replace(trial(i, config(steps=8, every=4)), fence=10 + i) for i in range(2)]
    trials.append(replace(trial(2, wild), fence=12))
    pack = Pack(trials[0], width=3)
    pack.fill(trials)
    reports = reports_of(pack).values()
    assert {(report.number, report.fence) for report in reports} == {(0, 10), (1, 11), (2, 12)}
    assert {report.state for report in reports} == {"running", "finished", "diverged"}


def test_a_file_is_read_once_for_all_of_its_trials(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    trials = minimal_trials()
    pack = Pack(trials[0], width=4)
    pack.fill(trials)
    pack.train(3)
    snapshot = pack.snapshot()
    assert snapshot
    saved = {checkpoint.number: checkpoint for checkpoint in archive.write("worker", snapshot)}
    read, paths = Archive.read, list[str]()

    def counted(self: Archive, path: str, sha256: str) -> Snapshot | None:
        paths.append(path)
        return read(self, path, sha256)

    monkeypatch.setattr(Archive, "read", counted)
    again = Pack(trials[0], width=4, archive=archive)
    again.fill([on_from(candidate, saved) for candidate in trials])
    assert len(paths) == 1
    assert [lane.step for lane in again.lanes if lane] == [3] * 4


# ------------------------------------------------------------------------------------------------------- files that lie


def two_checkpoints(archive: Archive) -> tuple[Trial, list[Checkpoint]]:
    """Return a trial with checkpoints of steps 3 and 5, the newer first; it is the second of its files."""
    trials = minimal_trials()[:2]
    pack = Pack(trials[0], width=2)
    pack.fill(trials)
    checkpoints: list[Checkpoint] = []
    for steps in (3, 2):
        pack.train(steps)
        snapshot = pack.snapshot()
        assert snapshot
        checkpoints.insert(0, archive.write("worker", snapshot)[1])
    return trials[1], checkpoints


def started_at(candidate: Trial, archive: Archive | None, *checkpoints: Checkpoint) -> int:
    """Return the step from which the trial goes on."""
    pack = Pack(candidate, width=2, archive=archive)
    pack.fill([replace(candidate, checkpoints=checkpoints)])
    assert pack.lanes[0]
    return pack.lanes[0].step


def damaged(data: bytes) -> list[bytes]:
    """Cut short at 20 places, and with one of 20 bits the other way round."""
    numbers = random.Random(9)
    cut = [data[:size] for size in (0, 1, 7, 8, 9, len(data) - 1, *numbers.sample(range(10, len(data) - 1), 14))]
    header = 8 + int.from_bytes(data[:8], "little")
    places = [*numbers.sample(range(8), 2), *numbers.sample(range(8, header), 8)]
    flipped: list[bytes] = []
    for position in (*places, *numbers.sample(range(header, len(data)), 10)):
        changed = bytearray(data)
        changed[position] ^= 1 << numbers.randrange(8)
        flipped.append(bytes(changed))
    return cut + flipped


def test_a_file_cut_short_or_changed_by_a_bit_is_none_and_the_older_one_serves(archive: Archive) -> None:
    candidate, (newer, older) = two_checkpoints(archive)
    file = Path(newer.path)
    whole, expected = file.read_bytes(), uninterrupted(candidate)[0]
    assert started_at(candidate, archive, newer, older) == 5
    bad = damaged(whole)
    assert len({*bad, whole}) == 41
    for data in bad:
        file.write_bytes(data)
        assert archive.read(newer.path, newer.sha256) is None
        assert started_at(candidate, archive, newer, older) == 3
        assert started_at(candidate, archive, newer) == 0
    for checkpoints in ((newer, older), (newer,)):
        pack = Pack(candidate, width=3, archive=archive)
        pack.fill([replace(candidate, checkpoints=checkpoints)])
        assert reports_of(pack) == expected


def test_what_a_row_says_has_to_be_what_the_file_says(archive: Archive, tmp_path: Path) -> None:
    candidate, (newer, older) = two_checkpoints(archive)
    lies = [
        newer._replace(sha256=older.sha256),
        newer._replace(sha256=""),
        newer._replace(row=0),
        newer._replace(row=2),
        newer._replace(row=-1),
        newer._replace(step=4),
        newer._replace(fence=7),
        newer._replace(number=0, row=0),
        newer._replace(path=older.path),
        newer._replace(path=f"{newer.path}x"),
        newer._replace(path=""),
        newer._replace(path="\0"),
    ]
    for lie in lies:
        assert started_at(candidate, archive, lie, older) == 3, lie
        assert started_at(candidate, archive, lie) == 0, lie
    assert started_at(candidate, None, newer) == 0
    assert started_at(candidate, Archive(str(tmp_path / "checkpoints"), "other"), newer) == 0


def test_a_state_of_another_structure_is_none(archive: Archive) -> None:
    """The structure as text, and, where that lies, names, shapes and types of what is in it."""
    candidate, (newer, older) = two_checkpoints(archive)
    snapshot = archive.read(newer.path, newer.sha256)
    assert snapshot
    tensors = snapshot.tensors
    others = [
        snapshot._replace(structure="{}"),
        snapshot._replace(tensors={**tensors, "parameters": tensors["parameters"][:, 1:]}),
        snapshot._replace(tensors={**tensors, "parameters": tensors["parameters"].float()}),
        snapshot._replace(tensors={name: value for name, value in tensors.items() if name != "shadow.ema"}),
        snapshot._replace(tensors={**tensors, "shadow.more": tensors["parameters"].clone()}),
        snapshot._replace(tensors={**tensors, "step": tensors["step"][:1]}),
    ]
    for other in others:
        assert started_at(candidate, archive, archive.write("worker", other)[1], older) == 3
    assert started_at(candidate, archive, archive.write("worker", snapshot)[1], older) == 5


def test_foreign_bytes_are_none_even_under_their_own_hash(archive: Archive, folder: Path) -> None:
    lane = {"number": 1, "fence": 0, "step": 3, "reported_step": 0}
    notes = {"format": 1, "structure": "s", "lanes": [lane]}
    tensor = {"step": torch.tensor([3])}

    def file(notes: object, tensors: dict[str, Tensor] = tensor) -> bytes:
        return save(tensors, metadata={"graft": json.dumps(notes)})

    foreign = [
        b"",
        b"\xff" * 64,
        random.Random(0).randbytes(500),
        save(tensor),
        save(tensor, metadata={"graft": "no JSON"}),
        save(tensor, metadata={"graft": "[" * 100_000}),
        *(file(other) for other in (None, 1, [], {}, {**notes, "format": 2}, {**notes, "lanes": [{}]})),
        *(file({**notes, "lanes": other}) for other in (7, [lane, lane], [{**lane, "more": 1}], [1], None)),
        file(notes, {"step": torch.tensor(3)}),
        file(notes)[:-1],
    ]
    for index, data in enumerate(foreign):
        path = folder / f"worker-{index:06d}-{index:016x}.safetensors"
        path.write_bytes(data)
        assert archive.read(str(path), hashlib.sha256(data).hexdigest()) is None, index
    path.write_bytes(file(notes))
    snapshot = archive.read(str(path), hashlib.sha256(file(notes)).hexdigest())
    assert snapshot
    assert snapshot.trials == (SavedTrial(1, 0, 3, 0),)


def small(step: int = 1) -> Snapshot:
    """One trial, a few hundred bytes."""
    return Snapshot("s", [SavedTrial(4, 1, step, 0)], {"parameters": torch.full((1, 5), float(step))})


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_paths_outside_of_the_folder_are_not_read(archive: Archive, folder: Path, tmp_path: Path) -> None:
    [good] = archive.write("worker", small())
    name = Path(good.path).name
    outside = tmp_path / name
    outside.write_bytes(Path(good.path).read_bytes())
    link = folder / name.replace("worker", "link")
    link.symlink_to(outside)
    inside = folder / name.replace("worker", "inside")
    inside.mkdir()
    pipe = folder / name.replace("worker", "pipe")
    os.mkfifo(pipe)
    for path in map(str, [link, inside, pipe, folder / ".."]):
        assert archive.read(path, good.sha256) is None, path
    assert archive.read(str(outside), good.sha256), "it has the name of a file in the folder, and that is read"
    Path(good.path).unlink()
    for path in [*map(str, [outside, folder / ".." / ".." / name, inside / name]), f"file://{outside}", name]:
        assert archive.read(path, good.sha256) is None, path


def test_a_folder_that_was_moved_serves_as_before(archive: Archive, folder: Path, tmp_path: Path) -> None:
    [good] = archive.write("worker", small())
    moved = tmp_path / "moved"
    folder.parent.rename(moved)
    again = Archive(str(moved), folder.name)
    assert again.read(good.path, good.sha256)
    again.tidy([good.path], [])
    assert again.read(good.path, good.sha256)


# ------------------------------------------------------------------------------------------ writes that do not come off


@contextmanager
def largest_file(size: int) -> Generator[None]:
    """Yield the kernel refuses to make files larger than this."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_without_space_nothing_is_left_and_the_older_checkpoint_stays(archive: Archive, folder: Path) -> None:
    [older] = archive.write("worker", small())
    large = small()._replace(tensors={"parameters": torch.zeros(1, 100_000)})
    with largest_file(50_000), pytest.raises(OSError, match="File too large"):
        archive.write("worker", large)
    assert names(folder) == {Path(older.path).name}
    assert archive.read(older.path, older.sha256)
    assert archive.write("worker", large)


@pytest.mark.parametrize("failing", [1, 2])
def test_a_flush_that_fails_is_not_tried_again(
    failing: int, archive: Archive, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first flush is the file's, the second the folder's."""
    [older] = archive.write("worker", small())
    flush, calls = os.fsync, list[int]()

    def broken(handle: int) -> None:
        calls.append(handle)
        if len(calls) == failing:
            raise OSError(errno.EIO, "Input/output error")
        flush(handle)

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="Input/output error"):
        archive.write("worker", small(2))
    assert len(calls) == failing
    assert names(folder) == {Path(older.path).name}
    assert archive.read(older.path, older.sha256)
    assert archive.write("worker", small(2)), "the next one is a new file"


@pytest.mark.parametrize("point", ["fsync", "replace"])
def test_an_exception_between_two_steps_of_a_write_leaves_no_file(
    point: str, archive: Archive, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [older] = archive.write("worker", small())

    def killed(*_: object) -> None:
        raise Killed

    monkeypatch.setattr(os, point, killed)
    with pytest.raises(Killed):
        archive.write("worker", small(2))
    assert names(folder) == {Path(older.path).name}
    assert archive.read(older.path, older.sha256)


KILLED_AT_EACH_POINT = """
import os, signal, sys
import torch
from workers.engine.checkpoints import Archive, SavedTrial, Snapshot

def kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)

flush, calls = os.fsync, []
def kill_at_the_folder(handle):
    calls.append(handle)
    flush(handle)
    if len(calls) == 2:
        kill()

archive = Archive(sys.argv[1], "study")
snapshot = Snapshot("s", [SavedTrial(4, 1, 2, 0)], {"parameters": torch.full((1, 5), 2.0)})
for point, act in (("fsync", kill), ("replace", kill), ("fsync", kill_at_the_folder)):
    if child := os.fork():
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    else:
        setattr(os, point, act)
        archive.write("dead", snapshot)
"""


@pytest.mark.long
def test_a_process_killed_at_any_point_of_a_write_leaves_whole_files_and_parts(
    archive: Archive, folder: Path, tmp_path: Path
) -> None:
    [older] = archive.write("worker", small())
    script = [sys.executable, "-c", KILLED_AT_EACH_POINT, str(tmp_path / "checkpoints")]
    subprocess.run(script, check=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert sorted(path.suffix for path in folder.iterdir()) == [".part", ".part", ".safetensors", ".safetensors"]
    assert archive.read(older.path, older.sha256)
    [other] = folder.glob("dead*.safetensors")
    assert load(other.read_bytes())["parameters"].tolist() == [[2.0] * 5]
    archive.tidy([older.path], ["worker"])
    assert names(folder) == {Path(older.path).name}


def test_a_place_that_cannot_be_used_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StudyError, match="file/study: no folder for checkpoints can be made there: Not a directory"):
        Archive(str(tmp_path / "file"), "study")
    with pytest.raises(StudyError, match="nowhere://x: no checkpoints can be put there: Protocol not known: nowhere"):
        Archive("nowhere://x", "study")
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(StudyError, match="s3://x: no checkpoints can be put there: Install s3fs"):
        Archive("s3://x", "study")
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(StudyError, match=r"^checkpoints need the package safetensors: pip install safetensors$"):
        Archive(str(tmp_path), "study")


# ------------------------------------------------------------------------------------------------------ many, elsewhere


@pytest.mark.parametrize("study", ["one", "two"])
def test_an_object_store_serves_as_a_folder_does(study: str) -> None:
    archive = Archive("memory://checkpoints", study)
    candidate, (newer, older) = two_checkpoints(archive)
    assert newer.path.startswith(f"memory://checkpoints/{study}/worker-000002-")
    assert started_at(candidate, archive, newer, older) == 5
    pack = Pack(candidate, width=3, archive=archive)
    pack.fill([replace(candidate, checkpoints=(newer, older))])
    assert_same(reports_of(pack), {key: report for key, report in uninterrupted(candidate)[0].items() if key[1] > 5})
    archive.tidy([older.path], [])
    assert archive.read(newer.path, newer.sha256) is None
    assert archive.read(older.path, older.sha256)
    archive.tidy([], [])
    assert archive.read(older.path, older.sha256) is None


def test_a_store_that_fails_in_its_own_words_leaves_nothing_and_what_it_cannot_give_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    archive = Archive("memory://", "failing")
    [older] = archive.write("worker", small())

    def away(*_: object) -> None:
        raise RuntimeError("no route")

    with monkeypatch.context() as context:
        context.setattr(MemoryFileSystem, "pipe_file", away)
        context.setattr(MemoryFileSystem, "cat_file", away)
        context.setattr(MemoryFileSystem, "ls", away)
        with pytest.raises(OSError, match="RuntimeError: no route"):
            archive.write("worker", small(2))
        assert archive.read(older.path, older.sha256) is None
        archive.tidy([], [])
    assert archive.read(older.path, older.sha256)


def test_packs_that_write_into_one_folder_at_once_never_touch_each_others_files(folder: Path, tmp_path: Path) -> None:
    """Two of them even call themselves the same."""
    written = dict[str, tuple[int, str]]()

    def write(value: int, worker: str) -> None:
        archive = Archive(str(tmp_path / "checkpoints"), "study")
        for step in range(value, value + 10):
            [checkpoint] = archive.write(worker, small(step))
            written[checkpoint.path] = (step, checkpoint.sha256)

    threads = [
        threading.Thread(target=write, args=(value, worker)) for value, worker in ((100, "a"), (200, "b"), (300, "a"))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {str(path) for path in folder.iterdir()} == written.keys()
    reader = Archive(str(tmp_path / "checkpoints"), "study")
    for path, (step, sha256) in written.items():
        snapshot = reader.read(path, sha256)
        assert snapshot
        assert snapshot.tensors["parameters"].tolist() == [[float(step)] * 5]
    assert {step for step, _ in written.values()} == {*range(100, 110), *range(200, 210), *range(300, 310)}


def test_a_worker_may_call_itself_what_it_likes(archive: Archive, folder: Path) -> None:
    for worker in ("../../up", "a/b", "host:7", "ä b", ".", "x-000001-0123456789abcdef"):
        [checkpoint] = archive.write(worker, small())
        assert Path(checkpoint.path).parent == folder
        assert archive.read(checkpoint.path, checkpoint.sha256)
        archive.tidy([], [worker])
        assert names(folder) == {Path(checkpoint.path).name}


def test_tidying_spares_what_is_kept_what_is_on_its_way_and_what_is_none_of_ours(
    archive: Archive, folder: Path, tmp_path: Path
) -> None:
    written = {(worker, step): archive.write(worker, small(step))[0].path for worker in "ab" for step in range(3)}
    [elsewhere] = Archive(str(tmp_path / "checkpoints"), "other").write("b", small())
    parts = {worker: folder / f"{worker}-000009-{'0' * 16}.safetensors.part" for worker in "ab"}
    ours = [folder / "notes.txt", folder / "model.safetensors"]
    for path in (*parts.values(), *ours):
        path.write_text("")

    def left(keep: Collection[str], alive: Collection[str]) -> set[Path]:
        archive.tidy(keep, alive)
        return {*folder.iterdir()} - {*ours}

    kept = [written["a", 0], written["b", 1], "elsewhere"]
    assert left(kept, "a") == {*map(Path, kept[:2]), Path(written["a", 2]), parts["a"]}
    assert left([], []) == set()
    assert names(folder) == {path.name for path in ours}
    assert Path(elsewhere.path).exists()


def test_a_file_that_cannot_be_removed_does_not_keep_the_others(
    archive: Archive, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, *_ = [archive.write("worker", small(step))[0].path for step in range(3)]
    unlink: Any = Path.unlink

    def failing(self: Path, missing_ok: bool = False) -> None:
        if str(self) == stuck:
            raise PermissionError(stuck)
        unlink(self, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", failing)
    archive.tidy([], [])
    assert names(folder) == {Path(stuck).name}
