"""Plug-ins without files: source text, or a class of a notebook's cell."""

from __future__ import annotations

import ast
import inspect
import linecache
import re
import symtable
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import FunctionType

from graft.exports.cutting.modules import SCOPES, first_line
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

        Its text has the statements of the same cell that the class needs: imports, functions, classes,
        and all that set its constants. Raises PluginError if the source cannot be found, and if a
        call beside them changes a constant: `SCALES.append(4.0)`.
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
    kept, needed = _choose_statements(tree.body, member.__name__)
    for node in tree.body:
        changed = set[str]() if node in kept else needed.intersection(_list_called_objects(node))
        if changed:
            raise PluginError(
                f"{member.__name__}: line {node.lineno} of its cell changes {min(changed)} by a call, which is not "
                "stored; hand over text, graft.Plugin(name, text), or a file"
            )
    wanted: set[int] = set()
    for node in kept:
        wanted.update(range(first_line(node), (node.end_lineno or node.lineno) + 1))
    lines = enumerate(text.splitlines(), 1)
    return "\n".join(line if number in wanted else "" for number, line in lines) + "\n"


def _choose_statements(body: Sequence[ast.stmt], name: str) -> tuple[set[ast.stmt], set[str]]:
    """Return the statements that a name of a cell needs, and the names that these need, but for imports."""
    set_by, needed_by = dict[ast.stmt, set[str]](), dict[ast.stmt, set[str]]()
    for node in body:
        set_by[node], needed_by[node] = _read_names(node)
    needed, kept = {name}, set[ast.stmt]()
    before = -1
    while before != len(kept):
        before = len(kept)
        for node, names in set_by.items():
            is_future = isinstance(node, ast.ImportFrom) and node.module == "__future__"
            if node not in kept and (names & needed or is_future):
                kept.add(node)
                needed |= needed_by[node]
    imported = {name for node in body if isinstance(node, ast.Import | ast.ImportFrom) for name in set_by[node]}
    return kept, needed - imported


def _read_names(statement: ast.stmt) -> tuple[set[str], set[str]]:
    """Return the names of a cell that a statement sets, and those that it needs.

    `SCALES[0] += 1` sets `SCALES`. Local variables of functions are neither.
    """
    top = symtable.symtable(ast.unparse(statement), "<cell>", "exec")
    needs = {symbol.get_name() for symbol in top.get_symbols()}
    sets = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    for node in _walk_outside_scopes(statement):
        if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            sets |= _name_object(node)
    inner = list(top.get_children())
    while inner:
        scope = inner.pop()
        inner += scope.get_children()
        # A class's body reads a name of the cell until it has set a field of that name: `scale = scale`.
        is_class = scope.get_type() == "class"
        read = (symbol for symbol in scope.get_symbols() if symbol.is_global() or (is_class and symbol.is_referenced()))
        needs |= {symbol.get_name() for symbol in read}
    return sets, needs


def _list_called_objects(statement: ast.stmt) -> set[str]:
    """Return the objects whose methods a statement calls for no result, as `SCALES.append(4.0)` does."""
    names = set[str]()
    for node in _walk_outside_scopes(statement):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            names |= _name_object(node.value.func) if isinstance(node.value.func, ast.Attribute) else set()
    return names


def _walk_outside_scopes(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yield a statement and its parts, without functions and classes."""
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, (*SCOPES, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node
            waiting += ast.iter_child_nodes(node)


def _name_object(node: ast.expr) -> set[str]:
    """Return the name of the object that `name.attribute[index]` is a part of, if it has one."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return {node.id} if isinstance(node, ast.Name) else set()


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
