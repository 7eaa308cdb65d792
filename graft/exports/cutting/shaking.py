"""One file out of the classes and functions that a program is made of: Graft's, and a user's.

A statement at the top of a module is kept where kept code names it, a method where kept code has an
attribute of that name: checks and descriptions of plug-ins are left out. What computes stays as it
is written, so that the file gives the same bits; stand-ins replace what asks the engine.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from typing import Any

from graft.exports.cutting.modules import (
    SCOPES,
    Module,
    Symbol,
    bound_names,
    defined,
    definitions,
    first_line,
    is_alias,
    is_class_variable,
    is_defined,
    is_enumeration,
    is_field,
    is_taken_over,
    is_text,
    list_sources,
    list_unreached,
    parse,
    read_module,
    registers,
    resolve,
)
from spaces.errors import StudyError
from spaces.plugins.bundles import PREFIX
from spaces.plugins.indexing import OURS

Object = type | Callable[..., Any]
StandIns = Mapping[Symbol, str]
"""Symbol, also `Class.method` -> the text in its place; an empty one leaves it out."""

STAND_INS: StandIns = {
    Symbol("spaces.plugins", "actual"): (
        "def actual(plugin, field):\n"
        '    """A size of a plug-in; nothing is padded here."""\n'
        "    return getattr(plugin, field)"
    ),
    Symbol("workers.networks.activations._spline", "interpolate"): (
        "def interpolate(points, knots, low, high):\n"
        '    """The spline with values `knots` at evenly spaced positions; constant beyond the ends."""\n'
        "    return gather_knots(points, knots, low, (knots.shape[-1] - 1) / (high - low))"
    ),
}
"""Stand-ins of every file, for code that asks the engine for more than a model needs."""

ENDS: Sequence[str] = ("build", "CLASSES", "DATA", "DIVERGENCE", "EVALUATION_SEED", "NOT_COMPUTED", "STAGES", "STORED")
"""Names that files have for what is written at their beginning or end."""


@dataclass(frozen=True, kw_only=True)
class Shaken:
    """The text of the file, and the names in it of the classes and functions that were wanted."""

    text: str
    names: Mapping[Object, str]
    packages: Sequence[str]
    """The packages that it imports from, sorted."""

    def needed(self, *usual: str) -> str:
        """Return the packages that the file needs as `numpy, torch and scipy`, `usual` first."""
        known = (*sys.stdlib_module_names, *usual)
        needed = [*usual, *(package for package in self.packages if package not in known)]
        return f"{', '.join(needed[:-1])} and {needed[-1]}"


def shake(wanted: Iterable[Object], methods: Iterable[str], stand_ins: StandIns | None = None) -> Shaken:
    """Return the classes, with these methods, and the functions, and all that they need.

    Raises StudyError for code that needs a whole module of Graft or imports it where it is not
    taken out of it, and for two things of one name.
    """
    symbols = {member: Symbol(member.__module__, member.__name__) for member in wanted}
    kept = _Kept(methods=set(methods), stand_ins={**STAND_INS, **(stand_ins or {})})
    kept.close(symbols.values())
    names = _name(kept)
    modules = dict.fromkeys(symbol.module for symbol in kept.symbols)
    needs = dict[str, list[str]]()
    for name in modules:
        ours = {defined(symbol).module for symbol in read_module(name).ours.values() if is_defined(symbol)}
        used = {symbol.module for symbol in kept.used.get(name, ())}
        # Sorted, as sets of texts come in another order in each process.
        needs[name] = sorted((ours & modules.keys() | used) - {name})
    sections = list[str]()
    for module in TopologicalSorter(needs).static_order():
        texts = [kept.text(symbol, names) for symbol in kept.in_order(module)]
        sections.append("\n\n\n".join([f"# {read_module(module).title}\n# {'-' * 98}", *texts]))
    whole = sorted(statement for statement in kept.imports if statement.startswith("import "))
    given = dict[str, list[str]]()  # module -> the names from it, which share a line
    for statement in sorted(kept.imports.difference(whole)):
        source, _, name = statement.partition(" import ")
        given.setdefault(source, []).append(name)
    parts = [f"{source} import {', '.join(imported)}" for source, imported in given.items()]
    imports = "\n".join([*whole, *parts])
    text = "\n\n\n".join([f"from __future__ import annotations\n\n{imports}", *sections])
    named = {member: names[symbol] for member, symbol in symbols.items()}
    return Shaken(text=text, names=named, packages=sorted(kept.packages))


# --------------------------------------------------------------------------------- what is needed


@dataclass(kw_only=True)
class _Kept:
    """The symbols, imports and attribute names that are kept so far."""

    methods: set[str]
    """Names of attributes in kept code: a method of such a name is kept."""
    stand_ins: StandIns
    symbols: dict[Symbol, None] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    """The nodes that were looked into, by `id`; syntax trees are read once and stay."""
    unreached: set[int] = field(default_factory=set)
    """Statements that are looked into no more, as nothing leads to them in the new file."""
    imports: set[str] = field(default_factory=set)
    """The statements at the top of modules."""
    packages: set[str] = field(default_factory=set)
    """The packages that these statements, and those inside functions, import from."""
    used: dict[str, set[Symbol]] = field(default_factory=dict)
    """Module -> what its kept statements name."""
    shadows: dict[Symbol, set[str]] = field(default_factory=dict)
    """A symbol that is used as `module.name` -> names that mean something else where it is used."""

    def close(self, wanted: Iterable[Symbol]) -> None:
        """Keep these and what they need, until nothing is added: late names keep methods."""
        self.symbols |= dict.fromkeys(wanted)
        before = -1
        while before != len(self.seen):
            before = len(self.seen)
            for symbol in [*self.symbols]:
                for node in self._nodes(symbol):
                    if id(node) not in self.seen:
                        self.seen.add(id(node))
                        self._walk(node, symbol.module)

    def text(self, symbol: Symbol, names: Mapping[Symbol, str]) -> str:
        """Return the kept part of a statement, with the names of the new file."""
        if symbol in self.stand_ins:
            return self.stand_ins[symbol].replace(f"def {symbol.name}(", f"def {names[symbol]}(")
        module = read_module(symbol.module)
        node = module.statements[symbol.name]
        if not isinstance(node, ast.ClassDef):
            return _cut(module, node, symbol.module, names)
        blocks = [_cut(module, node, symbol.module, names, until=node.body[0])]
        kept = list(self._body(node, symbol))
        for before, statement in zip([None, *kept], kept, strict=False):
            is_method = isinstance(statement, ast.FunctionDef) or isinstance(before, ast.FunctionDef)
            gap = "\n" if before and (is_method or before is node.body[0]) else ""
            if stand_in := self._stand_in(statement, symbol):
                text = stand_in
            elif isinstance(statement, ast.AnnAssign) and is_field(statement, symbol.module):
                text = f"    {ast.unparse(statement.target)}: {ast.unparse(statement.annotation)}"
            else:
                text = _cut(module, statement, symbol.module, names)
            blocks.append(gap + text)
        return "\n".join(blocks if kept else [*blocks, "    pass"])

    def in_order(self, module: str) -> Sequence[Symbol]:
        """Return the symbols of a module in the order of its file, stand-ins first."""
        places = {name: index for index, name in enumerate(read_module(module).statements)}
        symbols = [symbol for symbol in self.symbols if symbol.module == module]
        return sorted(symbols, key=lambda symbol: -1 if symbol in self.stand_ins else places[symbol.name])

    def _nodes(self, symbol: Symbol) -> Iterator[ast.AST]:
        """Yield the parts of a statement that are kept."""
        if symbol in self.stand_ins:
            yield from parse(self.stand_ins[symbol]).body
            return
        node = read_module(symbol.module).statements[symbol.name]
        if not isinstance(node, ast.ClassDef):
            yield node
            return
        yield from (*node.bases, *node.keywords, *node.decorator_list)
        for statement in [*self._body(node, symbol)]:
            yield parse(f"class _:\n{text}") if (text := self._stand_in(statement, symbol)) else statement

    def _body(self, node: ast.ClassDef, symbol: Symbol) -> Iterator[ast.stmt]:
        # torch.autograd.Function calls its methods, and a loop over an enumeration all members.
        attributes = (base for base in node.bases if isinstance(base, ast.Attribute))
        foreign = not all(resolve(base, symbol.module) for base in attributes)
        whole = foreign or is_enumeration(node)
        before_is_kept = True
        for statement in node.body:
            if is_text(statement):
                if before_is_kept:
                    yield statement
                continue
            if isinstance(statement, ast.FunctionDef):
                # __post_init__ checks what was checked.
                is_special = statement.name.startswith("__") and statement.name != "__post_init__"
                is_needed = is_special or statement.name in self.methods
            elif isinstance(statement, ast.AnnAssign) and not is_class_variable(statement):
                is_needed = True
            else:
                is_needed = any(name in self.methods for name in definitions(statement))
            before_is_kept = whole or (is_needed and self._stand_in(statement, symbol) != "")
            if before_is_kept:
                yield statement

    def _stand_in(self, node: ast.stmt, symbol: Symbol) -> str | None:
        """Return what stands for a method of a class, `None` if it stays as it is."""
        if not isinstance(node, ast.FunctionDef):
            return None
        return self.stand_ins.get(Symbol(symbol.module, f"{symbol.name}.{node.name}"))

    def _walk(self, node: ast.AST, module: str, bound: frozenset[str] = frozenset()) -> None:
        """Keep what a node names, but for `bound` names; those in annotations may be left out."""
        if symbol := resolve(node, module, bound):
            self._keep(symbol, module)
            if isinstance(node, ast.Attribute):
                self.shadows.setdefault(symbol, set()).update(bound)
            return
        if isinstance(node, ast.Attribute):
            self.methods.add(node.attr)
        read = read_module(module)
        if isinstance(node, ast.Name) and node.id not in bound and node.id in read.foreign:
            self._import(read.foreign[node.id], module)
        if isinstance(node, ast.Import | ast.ImportFrom):
            for source in list_sources(node, read.package):
                self._need(source, ast.unparse(node), module)
        if isinstance(node, ast.FunctionDef):
            self.unreached.update(map(id, list_unreached(node, module)))
        if isinstance(node, SCOPES):
            bound |= bound_names(node)
        for name, value in ast.iter_fields(node):
            in_annotation = name in ("annotation", "returns")
            if name == "value" and isinstance(node, ast.AnnAssign) and is_field(node, module):
                continue
            if name == "decorator_list":
                value = [decorator for decorator in value if not registers(decorator)]
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and id(child) not in self.unreached:
                    self._walk_annotation(child, module) if in_annotation else self._walk(child, module, bound)

    def _walk_annotation(self, node: ast.AST, module: str) -> None:
        read = read_module(module)
        for part in ast.walk(node):
            if not isinstance(part, ast.Name):
                continue
            if part.id in read.foreign:
                self._import(read.foreign[part.id], module)
            if (symbol := resolve(part, module)) and is_defined(symbol) and is_alias(symbol):
                self._keep(symbol, module)

    def _import(self, statement: str, user: str) -> None:
        """Keep a statement at the top of a module."""
        self._need(statement.split()[1], statement, user)
        self.imports.add(statement)

    def _need(self, source: str, statement: str, user: str) -> None:
        """Note the package of a module that the file imports; Graft's and a user's own are refused."""
        package = source.partition(".")[0]
        if package in OURS or package.startswith(PREFIX):
            choice = "of Graft, only code of spaces and workers can go with a plug-in"
            if is_taken_over(source):
                choice = f"write `from {_local_name(source)} import NAME` at the top of the module"
            fault = f"{_local_name(user)} has `{statement}`, which a file that stands alone cannot have"
            raise StudyError(f"{fault}; {choice}")
        self.packages.add(package)

    def _keep(self, symbol: Symbol, user: str) -> None:
        """Keep what a module's kept code names."""
        if symbol not in self.stand_ins and symbol.name not in read_module(symbol.module).statements:
            whole = f"{symbol.module}.{symbol.name}"
            whole, user = _local_name(whole), _local_name(user)
            raise StudyError(f"{user} uses the module {whole}, which cannot be taken out of Graft")
        self.symbols.setdefault(symbol)
        self.used.setdefault(user, set()).add(symbol)


