"""Power cuts: what a program asks of the files of a folder is recorded, and a disk is made that lost some of it.

A program is run with `power.cpp` preloaded, which writes down each write, new name and synchronisation in order. Of one
record as many cuts can be made as wanted, each at some entry. What was synchronised by then is on the disk. Of the
rest any part may be: none of it, all of it, single sectors of it, in any order; of names the first few. That is as
SQLite's own crash tests have it (sqlite.org/testing.html, section 3.3).
"""

from __future__ import annotations

import atexit
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple, final

from tests.support.launches import ROOT

ANSWERED = "answered"
"""The file in which a program writes down what it has answered for."""
SECTOR = 512
"""Bytes that a disk writes whole or not at all."""
_HEAD = struct.Struct("=c4Q")
_SOURCE = Path(__file__).with_name("power.cpp")


class Entry(NamedTuple):
    """One call of the program: c(reate), m(ove), u(nlink), d(irectory), w(rite), t(runcate), s(ynchronise)."""

    kind: str
    inode: int
    offset: int
    """Of a write; of a truncation the length."""
    name: str
    data: bytes
    """Of a write; of a move the new name."""


def record(folder: Path, module: str, *arguments: str) -> list[Entry]:
    """Run a module of ours, all of whose files are below an empty folder; what it asked of them."""
    log = folder.with_name(f"{folder.name}.log")
    environment = {"LD_PRELOAD": str(_compile()), "POWER_FOLDER": str(folder), "POWER_LOG": str(log)}
    command = [sys.executable, "-m", module, str(folder), *arguments]
    subprocess.run(command, cwd=ROOT, env=os.environ | environment, check=True)
    return [*_read(log.read_bytes())]


@cache
def _compile() -> Path:
    """Build what is preloaded, once in a process."""
    folder = Path(tempfile.mkdtemp(prefix="graft-power-"))
    atexit.register(shutil.rmtree, folder)
    library = folder / "power.so"
    subprocess.run(["g++", "-O1", "-shared", "-fPIC", "-Wall", "-Werror", "-o", library, _SOURCE], check=True)
    return library


def _read(text: bytes) -> Iterator[Entry]:
    index = 0
    while index < len(text):
        kind, inode, offset, name, data = _HEAD.unpack_from(text, index)
        index += _HEAD.size
        yield Entry(kind.decode(), inode, offset, os.fsdecode(text[index : index + name]), text[index + name :][:data])
        index += name + data


@dataclass(eq=False)
class _File:
    """A file: what of it is on the disk for sure, and the writes and truncations that may be."""

    is_folder: bool = False
    content: bytearray = field(default_factory=bytearray)
    pending: list[Entry] = field(default_factory=list)

    def synchronise(self) -> None:
        """Have all of it on the disk."""
        for entry in self.pending:
            _change_content(self.content, entry)
        self.pending.clear()

    def after_cut(self, kept: float, chance: random.Random) -> bytes:
        """Return what is found when the power is back; `kept`: the probability of each sector that may be there."""
        content = bytearray(self.content)
        for entry in self.pending:
            for part in _split(entry):
                if chance.random() < kept:
                    _change_content(content, part)
        return bytes(content)


@final
class Disk:
    """A disk, entry by entry, until its power is cut."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        root = _File(is_folder=True)
        self._files = {folder.stat().st_ino: root}
        """By inode; that of a file that was removed may be given to a new one."""
        self._names: dict[str, _File] = {str(folder): root}
        """As the program sees them."""
        self._kept: dict[str, _File] = {}
        """Those that are on the disk for sure."""
        self._pending: list[tuple[Entry, _File]] = []
        """Changes of names that may be, and the files that they name."""

    def apply(self, entry: Entry) -> None:
        """Do what the program asked."""
        if entry.kind in "cd":
            self._files[entry.inode] = _File(is_folder=entry.kind == "d")
        if entry.kind in "cdmu":
            file = self._files[entry.inode] if entry.kind in "cd" else self._names[entry.name]
            self._pending.append((entry, file))
            _change_names(self._names, entry, file)
        elif entry.kind == "s":
            self._synchronise(self._files[entry.inode])
        else:
            self._files[entry.inode].pending.append(entry)

    def read(self, name: str) -> bytes:
        """Return what the program has written to a file so far."""
        file = self._names.get(f"{self._folder}/{name}")
        return file.after_cut(1, random.Random(0)) if file else b""

    def cut(self, target: Path, chance: random.Random) -> None:
        """Write to a new folder what is found when the power is back."""
        kept = chance.choice([0.0, 1.0, chance.random()])
        names = dict(self._kept)
        for entry, file in self._pending[: round(kept * len(self._pending))]:
            _change_names(names, entry, file)
        target.mkdir()
        for name, file in sorted(names.items()):
            path = target / Path(name).relative_to(self._folder)
            if not path.parent.is_dir():
                continue  # its folder was never on the disk
            if file.is_folder:
                path.mkdir()
            else:
                path.write_bytes(file.after_cut(kept, chance))

    def _synchronise(self, file: _File) -> None:
        """Record that a file's content, or the names in a folder, are on the disk."""
        file.synchronise()
        folders = {name for name, linked in self._names.items() if linked is file}
        waiting = list[tuple[Entry, _File]]()
        for entry, named in self._pending:
            if str(Path(entry.name).parent) in folders:
                _change_names(self._kept, entry, named)
            else:
                waiting.append((entry, named))
        self._pending = waiting


def _change_content(content: bytearray, entry: Entry) -> None:
    if entry.kind == "t":
        del content[entry.offset :]
    content.extend(bytes(max(0, entry.offset - len(content))))
    if entry.kind == "w":
        content[entry.offset : entry.offset + len(entry.data)] = entry.data


def _split(entry: Entry) -> Iterator[Entry]:
    """Yield the parts of a write that lie in one sector each."""
    start = 0
    while start < len(entry.data):
        end = start + SECTOR - (entry.offset + start) % SECTOR
        yield entry._replace(offset=entry.offset + start, data=entry.data[start:end])
        start = end
    if entry.kind == "t":
        yield entry


def _change_names(names: dict[str, _File], entry: Entry, file: _File) -> None:
    if entry.kind in "mu":
        names.pop(entry.name, None)
    if entry.kind != "u":
        names[os.fsdecode(entry.data) if entry.kind == "m" else entry.name] = file
