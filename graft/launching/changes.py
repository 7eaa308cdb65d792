"""Changes since a study was last trained: those that move numbers must be accepted."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from graft.plugins.data import DataChange, collect_data, find_changed_data
from graft.plugins.families import family_of, version
from graft.plugins.stored import describe_changes, read_outside, reread
from graft.stored.fingerprints import SURROGATE, StoredFingerprint, compare_fingerprints, read_fingerprints
from spaces import plugins
from spaces.errors import PluginError, StudyError
from spaces.messages import list_some
from spaces.plugins.active import using
from spaces.plugins.files import sendable
from spaces.records import DATA
from storage import open_reader, open_store

if TYPE_CHECKING:
    from graft.launching.placement import Placement
    from storage import Store
    from storage.frames import Reader

APART = "the column `fingerprint` of its trials tells them apart"


def settle_changes(
    url: str, study: str, placement: Placement, *, accept: bool, store: Store | None = None
) -> list[str]:
    """Return the lines that a user should read before a study is resumed on a resolved `placement`.

    A change that moves numbers (numerics, torch, plug-ins, data, the kind of step) raises
    StudyError unless `accept` is True. Then changed files replace the stored ones. A process that
    may write the database already passes its `store`.
    """
    lines: list[str] = []
    if accept:
        lines += _take_changed_files(url, study)
    with open_reader(url) as reader:
        study_id: int = reader.study(study).row["id"]
        outside = read_outside(reader, study)
        before = read_fingerprints(reader, study)
        with using(outside):
            changes = compare_fingerprints(before, _fingerprint_now(reader, study, before, placement))
        if is_unknown := reader.study(study).data() is None:
            collect_data(reader, study, outside)
            changed: list[DataChange] = []
        else:
            changed = find_changed_data(reader, study)
    deciding = [*changes.deciding, *(change.description for change in changed)]
    missing = [change.description for change in changed if change.now is None]
    if missing and accept:
        raise StudyError(f"study {study!r} cannot go on: {'; '.join(missing)}")
    if deciding and not accept:
        made_by = [fingerprint.version for fingerprint in before if fingerprint.version]
        other = f", or with Graft {made_by[-1]}" if changes.deciding and made_by and made_by[-1] != version() else ""
        raise StudyError(
            f"study {study!r} would not train as before: {'; '.join(deciding)}; resume with "
            f"--accept-changes ({APART}){other}"
        )
    if is_unknown or changed:
        with nullcontext(store) if store else open_store(url) as writing:
            if is_unknown:
                writing.add_data(study_id, outside.data)
            else:
                writing.replace_data(study_id, {change.name: change.now for change in changed if change.now})
    if is_unknown and outside.data and before:
        lines.append(
            f"what its trials read from disk ({list_some([*outside.data])}) was not stored with {study}, so that "
            "whether it has changed is unknown; from here on it is compared"
        )
    if deciding:
        lines.append(f"from here on {study} is trained otherwise: {'; '.join(deciding)}; {APART}")
    if changes.other:
        lines.append(f"{study} was trained by {'; '.join(changes.other)}")
    if note := describe_changes(study, outside):
        lines.append(note)
    if placement.ray_address is not None and (sent := sendable(outside.data)):
        size = sum(data.state.size for data in sent.values()) / 1e6
        lines.append(f"{study} sends {size:,.3g} MB of data to the cluster's workers ({list_some([*sent])})")
    return lines


def _take_changed_files(url: str, study: str) -> list[str]:
    with open_reader(url) as reader:
        fresh = reread(reader, study)
        study_id = reader.study(study).row["id"]
    if not fresh:
        return []
    with open_store(url) as store:
        store.replace_bundles(study_id, fresh)
    files = sorted({source.path for bundle in fresh.values() for source in bundle.sources})
    return [f"from here on {study} runs {list_some(files)} as they are now; {APART}"]


def _fingerprint_now(
    reader: Reader, study: str, before: Sequence[StoredFingerprint], placement: Placement
) -> StoredFingerprint:
    """Return the fingerprint that trials would get now; a cluster's processors are not known."""
    from workers.engine.fingerprints import fingerprint_here, source_digest

    if placement.surrogate is not None:
        from graft.launching.surrogate import TrialTable  # with scipy, which takes a while

        return StoredFingerprint(step_kind=SURROGATE, code=TrialTable(Path(placement.surrogate)).digest, sources={})
    known = sorted({plugin for fingerprint in before for plugin in fingerprint.sources if not plugin.startswith(DATA)})
    sources: dict[str, str | None] = dict.fromkeys(known)  # None: there is no such plug-in any more
    for plugin in known:
        family, name = plugin.split(" ", 1)
        with suppress(PluginError):
            sources[plugin] = source_digest(plugins.load(family_of(family), name))
    here = fingerprint_here(str(placement.device))
    far = placement.ray_address is not None
    return StoredFingerprint(
        numerics=here.numerics,
        version=version(),
        code=here.code,
        torch=here.torch,
        processor=None if far else here.processor,
        compiler=None if far else here.compiler,
        step_kind=None if far else ", ".join(_methods_now(reader, study, before, str(placement.device))),
        sources=sources,
    )


def _methods_now(reader: Reader, study: str, before: Sequence[StoredFingerprint], device: str) -> Iterator[str]:
    """Yield the method by which a trial of each fingerprint would be trained on this machine."""
    from workers.engine.step import method_of

    for fingerprint in before:
        if fingerprint.methods:
            where = f"fingerprint = {fingerprint.number}"
            for (config,) in reader.study(study).trials(where, "number", 1, ("config",)).iter_rows():
                yield method_of(json.loads(config), device)
