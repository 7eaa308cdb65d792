"""Plug-ins without files: source text, or a class of a notebook's cell."""

from __future__ import annotations

import ast
import inspect
import linecache
import re
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import FunctionType

from graft.exports.cutting.modules import definitions, first_line
from graft.plugins.collecting import plugins_asked_for
from spaces.errors import PluginError
from spaces.plugins.bundles import Outside
from spaces.plugins.indexing import PLUGIN_NAME

_OTHERWISE = "let it stand at the top of its cell, or hand over text, graft.Plugin(name, text), or a file"
_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@dataclass(frozen=True)
class Plugin:
    """The source text of a plug-in's file, which is stored with every study that runs it.

    Files of one call may import one another by their names.
    """

    name: str
    text: str

    def __post_init__(self) -> None:
        if not PLUGIN_NAME.fullmatch(self.name):
            raise PluginError(f"plug-in {self.name!r}: the name is a word of letters, digits and _")

    @property
    def has_class(self) -> bool:
        """True if the text may define a plug-in; a text without a class is for others to import."""
        return re.search(r"^class\s", self.text, flags=re.MULTILINE) is not None

    @classmethod
    def of(cls, member: type, name: str | None = None) -> Plugin:
        """Return the plug-in of a class of a notebook or a script (`WarmSoftmax`: `warm_softmax`).

        Its text has the imports, constants, functions and classes of the same cell that the class
        needs. Raises PluginError if the source cannot be found.
        """
        name = name or _CAPITAL.sub("_", member.__name__).lower()
        return cls(name, _read_cell(member))


def collect_plugins(plugins: Sequence[str | Path | Plugin | type]) -> Outside:
    """Find plug-ins in files, modules, texts, classes and installed packages, and import none.

    Raises SpaceError or PluginError, one line.
    """
    texts = [Plugin.of(code) if isinstance(code, type) else code for code in plugins if isinstance(code, type | Plugin)]
    asked = [str(plugin) for plugin in plugins if isinstance(plugin, str | Path)]
    names = [plugin.name for plugin in texts]
    if twice := {name for name in names if names.count(name) > 1}:
        raise PluginError(f"plug-in {min(twice)!r} is given twice")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="graft-"))).resolve()
        for plugin in texts:
            path = folder / f"{plugin.name}.py"
            path.write_text(plugin.text, encoding="utf-8")
            if len(texts) == 1 or plugin.has_class:
                asked.append(str(path))
        outside = plugins_asked_for(asked)
    # The files are deleted by now, so that `<source of NAME>` replaces their paths.
    bundles = [
        replace(
            bundle,
            sources=tuple(replace(source, path=_rename_source(source.path, folder)) for source in bundle.sources),
            members=tuple(replace(member, origin=_rename_source(member.origin, folder)) for member in bundle.members),
        )
        for bundle in outside.bundles
    ]
    return Outside(bundles=tuple(bundles), faults=outside.faults)


def _rename_source(path: str, folder: Path) -> str:
    return f"<source of {Path(path).stem}>" if Path(path).parent == folder else path


def _read_cell(member: type) -> str:
    """Return the lines of a notebook's cell that a class needs, at their line numbers."""
    text = _read_source(member)
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise PluginError(f"{member.__name__}: its cell cannot be read: {error.msg} in line {error.lineno}") from None
    if not any(isinstance(node, ast.ClassDef) and node.name == member.__name__ for node in tree.body):
        raise PluginError(f"{member.__name__}: its source is not known; {_OTHERWISE}")
    provided: dict[ast.stmt, set[str]] = {}  # the names that each statement defines or imports
    for node in tree.body:
        provided[node] = set(definitions(node))
        if isinstance(node, ast.Import | ast.ImportFrom):
            provided[node] = {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    needed, kept = {member.__name__}, set[ast.stmt]()
    before = -1
    while before != len(kept):
        before = len(kept)
        for node, names in provided.items():
            is_future = isinstance(node, ast.ImportFrom) and node.module == "__future__"
            if node not in kept and (names & needed or is_future):
                kept.add(node)
                needed |= {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
    wanted: set[int] = set()
    for node in kept:
        wanted.update(range(first_line(node), (node.end_lineno or node.lineno) + 1))
    lines = enumerate(text.splitlines(), 1)
    return "\n".join(line if number in wanted else "" for number, line in lines) + "\n"


def _read_source(member: type) -> str:
    """Return the whole source of the cell, or the file, in which a class is defined."""
    functions = [value for value in vars(member).values() if isinstance(value, FunctionType)]
    functions += [value.fget for value in vars(member).values() if isinstance(value, property) and value.fget]
    for function in functions:
        name = function.__code__.co_filename
        # Methods written by @dataclass have the file name <string>.
        if name != "<string>" and (lines := linecache.getlines(name)):
            return "".join(lines)
    try:
        return inspect.getsource(inspect.getmodule(member) or member)
    except (OSError, TypeError):
        raise PluginError(f"{member.__name__}: its source is not known; {_OTHERWISE}") from None
