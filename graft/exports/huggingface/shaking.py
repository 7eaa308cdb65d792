"""One file out of the classes that a model is made of: of Graft's modules, and of a user's, what computing it needs.

A statement at the top of a module is kept where kept code names it; a method of a class where kept code has an
attribute of that name, so that what checks, describes and trains a plug-in is left out. What computes stays as it is
written, so that the file gives the same bits.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter

from graft.exports.huggingface.modules import (
    SCOPES,
    STAND_INS,
    Module,
    Symbol,
    bound_names,
    defined,
    definitions,
    first_line,
    is_alias,
    is_class_variable,
    is_defined,
    is_field,
    is_text,
    parse,
    read_module,
    registers,
)
from spaces.errors import StudyError


@dataclass(frozen=True, kw_only=True)
class Shaken:
    """The text of the file, and what the classes are called in it."""

    text: str
    names: Mapping[type, str]


def shake(classes: Iterable[type], methods: Iterable[str]) -> Shaken:
    """Return the classes with these methods, and all that they need."""
    wanted = {member: Symbol(member.__module__, member.__name__) for member in classes}
    kept = _Kept(methods=set(methods))
    kept.close(wanted.values())
    names = _name(kept.symbols)
    sections = list[str]()
    for module in _order(kept.symbols):
        own = [kept.text(symbol, names) for symbol in _in_order(kept.symbols, module)]
        sections.append("\n\n\n".join([f"# {read_module(module).title}\n# {'-' * 100}", *own]))
    imports = "\n".join(_join_imports(kept.imports))
    text = "\n\n\n".join([f"from __future__ import annotations\n\n{imports}", *sections])
    return Shaken(text=text, names={member: names[symbol] for member, symbol in wanted.items()})


# ------------------------------------------------------------------------------------------------------ what is needed


@dataclass(kw_only=True)
class _Kept:
    """What is kept so far."""

    methods: set[str]
    """Names of attributes in kept code: a method of such a name is kept."""
    symbols: dict[Symbol, None] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    """What was looked into; syntax trees are read once and stay."""
    imports: set[str] = field(default_factory=set)

    def close(self, wanted: Iterable[Symbol]) -> None:
        """Keep these and what they need, until nothing is added: a name found late may be a method found early."""
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
        if symbol in STAND_INS:
            return STAND_INS[symbol]
        module = read_module(symbol.module)
        node = module.statements[symbol.name]
        if not isinstance(node, ast.ClassDef):
            return _cut(module, node, symbol.module, names)
        blocks = [_cut(module, node, symbol.module, names, until=node.body[0])]
        kept = list(self._body(node))
        for before, one in zip([None, *kept], kept, strict=False):
            is_apart = isinstance(one, ast.FunctionDef) or isinstance(before, ast.FunctionDef) or before is node.body[0]
            gap = "\n" if before and is_apart else ""
            blocks.append(gap + _field_or_cut(module, one, symbol.module, names))
        return "\n".join(blocks if kept else [*blocks, "    pass"])

    def _nodes(self, symbol: Symbol) -> Iterator[ast.AST]:
        """Yield the parts of a statement that are kept."""
        if symbol in STAND_INS:
            yield from parse(STAND_INS[symbol]).body
            return
        node = read_module(symbol.module).statements[symbol.name]
        if isinstance(node, ast.ClassDef):
            yield from (*node.bases, *node.keywords, *node.decorator_list, *self._body(node))
        else:
            yield node

    def _body(self, node: ast.ClassDef) -> Iterator[ast.stmt]:
        foreign = any(isinstance(base, ast.Attribute) for base in node.bases)  # torch.autograd.Function calls its own
        before_is_kept = True
        for one in node.body:
            if is_text(one):
                if before_is_kept:
                    yield one
                continue
            before_is_kept = foreign or self._is_kept(one)
            if before_is_kept:
                yield one

    def _is_kept(self, node: ast.stmt) -> bool:
        if isinstance(node, ast.FunctionDef):
            special = node.name.startswith("__") and node.name != "__post_init__"  # that one checks what was checked
            return special or node.name in self.methods
        if isinstance(node, ast.AnnAssign) and not is_class_variable(node):
            return True
        return any(name in self.methods for name in definitions(node))

    def _walk(self, node: ast.AST, module: str, bound: frozenset[str] = frozenset()) -> None:
        """Keep what a node names, but for `bound` names; those in annotations need not be there when the file runs."""
        if isinstance(node, ast.Attribute):
            self.methods.add(node.attr)
        if isinstance(node, ast.Name) and node.id not in bound:
            self._need(node.id, module)
        if isinstance(node, SCOPES):
            bound |= bound_names(node)
        for name, value in ast.iter_fields(node):
            in_annotation = name in ("annotation", "returns")
            if name == "value" and isinstance(node, ast.AnnAssign) and is_field(node, module):
                continue
            if name == "decorator_list":
                value = [one for one in value if not registers(one)]
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    self._walk_annotation(child, module) if in_annotation else self._walk(child, module, bound)

    def _walk_annotation(self, node: ast.AST, module: str) -> None:
        read = read_module(module)
        for one in ast.walk(node):
            if not isinstance(one, ast.Name):
                continue
            if one.id in read.foreign:
                self.imports.add(read.foreign[one.id])
            found = defined(Symbol(module, one.id))
            if is_alias(found):
                self.symbols.setdefault(found)

    def _need(self, name: str, module: str) -> None:
        read = read_module(module)
        if name in read.statements:
            self.symbols.setdefault(Symbol(module, name))
        elif name in read.ours:
            found = defined(read.ours[name])
            if found not in STAND_INS and found.name not in read_module(found.module).statements:
                raise StudyError(
                    f"{module} uses the module {found.module}.{found.name}, which cannot be taken out of Graft"
                )
            self.symbols.setdefault(found)
        elif name in read.foreign:
            self.imports.add(read.foreign[name])


# ------------------------------------------------------------------------------------------------------- the new file


def _order(symbols: Iterable[Symbol]) -> Iterable[str]:
    """Return the modules, each after those that its statements need."""
    modules = dict.fromkeys(symbol.module for symbol in symbols)
    needs = {
        name: {defined(one).module for one in read_module(name).ours.values() if is_defined(one)} & modules.keys()
        for name in modules
    }
    return TopologicalSorter({name: found - {name} for name, found in needs.items()}).static_order()


def _in_order(symbols: Iterable[Symbol], module: str) -> Sequence[Symbol]:
    """Return the symbols of a module in the order of its file, stand-ins first."""
    places = {name: place for place, name in enumerate(read_module(module).statements)}
    own = [symbol for symbol in symbols if symbol.module == module]
    return sorted(own, key=lambda symbol: -1 if symbol in STAND_INS else places[symbol.name])


def _join_imports(statements: Iterable[str]) -> Iterator[str]:
    """Yield the statements, what one module gives on one line."""
    given = dict[str, list[str]]()
    for statement in sorted(statements):
        source, _, name = statement.partition(" import ")
        if name:
            given.setdefault(source, []).append(name)
        else:
            yield statement
    for source, names in given.items():
        yield f"{source} import {', '.join(names)}"


def _name(symbols: Iterable[Symbol]) -> Mapping[Symbol, str]:
    """Choose each symbol's name in the new file: its own, with its module's beside it if another has that name."""
    names = dict[Symbol, str]()
    taken = set[str]()
    for symbol in symbols:
        name = symbol.name
        while name in taken:
            name = f"{name}_{symbol.module.replace('.', '_').removeprefix('workers_')}"
        names[symbol] = name
        taken.add(name)
    return names


def _field_or_cut(module: Module, node: ast.stmt, name: str, names: Mapping[Symbol, str]) -> str:
    if isinstance(node, ast.AnnAssign) and is_field(node, name):
        return f"    {ast.unparse(node.target)}: {ast.unparse(node.annotation)}"
    return _cut(module, node, name, names)


def _cut(module: Module, node: ast.stmt, name: str, names: Mapping[Symbol, str], until: ast.stmt | None = None) -> str:
    """Return the lines of a statement, before `until`, with the names of the new file; decorators that register left
    out.
    """
    decorators: Sequence[ast.expr] = getattr(node, "decorator_list", ())
    dropped = {line for one in decorators if registers(one) for line in range(one.lineno, (one.end_lineno or 0) + 1)}
    first = min(node.lineno, *(one.lineno for one in decorators)) if decorators else node.lineno
    last = first_line(until) - 1 if until else node.end_lineno or node.lineno
    lines = {number: module.lines[number - 1] for number in range(first, last + 1) if number not in dropped}
    renamed = [
        (one.lineno, one.col_offset, one.id, new)
        for one in _free_names(node)
        if (new := _new_name(one.id, name, names)) != one.id
    ]
    is_named = isinstance(node, ast.ClassDef | ast.FunctionDef)
    if is_named and module.statements.get(node.name) is node and (new := names[Symbol(name, node.name)]) != node.name:
        column = lines[node.lineno].index(node.name.encode())
        renamed.append((node.lineno, column, node.name, new))
    for line, column, old, new in sorted(renamed, reverse=True):
        if line in lines:
            lines[line] = lines[line][:column] + new.encode() + lines[line][column + len(old.encode()) :]
    return b"\n".join(lines.values()).decode().rstrip()


def _free_names(node: ast.AST, bound: frozenset[str] = frozenset()) -> Iterator[ast.Name]:
    """Yield the names in a statement that no function or comprehension in it binds."""
    if isinstance(node, ast.Name) and node.id not in bound:
        yield node
    if isinstance(node, SCOPES):
        bound |= bound_names(node)
    for child in ast.iter_child_nodes(node):
        yield from _free_names(child, bound)


def _new_name(name: str, module: str, names: Mapping[Symbol, str]) -> str:
    read = read_module(module)
    symbol = Symbol(module, name) if name in read.statements else read.ours.get(name)
    return names.get(defined(symbol), name) if symbol and is_defined(symbol) else name
