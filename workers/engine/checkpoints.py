"""Checkpoints: files of trials' states, from which each resumes in any pack of its structure.

A safetensors file, whose header has one more JSON text: format, structure, and each trial's
progress. It has a name that no file had before, and is never changed; on a disk it is written
aside, flushed, moved into place, and its folder flushed. Readers know its SHA-256, so that a
damaged file is none. Legend: L trials in a file.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, final
from urllib.parse import quote

from torch import Tensor

from spaces.errors import StudyError
from spaces.plugins import canonical_json
from spaces.records import Checkpoint

FORMAT = 1
_NOTES = "graft"
"""Key of our text in the header."""
_LATER_OPTIONS = {"accumulate": 1, "autocast": "none"}
"""Options of `training` that came after the first release, with their values before."""
_ASIDE = ".part"
_NAME = re.compile(rf"(?P<worker>.+)-(?P<sequence>\d{{6,}})-[0-9a-f]{{16}}\.safetensors(?P<aside>{re.escape(_ASIDE)})?")


class SavedTrial(NamedTuple):
    """The progress of a trial when its state was taken."""

    number: int
    fence: int
    step: int
    reported_step: int


class SavedState(NamedTuple):
    """The state of one trial, by name."""

    trial: SavedTrial
    tensors: Mapping[str, Tensor]


class Snapshot(NamedTuple):
    """The states of trials of one structure."""

    structure: str
    trials: Sequence[SavedTrial]
    tensors: Mapping[str, Tensor]
    """Name -> [L, ...] on the CPU, in the order of `trials`."""

    def is_of(self, structure: str) -> bool:
        """Return True if the trials have this structure; older ones may lack newer options."""
        if self.structure == structure:
            return True
        with suppress(ValueError, TypeError, KeyError):  # a text that is no structure of ours
            sections: dict[str, Any] = json.loads(self.structure)
            return canonical_json({**sections, "training": {**_LATER_OPTIONS, **sections["training"]}}) == structure
        return False

    def state(self, checkpoint: Checkpoint) -> SavedState | None:
        """Return the state that a checkpoint names; None if its row is of another trial or step."""
        if not 0 <= checkpoint.row < len(self.trials):
            return None
        trial = self.trials[checkpoint.row]
        if trial[:3] != (checkpoint.number, checkpoint.fence, checkpoint.step):
            return None
        return SavedState(trial, {name: stacked[checkpoint.row] for name, stacked in self.tensors.items()})


@final
class Archive:
    """A study's checkpoints, in a folder on a disk or under a URL of a store that fsspec knows.

    Several processes may write to one folder and read from it; files outside it are never read.
    """

    def __init__(self, url: str, study: str) -> None:
        """Open a folder or URL (`s3://bucket/checkpoints`) for a study; raises StudyError."""
        _safetensors()
        url = url.removeprefix("file://")
        self._files = _Bucket(url, study) if "://" in url else _Folder(Path(url, study).resolve())
        self._written = 0

    def write(self, worker: str, snapshot: Snapshot) -> tuple[Checkpoint, ...]:
        """Write one file, and return the checkpoint of each trial, in their order.

        Raises OSError if that fails, and then leaves no file. Data that could not be flushed once
        count as lost: a second attempt could succeed without them.
        """
        self._written += 1
        name = f"{quote(worker, safe='')}-{self._written:06d}-{secrets.token_hex(8)}.safetensors"
        data = _encode(snapshot)
        self._files.put(name, data)
        path, sha256 = self._files.path(name), hashlib.sha256(data).hexdigest()
        return tuple(
            Checkpoint(number=trial.number, fence=trial.fence, step=trial.step, path=path, row=row, sha256=sha256)
            for row, trial in enumerate(snapshot.trials)
        )

    def read(self, path: str, sha256: str) -> Snapshot | None:
        """Return a file of states; None if it is missing, incomplete or cannot be understood."""
        name = path.rpartition("/")[2]  # in our own folder, which may have been moved since
        match = _NAME.fullmatch(name)
        if match is None or match["aside"]:
            return None
        try:
            data = self._files.get(name)
            return _decode(data) if hashlib.sha256(data).hexdigest() == sha256 else None
        except MemoryError:
            raise  # the file may be whole
        except Exception:  # whatever a foreign file makes a parser raise
            return None

    def tidy(self, keep: Collection[str], alive: Collection[str]) -> None:
        """Remove all files but those in `keep`, and the last of each worker in `alive`.

        A worker reports a file once it is written, so its last one may be on record a moment later.
        Half-written files of workers that are not alive go, too, and files that cannot be removed
        stay. Every worker that may write has to be in `alive`, and no worker's name is used again.
        """
        kept = {path.rpartition("/")[2] for path in keep}
        spared = {quote(worker, safe="") for worker in alive}
        names: Sequence[str] = ()
        with suppress(OSError):
            names = self._files.names()
        matches = sorted(filter(None, map(_NAME.fullmatch, names)), key=lambda match: int(match["sequence"]))
        last = {match["worker"]: match.string for match in matches if not match["aside"]}
        for match in matches:
            is_awaited = match["worker"] in spared and (match["aside"] or last[match["worker"]] == match.string)
            if not is_awaited and match.string not in kept:
                with suppress(OSError):
                    self._files.remove(match.string)


def _encode(snapshot: Snapshot) -> bytes:
    lanes = [trial._asdict() for trial in snapshot.trials]
    notes = {"format": FORMAT, "structure": snapshot.structure, "lanes": lanes}
    tensors = {name: stacked.contiguous() for name, stacked in snapshot.tensors.items()}
    return _safetensors().save(tensors, metadata={_NOTES: json.dumps(notes)})


def _decode(data: bytes) -> Snapshot | None:
    """Return None for another format; raises any error for bytes that are none of ours."""
    size = int.from_bytes(data[:8], "little")
    notes = json.loads(json.loads(data[8 : 8 + size])["__metadata__"][_NOTES])
    if notes["format"] != FORMAT:
        return None
    trials = tuple(SavedTrial(**trial) for trial in notes["lanes"])
    tensors: dict[str, Tensor] = _safetensors().load(data)
    is_whole = all(tensor.shape[:1] == (len(trials),) for tensor in tensors.values())
    return Snapshot(notes["structure"], trials, tensors) if is_whole else None


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise StudyError("checkpoints need the package safetensors: pip install safetensors") from error
    return safetensors.torch


@final
class _Folder:
    """A folder on a disk with a study's files, by name; methods raise OSError if they fail."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        missing = [path for path in (folder, *folder.parents) if not path.exists()]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for path in missing:
                _flush(path.parent)
        except OSError as error:
            raise StudyError(f"{folder}: no folder for checkpoints can be made there: {error.strerror}") from error

    def path(self, name: str) -> str:
        """Return the path by which other processes know a file."""
        return str(self._folder / name)

    def put(self, name: str, data: bytes) -> None:
        """Write a file, all of it or none."""
        final, aside = self._folder / name, self._folder / f"{name}{_ASIDE}"
        self._folder.mkdir(parents=True, exist_ok=True)  # somebody may have tidied up
        # A crash at any moment leaves the old files and at most a .part: data reach the disk before
        # the name does, and the folder is flushed last, or a power cut could undo the renaming.
        try:
            with aside.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, final)
            _flush(self._folder)
        except BaseException:
            for path in (aside, final):
                with suppress(OSError):
                    path.unlink()
            raise

    def get(self, name: str) -> bytes:
        path = self._folder / name
        if path.resolve().parent != self._folder or not path.is_file():
            raise FileNotFoundError(path)  # a link that leads elsewhere, or no file, which might never end
        return path.read_bytes()

    def names(self) -> Sequence[str]:
        return os.listdir(self._folder)

    def remove(self, name: str) -> None:
        (self._folder / name).unlink()


