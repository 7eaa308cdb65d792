"""The versions that determine a trial's numbers beside its configuration and seed."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import torch

import workers
from spaces import plugins
from spaces.plugins.digests import DIGITS
from spaces.records import DATA, Fingerprint
from workers.networks.diagnostics import Diagnostic
from workers.numerics import native
from workers.numerics.processors import describe_processor
from workers.numerics.version import NUMERICS
from workers.training.recipe import SECTIONS, Recipe

_COMPUTING = ("data", "engine", "networks", "numerics", "training")
"""The folders of `workers` whose code computes numbers; `pool` only says where."""
FAMILIES = (
    "data/corpora",
    "data/tasks",
    "data/tokenizers",
    "networks/activations",
    "networks/diagnostics",
    "networks/models",
    "networks/positions",
    "networks/scorers",
    "training/averaging",
    "training/learning",
    "training/optimizers",
    "training/schedules",
)
"""The folders of plug-ins: a trial depends only on those that it names."""
_PACKAGES = {f"workers.{folder.replace('/', '.')}" for folder in FAMILIES}
_IMPORT = re.compile(r"^\s*from (workers(?:\.\w+)+) import", re.MULTILINE)


def fingerprint_of(recipe: Recipe, step_kind: str, device: torch.device) -> Fingerprint:
    """Return the fingerprint of a trial of this recipe, by steps of this kind on this device."""
    here = fingerprint_here(str(device))
    compiler = here.compiler if step_kind.startswith(("native", "generated")) else ""
    data = {(DATA + file.written, file.digest) for part in _parts(recipe) for file in plugins.files_of(part)}
    sources = tuple(sorted({*_sources_of(plugins_in(recipe)), *data}))
    return here._replace(compiler=compiler, step_kind=step_kind, sources=sources)


def check_data(recipe: Recipe) -> None:
    """Raise PluginError if a file that a plug-in from outside reads differs from the study's.

    Graft's own plug-ins check a file when they read it. One from outside may read, or map into
    memory, at any time, so that its files are checked before a trial and at each report.
    """
    for part in _parts(recipe):
        files = list(plugins.files_of(part))
        if files and any(map(plugins.code_of_class, (member for _, member in plugins.parts(part, "")))):
            for file in files:
                file.check()


def fingerprint_here(device: str) -> Fingerprint:
    """Return the fingerprint of a device of this machine, without a kind of step or plug-ins."""
    where = torch.device(device)
    return Fingerprint(
        numerics=NUMERICS,
        code=code_digest(),
        torch=torch.__version__,
        processor=describe_processor(where.type, where.index or 0),
        compiler=native.describe_compiler() if where.type == "cpu" else "",
        step_kind="",
        sources=(),
    )


@cache
def code_digest() -> str:
    """Return SHA-256 of the files of Graft that decide all trials' numbers, as loaded here."""
    root = Path(workers.__file__).parent
    members = {path for family in FAMILIES for path in (root / family).glob("[!_]*.py")}
    paths = (path for folder in _COMPUTING for path in (root / folder).rglob("*"))
    computing = {path for path in paths if path.suffix in (".py", ".cpp", ".hpp", ".cu")} - members
    return _digest((str(path.relative_to(root)), path.read_bytes()) for path in sorted(computing))


def source_digest(member: type) -> str:
    """Return SHA-256 of a plug-in's source: its file and those that it shares, or its bundle's."""
    return plugins.code_of_class(member) or _packaged_digest(member.__module__)


@cache
def _packaged_digest(module: str) -> str:
    """Return the digest of a file, and of those in plug-ins' folders that it imports."""
    root = Path(workers.__file__).parents[1]
    waiting, texts = [module], dict[str, bytes]()
    while waiting:
        name = waiting.pop()
        path = root.joinpath(*name.split(".")).with_suffix(".py")
        if name not in texts and path.is_file():
            texts[name] = path.read_bytes()
            imported: list[str] = _IMPORT.findall(texts[name].decode())
            waiting += [source for source in imported if source.rpartition(".")[0] in _PACKAGES]
    return _digest(sorted(texts.items()))


def _digest(files: Iterable[tuple[str, bytes]]) -> str:
    digest = hashlib.sha256()
    for name, content in files:
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:DIGITS]


@cache
def _sources_of(members: frozenset[tuple[str, type]]) -> tuple[tuple[str, str], ...]:
    named = ((f"{kind} {member.__module__.rpartition('.')[2]}", source_digest(member)) for kind, member in members)
    return tuple(sorted(named))


def _parts(recipe: Recipe) -> Iterator[object]:
    """Yield a recipe's plug-ins, without their parts."""
    return (getattr(recipe, name) for name in SECTIONS if name != "training")


def plugins_in(recipe: Recipe) -> frozenset[tuple[str, type]]:
    """Return family and class of each plug-in that a trial's numbers depend on."""
    sections = [name for name in SECTIONS if name != "training"]
    members = {part for name in sections for part in plugins.parts(getattr(recipe, name), name)}
    if recipe.training.diagnostics:
        members |= {("diagnostic", plugins.load(Diagnostic, name)) for name in plugins.names(Diagnostic)}
    return frozenset(members)
