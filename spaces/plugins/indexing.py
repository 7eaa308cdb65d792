"""Finds plug-ins of files, folders and packages, and their local imports, without importing."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

from spaces.errors import PluginError
from spaces.messages import shorten
from spaces.plugins.bundles import Bundle, Member, Source

MOST_FILES = 200
LARGEST_FILE = 1 << 20
"""Bytes of a file."""
PLUGIN_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
OURS = {"cli", "graft", "graft_search", "search", "spaces", "storage", "workers"}


class Place(NamedTuple):
    """The place where a class is defined."""

    module: str
    name: str


class Indexer:
    """Collects the plug-ins of entries such as `./mine.py`, `./folder` and `mypackage.tasks`."""

    def __init__(self, families: Mapping[Place, str]) -> None:
        """`families`: place of a family's abstract class -> the family."""
        self._families = families
        self._bundles: dict[tuple[Path, str], Bundle] = {}
        """Bundles by folder and package in it; files side by side share their imports."""

    def copy(self) -> Indexer:
        """Return another one with the same plug-ins."""
        other = Indexer(self._families)
        other._bundles = dict(self._bundles)
        return other

    @property
    def bundles(self) -> tuple[Bundle, ...]:
        """The bundles that were added."""
        return tuple(self._bundles.values())

    def add(self, entry: str, folder: Path, *, origin: str = "", is_installed: bool = False) -> None:
        """Add the plug-ins of a file, of a folder's files, or of a module or package.

        Paths are relative to `folder`, where modules are looked for first, too. Messages call the
        entry `origin`. Raises PluginError, one line, if it is missing or defines no plug-in.
        """
        root, modules = _locate(entry, folder, origin or entry)
        bundle = _Reader(root, self._families).read(modules, origin or entry)
        key = root, modules[0].partition(".")[0] if "." in modules[0] else ""
        before = self._bundles.get(key)
        if before is None:
            self._bundles[key] = replace(bundle, is_installed=is_installed)
            return
        sources = {source.module: source for source in (*before.sources, *bundle.sources)}
        known = {(member.family, member.name, member.module) for member in before.members}
        more = [member for member in bundle.members if (member.family, member.name, member.module) not in known]
        self._bundles[key] = replace(
            before,
            sources=tuple(sources.values()),
            members=(*before.members, *more),
            is_installed=before.is_installed and is_installed,
        )


def _locate(entry: str, folder: Path, origin: str) -> tuple[Path, list[str]]:
    """Return the folder that an entry's modules are imported from, and their dotted names."""
    where = f"plug-in {shorten(repr(origin))}"
    if entry.endswith(".py") or "/" in entry or entry.startswith(("~", ".")):
        try:
            path = (folder / Path(entry).expanduser()).resolve()
        except (OSError, RuntimeError) as error:  # a circle of symbolic links, or ~NOBODY
            raise PluginError(f"{where}: {error}") from None
        if path.is_dir():
            return path, _plugin_files(path, origin)
        if not path.is_file():
            raise PluginError(f"{where}: there is no file {path}")
        if path.suffix != ".py" or not PLUGIN_NAME.fullmatch(path.stem):
            rule = "the file's name is the plug-in's: letters, digits and _, then .py"
            raise PluginError(f"{where}: {rule}")
        return path.parent, [path.stem]
    if not _DOTTED.fullmatch(entry):
        ways = "a file (./mine.py), a folder (./mine) or a module (package.mine)"
        raise PluginError(f"{where}: write {ways}")
    if entry.partition(".")[0] in OURS:
        raise PluginError(f"{where}: what Graft packages needs not be asked for")
    root = _root_of(entry, folder)
    file = _find(root, entry) if root else None
    if root is None or file is None:
        hint = f"; write ./{entry} for the folder" if (folder / entry).is_dir() else ""
        raise PluginError(f"{where}: there is no such module here, and none is installed{hint}")
    if file.name != "__init__.py":
        return root, [entry]
    return root, [f"{entry}.{name}" for name in _plugin_files(file.parent, origin)]