def _flush(folder: Path) -> None:
    """Flush the names of a folder's files to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@final
class _Bucket:
    """An object store, which shows whole files only, with the methods of `_Folder`."""

    def __init__(self, url: str, study: str) -> None:
        if "@" in url.partition("://")[2].partition("/")[0]:
            raise StudyError(
                "the URL of checkpoints must hold no name and no password; its store takes them from elsewhere"
            )
        try:
            from fsspec.core import url_to_fs

            self._url = f"{url}{'' if url.endswith('/') else '/'}{study}"
            self._system, self._root = url_to_fs(self._url)
        except Exception as error:  # fsspec names the package that it needs; stores raise anything
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise StudyError(f"{url}: no checkpoints can be put there: {reason[0]}") from error

    def path(self, name: str) -> str:
        return f"{self._url}/{name}"

    def put(self, name: str, data: bytes) -> None:
        try:
            with _as_os_error():
                self._system.pipe_file(f"{self._root}/{name}", data)
        except BaseException:
            with suppress(OSError):
                self.remove(name)
            raise

    def get(self, name: str) -> bytes:
        with _as_os_error():
            return self._system.cat_file(f"{self._root}/{name}")

    def names(self) -> Sequence[str]:
        with _as_os_error():
            self._system.invalidate_cache()
            paths: list[str] = self._system.ls(self._root, detail=False)
        return [path.rpartition("/")[2] for path in paths]

    def remove(self, name: str) -> None:
        with _as_os_error():
            self._system.rm_file(f"{self._root}/{name}")


@contextmanager
def _as_os_error() -> Generator[None]:
    """Raise errors of a store's own client as OSError."""
    try:
        yield
    except (OSError, MemoryError):
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error