def _local_name(module: str) -> str:
    """Return a module's name; that of a plug-in from outside as its neighbours import it."""
    package, _, rest = module.partition(".")
    return (rest or ".") if package.startswith(PREFIX) else module


# ---------------------------------------------------------------------------------- the new file


def _name(kept: _Kept) -> Mapping[Symbol, str]:
    """Choose each symbol's name in the new file: its own, or with its module's if that is taken.

    Raises StudyError if modules import different things by one name.
    """
    names, taken = dict[Symbol, str](), dict.fromkeys(ENDS, "a name of the file's own")
    for statement in sorted(kept.imports):
        name = statement.split()[-1].partition(".")[0]
        # `import torch` and `import torch.nn` are the same name for the same package.
        packages = {line.partition(".")[0] for line in (statement, taken.get(name, statement))}
        if name in taken and packages != {f"import {name}"}:
            raise StudyError(f"{taken[name]!r} and {statement!r} cannot stand in one file; rename one of them")
        taken[name] = statement
    for symbol in kept.symbols:
        name = symbol.name
        while name in taken or name in kept.shadows.get(symbol, ()):
            name = f"{name}_{symbol.module.replace('.', '_').removeprefix('workers_')}"
        names[symbol] = taken[name] = name
    return names


def _cut(module: Module, node: ast.stmt, name: str, names: Mapping[Symbol, str], until: ast.stmt | None = None) -> str:
    """Return a statement's lines, before `until`, with new names and no registering decorators."""
    decorators: Sequence[ast.expr] = getattr(node, "decorator_list", ())
    gone: list[ast.expr | ast.stmt] = [decorator for decorator in decorators if registers(decorator)]
    gone += list_unreached(node, name) if isinstance(node, ast.FunctionDef) else ()
    dropped = {line for part in gone for line in range(part.lineno, (part.end_lineno or 0) + 1)}
    last = first_line(until) - 1 if until else node.end_lineno or node.lineno
    kept = (number for number in range(first_line(node), last + 1) if number not in dropped)
    lines = {number: module.lines[number - 1] for number in kept}
    renamed = [
        (expression.lineno, expression.col_offset, expression.end_col_offset or 0, names[symbol])
        for expression, symbol in _list_named(node, name)
        if symbol in names
    ]
    is_named = isinstance(node, ast.ClassDef | ast.FunctionDef)
    if is_named and module.statements.get(node.name) is node and (new := names[Symbol(name, node.name)]) != node.name:
        column = lines[node.lineno].index(node.name.encode())
        renamed.append((node.lineno, column, column + len(node.name.encode()), new))
    for line, column, end, new in sorted(renamed, reverse=True):
        if line in lines:
            lines[line] = lines[line][:column] + new.encode() + lines[line][end:]
    return b"\n".join(lines.values()).decode().rstrip()


def _list_named(node: ast.AST, module: str, bound: frozenset[str] = frozenset()) -> Iterator[tuple[ast.expr, Symbol]]:
    """Yield the expressions in a statement that name what is ours, unless a scope binds it."""
    if isinstance(node, ast.Name | ast.Attribute) and (symbol := resolve(node, module, bound)):
        yield node, symbol
        return
    if isinstance(node, SCOPES):
        bound |= bound_names(node)
    for child in ast.iter_child_nodes(node):
        yield from _list_named(child, module, bound)
