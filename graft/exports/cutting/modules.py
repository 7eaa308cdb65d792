"""Modules of Graft and of users as syntax trees: what each of them defines, imports and binds."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.abc import InspectLoader
from typing import NamedTuple

from spaces.plugins.bundles import PREFIX

_OURS = ("graft.exports.scripts.", "spaces.", "workers.", PREFIX)
"""Prefixes of the modules whose text is taken over."""

_FIELDS = "spaces.plugins.fields"
"""The module of the functions that say which values a plug-in's field may have."""


class Symbol(NamedTuple):
    """A name at the top of a module."""

    module: str
    name: str


NEVER = frozenset(
    {
        Symbol("workers.numerics.native", "library"),
        Symbol("workers.numerics.regression", "draw_prompts"),
        Symbol("workers.numerics.stream_kernels", "draws_on"),
    }
)
"""Functions whose result counts as false in a file that stands alone, without native code."""


@dataclass(frozen=True, kw_only=True)
class Module:
    """A module's text, read but not run."""

    title: str
    package: str
    """The package that it lies in, in which relative imports begin."""
    lines: Sequence[bytes]
    """The lines in UTF-8, in which Python's parser counts columns."""
    statements: Mapping[str, ast.stmt]
    """Name -> the statement that defines it, in the order of the file."""
    ours: Mapping[str, Symbol]
    """Name -> the symbol of another module of ours, or that module, which it means."""
    foreign: Mapping[str, str]
    """Name -> the statement that imports it from elsewhere."""


@cache
def read_module(name: str) -> Module:
    """Return a module by its dotted name; its import finds those of plug-ins from outside."""
    spec = importlib.import_module(name).__spec__
    assert spec, "it was imported"
    package = spec.parent or ""
    # A folder without `__init__.py` has no text.
    text = (spec.loader.get_source(name) or "") if isinstance(spec.loader, InspectLoader) else ""
    tree = ast.parse(text)
    statements, ours, foreign = dict[str, ast.stmt](), dict[str, Symbol](), dict[str, str]()
    for node in tree.body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.asname or alias.name.partition(".")[0]
                parent, _, last = _find(alias.name if alias.asname else bound, package).rpartition(".")
                if is_taken_over(parent):  # as if it were `from parent import last`
                    ours[bound] = Symbol(parent, last)
                else:
                    foreign[bound] = _import_line(alias)
        elif isinstance(node, ast.ImportFrom) and node.module != "__future__":
            [source] = list_sources(node, package)
            for alias in node.names:
                if is_taken_over(source):
                    ours[alias.asname or alias.name] = Symbol(source, alias.name)
                else:
                    foreign[alias.asname or alias.name] = f"from {source} {_import_line(alias)}"
        else:
            statements |= dict.fromkeys(definitions(node), node)
    title = " ".join((ast.get_docstring(tree) or name).partition("\n\n")[0].split())
    lines = text.encode().splitlines()
    return Module(title=title, package=package, lines=lines, statements=statements, ours=ours, foreign=foreign)


def list_sources(node: ast.Import | ast.ImportFrom, package: str) -> Sequence[str]:
    """Return the full names of the modules from which a statement in a package imports."""
    if isinstance(node, ast.Import):
        return [_find(alias.name, package) for alias in node.names]
    return [_find("." * node.level + (node.module or ""), package)]


def _find(name: str, package: str) -> str:
    root, top = package.partition(".")[0], name.partition(".")[0]
    # A plug-in from outside imports its neighbours by their bare names; `top` is empty in a relative import.
    if top and root.startswith(PREFIX) and importlib.util.find_spec(f"{root}.{top}"):
        return f"{root}.{name}"
    return importlib.util.resolve_name(name, package)


def is_taken_over(source: str) -> bool:
    """Return whether the text of a module goes into files that stand alone."""
    return f"{source}.".startswith(_OURS)


@cache
def parse(text: str) -> ast.Module:
    """Return a syntax tree, the same one each time."""
    return ast.parse(text)


def _import_line(alias: ast.alias) -> str:
    return f"import {alias.name}" + (f" as {alias.asname}" if alias.asname else "")


