"""The conditions that determined the numbers of a study's trials, and their changes since."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graft.plugins.families import version
from spaces.errors import RowError
from spaces.messages import list_some
from spaces.records import DATA, Fingerprint
from storage.frames import Reader

_SOURCES = "sources"
SURROGATE = "surrogate"
"""The kind of step of a trial that was answered from a table, not trained."""
_DECIDING = {"numerics": "numerics", "torch": "torch"}
"""The columns that may move numbers by more than their last bits -> words for them."""
_OTHER = {"version": "Graft", "processor": "processor", "compiler": "compiler"}


@dataclass(frozen=True, kw_only=True)
class StoredFingerprint:
    """A row of `fingerprints`, or the row that would be written now; None if not known."""

    number: int | None = None
    previous: int | None = None
    numerics: int | None = None
    version: str | None = None
    code: str | None = None
    torch: str | None = None
    processor: str | None = None
    compiler: str | None = None
    step_kind: str | None = None
    """Several kinds with commas if trials moved between machines."""
    sources: Mapping[str, str | None]
    """Plug-in -> SHA-256 of its source, None without a source; `data NAME` -> SHA-256."""

    @property
    def is_known(self) -> bool:
        """True if the code and torch were stored."""
        return self.code is not None and self.torch is not None

    @property
    def methods(self) -> frozenset[str]:
        """The methods of the steps, without the processor: `native`, `traced`, `traced cuda`."""
        kinds = (self.step_kind or "").split(", ")
        return frozenset(" ".join(word for word in kind.split() if word.islower()) for kind in kinds) - {""}

    def describe(self) -> str:
        """Return the fingerprint as a line for people."""
        facts = {
            "Graft": self.version,
            "numerics": self.numerics,
            "torch": self.torch,
            "steps": self.step_kind,
            "on": self.processor,
            "compiled by": self.compiler,
        }
        return ", ".join(f"{word} {value}" for word, value in facts.items() if value)


def of_fingerprint(fingerprint: Fingerprint) -> StoredFingerprint:
    """Return the conditions of a trial that this process trained."""
    facts = {name: value or None for name, value in fingerprint._asdict().items() if name != _SOURCES}
    return StoredFingerprint(**facts, version=version(), sources=dict(fingerprint.sources))


def read_fingerprints(reader: Reader, study: str) -> list[StoredFingerprint]:
    """Return the fingerprints of a study's trials, by number."""
    rows = reader.study(study).fingerprints().drop("study_id", "created_at").iter_rows(named=True)
    return [StoredFingerprint(**{**row, _SOURCES: json.loads(row[_SOURCES])}) for row in rows]


def follow(rows: Sequence[StoredFingerprint], number: int | None) -> list[StoredFingerprint]:
    """Return the conditions of a trial's training, the last ones first, given its `fingerprint`.

    Raises RowError for rows that were edited by hand, and that lead nowhere or in a circle.
    """
    conditions: list[StoredFingerprint] = []
    end = len(rows)
    while number is not None:
        if not 0 <= number < end:
            raise RowError(f"fingerprint {number} is no earlier one of the study; its row was edited by hand")
        conditions.append(rows[number])
        end, number = number, rows[number].previous
    return conditions


@dataclass(frozen=True, kw_only=True)
class Changes:
    """The changed conditions, each in a few words."""

    deciding: tuple[str, ...] = ()
    """Changes that move numbers: numerics, torch, sources of plug-ins, data, the kind of step."""
    other: tuple[str, ...] = ()
    """Changes that may move a last bit, or nothing."""
    voids_promise: bool = False
    """True if unequal bits are no failure: other numerics or torch, not another processor."""

    @property
    def all(self) -> tuple[str, ...]:
        """All changes, the deciding ones first."""
        return (*self.deciding, *self.other)


def compare_fingerprints(before: Sequence[StoredFingerprint], now: StoredFingerprint) -> Changes:
    """Return the conditions that differ from all those before; unknown ones count as equal."""
    deciding = [*_name_values(_DECIDING, before, now)]
    voids_promise = bool(deciding)
    methods = [method for fingerprint in before for method in sorted(fingerprint.methods)]
    new_methods = sorted(now.methods - set(methods))
    if methods and new_methods:
        deciding.append(f"{methods[-1]} steps, now {new_methods[-1]} ones")
    known: dict[str, set[str | None]] = {}
    for fingerprint in before:
        for plugin, digest in fingerprint.sources.items():
            known.setdefault(plugin, set()).add(digest)
    common = known.keys() & now.sources.keys()
    changed = sorted(plugin for plugin in common if now.sources[plugin] not in known[plugin])
    files = [name.removeprefix(DATA) for name in changed if name.startswith(DATA)]
    if sources := [plugin for plugin in changed if not plugin.startswith(DATA)]:
        deciding.append(f"the source of {list_some(sources)}")
    if files:
        deciding.append(f"the content of {list_some(files)}")
    other = [*_name_values(_OTHER, before, now)]
    codes = {fingerprint.code for fingerprint in before} - {None}
    if codes and now.code and now.code not in codes and not any(words.startswith("Graft ") for words in other):
        other.append(f"the code of Graft {now.version}, which was edited")
    return Changes(deciding=tuple(deciding), other=tuple(other), voids_promise=voids_promise)


def _name_values(
    names: Mapping[str, str], before: Sequence[StoredFingerprint], now: StoredFingerprint
) -> Iterator[str]:
    for name, word in names.items():
        known = [value for fingerprint in before if (value := getattr(fingerprint, name))]
        value = getattr(now, name)
        if known and value and value not in known:
            yield f"{word} {known[-1]}, now {value}"


def describe_gpu_rates(config: Mapping[str, Any], conditions: Sequence[StoredFingerprint]) -> Iterator[str]:
    """Yield the rates of the fused and the traced step of a trial, if this machine timed both."""
    processors = [fingerprint.processor or "" for fingerprint in conditions]
    names = {processor.partition(", ")[2] for processor in processors if processor.startswith("cuda")}
    if not names:
        return
    from workers.engine.fused import describe_kept_rates
    from workers.training.recipe import Recipe

    for name in sorted(names):
        for line in describe_kept_rates(Recipe.of(config).pad(), name):
            yield f"on {name} the fused step has {line}"
