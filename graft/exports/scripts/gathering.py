"""One program out of many files: of their functions, classes and constants, those that some need, in their order.

All names of the files are different ones, so that each is what it was when they stand in one file.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

FOLDER = Path(__file__).parent / "pieces"
_PACKAGE = "graft.exports.scripts.pieces"


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A function, class or constant of a file."""

    text: str
    names: frozenset[str]
    """All names that stand in it."""


@dataclass(frozen=True, kw_only=True)
class File:
    """One file, read but not run."""

    title: str
    """The first paragraph of its docstring."""
    pieces: Mapping[str, Piece]
    """By name, in the order of the file."""
    imports: Mapping[str, str]
    """Name -> the statement that imports it from elsewhere."""
    needs: frozenset[str]
    """The other files that it imports from."""


@cache
def read_files() -> Mapping[str, File]:
    """Name -> file, each after those that it imports from."""
    paths = sorted(FOLDER.rglob("*.py"), key=lambda path: path.stem)
    files = {path.stem: _read(path) for path in paths if path.stem != "__init__"}
    order = TopologicalSorter({name: file.needs for name, file in files.items()}).static_order()
    return {name: files[name] for name in order}


def piece_names() -> frozenset[str]:
    """Return the names of all functions, classes and constants."""
    return frozenset(name for file in read_files().values() for name in file.pieces)


def gather(wanted: Iterable[str], given: Mapping[str, str]) -> str:
    """Return the text of the pieces with these names and of all that they need, under the imports of what is not
    ours.

    `given`: name -> text that stands in place of that piece.
    """
    files = read_files()
    owners = {name: file for file in files.values() for name in file.pieces}
    kept = _close(wanted, owners, given)
    sections: list[str] = []
    for file in files.values():
        own = [piece.text for name, piece in file.pieces.items() if name in kept and name not in given]
        if own:
            sections += [_rule(file.title), *dict.fromkeys(own)]  # one statement may define several names
    statements = {owners[name].imports[used] for name in kept - given.keys() for used in _list_imports(name, owners)}
    return "\n\n\n".join(["\n".join(_sort_imports(statements)), *sections])


def _close(wanted: Iterable[str], owners: Mapping[str, File], given: Mapping[str, str]) -> set[str]:
    kept, open_names = set[str](), [*wanted]
    while open_names:
        name = open_names.pop()
        if name not in kept:
            kept.add(name)
            if name not in given:
                open_names += owners[name].pieces[name].names & owners.keys()
    return kept


def _list_imports(name: str, owners: Mapping[str, File]) -> Iterable[str]:
    return owners[name].pieces[name].names & owners[name].imports.keys()


def _read(path: Path) -> File:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    lines = text.splitlines()
    pieces, imports, needs = dict[str, Piece](), dict[str, str](), set[str]()
    for node, following in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_PACKAGE):
            needs.add((node.module or "").rpartition(".")[2])
        elif isinstance(node, ast.Import | ast.ImportFrom):
            imports |= dict(_statements(node))
        elif names := list(_list_definitions(node)):
            last = following if following and _is_text(following) else node
            piece = Piece(text="\n".join(lines[_start(node) : last.end_lineno]), names=_names_in(node))
            pieces |= dict.fromkeys(names, piece)
    title = (ast.get_docstring(tree) or "").partition("\n\n")[0]
    return File(title=" ".join(title.split()), pieces=pieces, imports=imports, needs=frozenset(needs))


def _start(node: ast.stmt) -> int:
    decorators: Sequence[ast.expr] = getattr(node, "decorator_list", ())
    return min(node.lineno, *(one.lineno for one in decorators)) - 1 if decorators else node.lineno - 1


def _list_definitions(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            yield from (one.id for one in ast.walk(target) if isinstance(one, ast.Name))


def _is_text(node: ast.stmt) -> bool:
    """Return whether a statement is the docstring of the constant before it."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _names_in(node: ast.stmt) -> frozenset[str]:
    return frozenset(one.id for one in ast.walk(node) if isinstance(one, ast.Name))


def _statements(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    """Name -> a statement that imports it alone."""
    for alias in node.names:
        words = alias.name if alias.asname is None else f"{alias.name} as {alias.asname}"
        start = f"from {node.module} import" if isinstance(node, ast.ImportFrom) else "import"
        yield alias.asname or alias.name.partition(".")[0], f"{start} {words}"


def _sort_imports(statements: Iterable[str]) -> Iterator[str]:
    """Yield the statements as people write them: what a module gives on one line."""
    from_modules: dict[str, list[str]] = {}
    for statement in sorted(statements):
        module, _, name = statement.removeprefix("from ").partition(" import ")
        if statement.startswith("from "):
            from_modules.setdefault(module, []).append(name)
        else:
            yield statement
    for module, names in from_modules.items():
        yield f"from {module} import {', '.join(names)}"


def _rule(title: str) -> str:
    return f"# {title}\n# {'-' * 100}"