def _plugin_files(folder: Path, origin: str) -> list[str]:
    names = sorted(path.stem for path in folder.glob("*.py") if PLUGIN_NAME.fullmatch(path.stem))
    if not names:
        problem = f"{folder} has no file that could be a plug-in"
        raise PluginError(f"plug-in {shorten(repr(origin))}: {problem}")
    return names


def _root_of(module: str, folder: Path) -> Path | None:
    """Return the folder, on Python's path or `folder`, that has a module's top-level package."""
    top = module.partition(".")[0]
    if top in OURS:
        return Path(__file__).parents[2]  # a folder of the user's may have the same name
    if _find(folder, top) or (folder / top).is_dir():
        return folder.resolve()
    try:
        spec = importlib.util.find_spec(top)  # of a top-level name: nothing is imported
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).parent
    return Path(spec.origin).parent if spec.origin else None


def _find(root: Path, module: str) -> Path | None:
    """Return the file of a module below a folder."""
    path = root.joinpath(*module.split("."))
    for file in (path / "__init__.py", path.with_suffix(".py")):
        if file.is_file():
            return file
    return None


@cache
def _foreign_folders() -> tuple[Path, ...]:
    """Return the folders that Python and installed packages lie in."""
    paths = sysconfig.get_paths()
    folders = [Path(paths[key]) for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    # A virtual environment may see the packages of its own Python, or of the user's home, too.
    others = [Path(folder) for folder in sys.path if Path(folder).name in ("site-packages", "dist-packages")]
    return tuple({path.resolve() for path in (*folders, *others)})


def _read(path: Path) -> tuple[str, ast.Module]:
    """Return the text and the syntax tree of a file."""
    try:
        state = path.stat()
        if state.st_size > LARGEST_FILE:
            sizes = f"may have {LARGEST_FILE:,} bytes, this one has {state.st_size:,}"
            raise PluginError(f"{path}: a plug-in's file {sizes}")
        return _read_version(path, state.st_mtime_ns, state.st_size)
    except OSError as error:
        raise PluginError(f"{path}: it cannot be read: {error.strerror}") from None


@lru_cache(maxsize=4 * MOST_FILES)
def _read_version(path: Path, changed_at: int, size: int) -> tuple[str, ast.Module]:
    try:
        text = path.read_bytes().decode("utf-8-sig")
        return text, ast.parse(text, filename=str(path))
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        byte = error.object[error.start]
        raise PluginError(f"{path}:{line}: byte 0x{byte:02x} is not UTF-8") from None
    except SyntaxError as error:
        raise PluginError(f"{path}:{error.lineno}: SyntaxError: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise PluginError(f"{path}: it is no Python: {error}") from None


class _Reader:
    """Reads the files of one bundle."""

    def __init__(self, root: Path, families: Mapping[Place, str]) -> None:
        self._root = root
        self._families = families
        self._sources: dict[str, Source] = {}

    def read(self, modules: list[str], origin: str) -> Bundle:
        """Return the modules' plug-ins, and the modules with all local files that they import."""
        members = [member for module in modules for member in self._members(module, origin)]
        if not members:
            known = ", ".join(self._families.values())
            problem = f"no class in it derives from a family's class ({known})"
            raise PluginError(f"plug-in {shorten(repr(origin))}: {problem}")
        for module in dict.fromkeys(member.module for member in members):
            self._add(module)
        return Bundle(sources=tuple(self._sources.values()), members=tuple(members))

    def _members(self, module: str, origin: str) -> Iterator[Member]:
        path = self._file(module)
        if path is None:
            problem = f"Python or Graft has a module {module!r} of its own; rename the file"
            raise PluginError(f"plug-in {shorten(repr(origin))}: {problem}")
        classes = [node for node in _read(path)[1].body if isinstance(node, ast.ClassDef)]
        nodes: dict[str, ast.ClassDef] = {}
        for node in classes:
            if node.name.startswith("_"):
                continue
            family = self._family_of(Place(module, node.name), frozenset())
            # A class that has ABC among its own bases is one that others derive from.
            is_abstract = any(ast.unparse(base).rpartition(".")[2] == "ABC" for base in node.bases)
            if family is None or is_abstract:
                continue
            if family in nodes:
                raise PluginError(
                    f"{path}:{node.lineno}: {node.name} is the second {family} of the file, after "
                    f"{nodes[family].name} in line {nodes[family].lineno}; a file defines one plug-in of a family, "
                    "which has the file's name (a class whose name starts with _ is none)"
                )
            nodes[family] = node
        name = module.rpartition(".")[2]
        for family, node in nodes.items():
            yield Member(family=family, name=name, module=module, line=node.lineno, origin=origin)

    def _family_of(self, place: Place, seen: frozenset[Place]) -> str | None:
        """Return the family that a class belongs to, by its bases and theirs, as the files say."""
        if place in self._families:
            return self._families[place]
        path = None if place in seen else self._file(place.module, beyond=True)
        if path is None:
            return None
        for node in _read(path)[1].body:
            if isinstance(node, ast.ClassDef) and node.name == place.name:
                bases = [self._place_of(base, place.module, path) for base in node.bases]
                families = (self._family_of(base, seen | {place}) for base in bases if base)
                return next((family for family in families if family), None)
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if (alias.asname or alias.name) == place.name:
                        module = _absolute(node, place.module, path)
                        return self._family_of(Place(module, alias.name), seen | {place})
        return None

    def _place_of(self, base: ast.expr, module: str, path: Path) -> Place | None:
        """Return the place where a base class in a file is defined, or imported from."""
        if isinstance(base, ast.Subscript):
            return self._place_of(base.value, module, path)
        if isinstance(base, ast.Name):
            return Place(module, base.id)
        if not isinstance(base, ast.Attribute):
            return None
        prefix = ast.unparse(base.value)
        for node in ast.walk(_read(path)[1]):
            if not isinstance(node, ast.Import | ast.ImportFrom):
                continue
            for alias in node.names:
                if (alias.asname or alias.name) != prefix:
                    continue
                if isinstance(node, ast.Import):
                    return Place(alias.name, base.attr)
                return Place(f"{_absolute(node, module, path)}.{alias.name}", base.attr)
        return None

    def _file(self, module: str, *, beyond: bool = False) -> Path | None:
        """Return the file of a module of this bundle; `beyond`: of any that Python finds."""
        top = module.partition(".")[0]
        if top in sys.stdlib_module_names:
            return None
        file = None if top in OURS else _find(self._root, module)
        if file:
            return file
        root = _root_of(module, self._root)
        path = _find(root, module) if root else None
        if path is None or beyond:
            return path
        # A folder of the user's on Python's path belongs to the plug-in as its own folder does.
        target = path.resolve()
        foreign = top in OURS or any(map(target.is_relative_to, _foreign_folders()))
        return None if foreign else path

    def _add(self, module: str) -> None:
        """Add a module's file, those of the packages around it, and those that it imports."""
        if module in self._sources:
            return
        path = self._file(module)
        if path is None:
            return
        text, tree = _read(path)
        is_package = path.name == "__init__.py"
        source = Source(module=module, path=str(path), text=text, is_package=is_package)
        self._sources[module] = source
        if len(self._sources) > MOST_FILES:
            limit = f"a plug-in may import {MOST_FILES} local files; this one imports more"
            raise PluginError(f"{path}: {limit}")
        parent = module.rpartition(".")[0]
        if parent:
            self._add(parent)
        for node in ast.walk(tree):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                base = _absolute(node, module, path)
                # Each name may be a module.
                names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
            for name in names:
                self._add(name)


def _absolute(node: ast.ImportFrom, module: str, path: Path) -> str:
    """Return the dotted name that a `from` statement imports from."""
    if not node.level:
        return node.module or ""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    parts = package.split(".")[: len(package.split(".")) - node.level + 1]
    return ".".join(filter(None, [*parts, node.module]))