def definitions(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement at the top of a module, or of a class, defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            yield from (part.id for part in ast.walk(target) if isinstance(part, ast.Name))


def defined(symbol: Symbol) -> Symbol:
    """Return the symbol where a name is defined, which may have come through other modules."""
    origin = read_module(symbol.module).ours.get(symbol.name, symbol)
    return symbol if origin == symbol else defined(origin)  # equal: a module that lies in a package


SCOPES = (ast.FunctionDef, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
"""Nodes that have names of their own."""


def bound_names(node: ast.AST) -> frozenset[str]:
    """Return the names that a function or comprehension binds itself, without those inside it."""
    names, waiting = set[str](), [*ast.iter_child_nodes(node)]
    while waiting:
        child = waiting.pop()
        if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            names.add(child.id)
        elif isinstance(child, ast.arg):
            names.add(child.arg)
        elif isinstance(child, ast.alias):
            names.add(child.asname or child.name.partition(".")[0])
        elif isinstance(child, ast.FunctionDef):
            names.add(child.name)
        if not isinstance(child, SCOPES):
            waiting += ast.iter_child_nodes(child)
    return frozenset(names)


def is_alias(symbol: Symbol) -> bool:
    """Return whether it is a type by another name: `Parameters`."""
    return isinstance(read_module(symbol.module).statements.get(symbol.name), ast.Assign)


def is_text(node: ast.stmt) -> bool:
    """Return whether a statement is a text: a docstring, or that of the field before it."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def is_class_variable(node: ast.AnnAssign) -> bool:
    """Return whether it is no field of a dataclass."""
    return ast.unparse(node.annotation).startswith("ClassVar")


def is_enumeration(node: ast.ClassDef) -> bool:
    """Return whether a class lists values, as Purpose and Split do."""
    kinds = ("Enum", "IntEnum", "StrEnum")
    return any(isinstance(base, ast.Name) and base.id in kinds for base in node.bases)


def is_field(node: ast.AnnAssign, module: str) -> bool:
    """Return whether it is a plug-in's field, whose value is in the configuration."""
    value = node.value
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Name):
        return False
    return read_module(module).ours.get(value.func.id, Symbol("", "")).module == _FIELDS


def registers(decorator: ast.expr) -> bool:
    """Return whether a decorator makes a torch operation, which the engine's recordings need."""
    return ast.unparse(decorator).startswith("torch.library.")


def is_defined(symbol: Symbol) -> bool:
    """Return whether it is a name in a module, and no module itself."""
    read = read_module(symbol.module)
    return symbol.name in read.statements or symbol.name in read.ours


def resolve(node: ast.AST, module: str, bound: Container[str] = ()) -> Symbol | None:
    """Return our symbol that `name` or `module.name` means in a module, unless `bound` hides it."""
    if isinstance(node, ast.Name) and node.id not in bound:
        read = read_module(module)
        symbol = Symbol(module, node.id) if node.id in read.statements else read.ours.get(node.id)
        return symbol and defined(symbol)
    if isinstance(node, ast.Attribute) and (owner := resolve(node.value, module, bound)) and not is_defined(owner):
        return defined(Symbol(f"{owner.module}.{owner.name}", node.attr))
    return None


def list_unreached(node: ast.AST, module: str) -> Iterator[ast.stmt]:
    """Yield the statements of a function that depend on what one of `NEVER` returns."""
    off = set[str]()

    def is_off(value: ast.expr) -> bool:
        match value:
            case ast.Constant():
                return not value.value
            case ast.Name():
                return value.id in off
            case ast.Call():
                return resolve(value.func, module, off) in NEVER
            case ast.IfExp():
                return is_off(value.body) and is_off(value.orelse)
            case ast.BoolOp():
                return (any if isinstance(value.op, ast.And) else all)(map(is_off, value.values))
            case _:
                return False

    for part in ast.walk(node):
        match part:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() | ast.IfExp()) if is_off(part.value):
                off.add(name)
                yield part
            case ast.If(orelse=[]) if is_off(part.test):
                yield part
            case _:
                pass


def first_line(node: ast.stmt) -> int:
    """Return the line on which a statement begins, its decorators included."""
    decorators: Sequence[ast.expr] = getattr(node, "decorator_list", ())
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])
