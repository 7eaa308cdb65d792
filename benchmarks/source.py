"""How the source is built: sizes, names, helpers, comments, import circles, and the floors of every folder.

    python -m benchmarks.source [FOLDER ...] [--json]

Without folders: those of cli, graft, search, spaces, storage and workers that are here. Nothing is imported, files are
only parsed. What is counted:

Lines of code are neither blank nor in a docstring, and hold more than a comment. Lines of a function are those from
`def` to its end, without those of its docstring; decorators do not count. Methods and functions inside functions are
functions. Parameters are counted without `self` and `cls`; `*` and `**` are one each.
A name is a past participle if its last word ends in -ed or is in IRREGULAR (`_drawn`, `values_kept`), and its first
word does not ask (`is_closed`). Names that are also imperatives (`read`, `set`, `cut`) are not counted.
A private function is used once if its name stands once beyond its definition and its own body: in its module, in
modules that import it by name, and, for a method, behind a dot in modules that import its module. It has one caller
if that is a call: an entry of a table (a rule of each operation), a callback and a thread's target have none.
Comments are lines with a `#` that speaks to people: not to tools, and no rulers between sections.
Imports: `load` are run when a module is loaded, `types` stand under TYPE_CHECKING, `call` in functions. The packages
above an imported module are not counted as imported. A circle is a strongly connected set of modules.
Rooms of a folder are the modules and packages directly in it; `__init__` is not one. Neighbours are those that one has
to know of one another: they import, or are imported by, another room of the folder, at load or later. A room that does
neither stands alone, as a plug-in does: it is found by its name, its family's `__init__` says all that it has to do,
and a folder of thirty such files is a list and no tangle. What plug-ins share, in files with a leading underscore
(`_entmax`), is a neighbour, but makes none of those that import it. Floors of a folder are the rooms on the longest
chain of imports, rooms in a circle being one; arrows back up are imports between the rooms of a circle, each pair of
rooms once. They are given for imports at load, and for imports of all three kinds.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import math
import re
import statistics
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Literal, NamedTuple

FOLDERS = ("cli", "graft", "search", "spaces", "storage", "workers")
SHORT_FILE, LONG_FUNCTION, MANY_METHODS, MANY_PARAMETERS = 40, 30, 20, 6
ASKING = {"is", "has", "are", "was", "can", "must", "should"}
IRREGULAR = re.compile(
    r"(un|re|over|with)?(begun|bent|born|bought|bound|broken|brought|built|caught|chosen|done|drawn|driven|fallen|felt|"
    r"forgotten|found|frozen|given|gone|grown|heard|held|hidden|kept|known|laid|learnt|left|lent|lost|made|meant|met|"
    r"paid|said|seen|sent|shown|sought|sold|spent|spun|stood|stuck|sunk|taken|taught|thrown|told|torn|understood|won|"
    r"worn|woven|written)"
)
NOT_PARTICIPLES = {
    "bed",
    "breed",
    "embed",
    "exceed",
    "feed",
    "hundred",
    "indeed",
    "need",
    "proceed",
    "red",
    "seed",
    "speed",
}
TO_TOOLS = re.compile(r"#\s*(pyright|mypy|type:|noqa|ruff:|fmt:|pragma|!)|#\s*[-=#*~]{2,}")

When = Literal["load", "types", "call"]
Edges = Collection[tuple[str, str]]
Def = ast.FunctionDef | ast.AsyncFunctionDef


# ------------------------------------------------------------------------------------------------------------- reading


@dataclass(frozen=True, eq=False)
class Module:
    """One file of source."""

    name: str
    """Dotted, of a package without `__init__`."""
    path: Path
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, str(self.path))

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @cached_property
    def lines(self) -> int:
        return len(self.text.splitlines())


@dataclass(frozen=True, eq=False)
class Function:
    """A function or a method, wherever it is defined."""

    module: Module
    place: str
    """`Class.method`"""
    node: Def
    is_method: bool

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def full_name(self) -> str:
        return f"{self.module.name}.{self.place}"

    @property
    def is_private(self) -> bool:
        return self.name.startswith("_") and not self.name.endswith("__")

    @property
    def lines(self) -> int:
        return _height(self.node) - _docstring_lines(self.node)

    @property
    def parameters(self) -> int:
        args = self.node.args
        named = [arg.arg for arg in (*args.posonlyargs, *args.args)]
        if self.is_method and named[:1] in (["self"], ["cls"]):
            del named[0]
        return len(named) + len(args.kwonlyargs) + sum(arg is not None for arg in (args.vararg, args.kwarg))


def read(folders: Iterable[Path]) -> list[Module]:
    """Every module in these folders, named from the topmost package that they are in."""
    modules: list[Module] = []
    for folder in folders:
        top = folder.resolve()
        while (top.parent / "__init__.py").exists():
            top = top.parent
        for path in sorted(folder.resolve().rglob("*.py")):
            parts = path.relative_to(top.parent).with_suffix("").parts
            modules.append(Module(".".join(parts).removesuffix(".__init__"), path, path.read_text(encoding="utf-8")))
    return modules


def functions_of(module: Module) -> Iterator[Function]:
    """All functions of a module, in the order of their lines."""

    def below(node: ast.AST, prefix: str, in_class: bool) -> Iterator[Function]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Def):
                yield Function(module, prefix + child.name, child, in_class)
                yield from below(child, f"{prefix}{child.name}.", False)
            elif isinstance(child, ast.ClassDef):
                yield from below(child, f"{prefix}{child.name}.", True)
            else:
                yield from below(child, prefix, in_class)

    yield from below(module.tree, "", False)


def _height(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _docstring_lines(node: Def) -> int:
    return _height(node.body[0]) if ast.get_docstring(node, clean=False) is not None else 0


# ------------------------------------------------------------------------------------------------------------- imports


class Import(NamedTuple):
    """One module names another one."""

    source: str
    target: str
    when: When
    names: Mapping[str, str]
    """What is taken from it -> what it is called here."""


def imports_of(module: Module, known: Collection[str]) -> Iterator[Import]:
    """Yield the imports of a module from others that are `known`, each as often as it stands there."""

    def below(node: ast.AST, when: When) -> Iterator[Import]:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for target, names in _targets(node, module, known):
                if target != module.name:
                    yield Import(module.name, target, when, names)
        inner: When = "call" if isinstance(node, Def | ast.Lambda) else when
        for child in ast.iter_child_nodes(node):
            is_guarded = isinstance(node, ast.If) and _asks_for_types(node.test) and child in node.body
            yield from below(child, "types" if is_guarded and inner == "load" else inner)

    yield from below(module.tree, "load")


def _targets(
    node: ast.Import | ast.ImportFrom, module: Module, known: Collection[str]
) -> Iterator[tuple[str, Mapping[str, str]]]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            if target := _longest(alias.name, known):
                yield target, {}
        return
    base = node.module or ""
    if node.level:
        package = module.name.split(".") + ([""] if module.is_package else [])
        base = ".".join([*package[: -node.level], *([node.module] if node.module else [])])
    for alias in node.names:
        if target := _longest(f"{base}.{alias.name}", known):
            yield target, {} if target.endswith(f".{alias.name}") else {alias.name: alias.asname or alias.name}


def _longest(name: str, known: Collection[str]) -> str:
    """Return the module that a dotted name starts with; empty if it is none of ours."""
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name


def _asks_for_types(test: ast.expr) -> bool:
    return getattr(test, "id", None) == "TYPE_CHECKING" or getattr(test, "attr", None) == "TYPE_CHECKING"


def circles(edges: Edges) -> list[list[str]]:
    """Return the sets of at least two nodes that reach one another, the largest first."""
    reached = _reached(edges)
    sets = {frozenset({other for other in reached[node] if node in reached[other]}) for node in reached}
    return sorted((sorted(circle) for circle in sets if len(circle) > 1), key=lambda circle: (-len(circle), circle))


def floors(rooms: Iterable[str], edges: Edges) -> int:
    """Return the number of rooms on the longest chain, where all rooms of a circle are one."""
    floor_of = {room: room for room in rooms} | {room: circle[0] for circle in circles(edges) for room in circle}
    below: dict[str, set[str]] = defaultdict(set)
    for room, other in edges:
        if floor_of[room] != floor_of[other]:
            below[floor_of[room]].add(floor_of[other])

    @cache
    def height(floor: str) -> int:
        return 1 + max(map(height, below[floor]), default=0)

    return max(map(height, floor_of.values()), default=0)


def back_up(edges: Edges) -> list[tuple[str, str]]:
    """Return the edges inside circles."""
    floor_of = {room: index for index, circle in enumerate(circles(edges)) for room in circle}
    return sorted((room, other) for room, other in edges if room in floor_of and floor_of[room] == floor_of.get(other))


def _reached(edges: Edges) -> dict[str, set[str]]:
    """Node -> those that it reaches by at least one edge."""
    following: dict[str, set[str]] = defaultdict(set)
    for source, other in edges:
        following[source].add(other)
    reached: dict[str, set[str]] = {}
    for start in {node for edge in edges for node in edge}:
        seen: set[str] = set()
        waiting = list(following.get(start, ()))
        while waiting:
            node = waiting.pop()
            if node not in seen:
                seen.add(node)
                waiting += following.get(node, ())
        reached[start] = seen
    return reached


# ------------------------------------------------------------------------------------------------------------ measures


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Of files, functions and classes."""

    lines: int
    code_lines: int
    files: int
    short_files: int
    comment_lines: int
    functions: int
    median_lines: float
    """Of a function."""
    ninth_decile_lines: int
    longest: Mapping[str, int]
    """Function -> its lines, where they are more than LONG_FUNCTION; at least the longest one."""
    many_methods: Mapping[str, int]
    """Class -> its methods, where they are more than MANY_METHODS."""
    many_parameters: Mapping[str, int]
    """Function -> its parameters, where they are more than MANY_PARAMETERS."""


@dataclass(frozen=True, kw_only=True)
class Names:
    """Of functions, modules and classes."""

    participles: Mapping[str, int]
    """Function name that is a past participle alone -> how many functions have it."""
    ending_in_participles: Mapping[str, int]
    """The same for names of several words of which the last is one."""
    private_functions: int
    used_once: Sequence[str]
    with_one_caller: Sequence[str]
    """Those of the private functions used once that are called there."""
    modules_of_one_name: Mapping[str, Sequence[str]]
    classes_of_one_name: Mapping[str, Sequence[str]]
    """Public class -> the modules that define it, where they are several."""


@dataclass(frozen=True, kw_only=True)
class Folder:
    """Rooms and floors of one folder."""

    name: str
    rooms: int
    neighbours: int
    """Rooms that do not stand alone."""
    modules: int
    floors: int
    back_up: Sequence[tuple[str, str]]
    floors_of_all: int
    """With imports under TYPE_CHECKING and in functions."""
    back_up_of_all: Sequence[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class Measures:
    """All that is measured."""

    sizes: Sizes
    names: Names
    circles: Mapping[str, Sequence[Sequence[str]]]
    """Kinds of imports that are followed -> circles of modules."""
    folders: Sequence[Folder]


def measured(modules: Sequence[Module]) -> Measures:
    """Measure these modules as one project."""
    functions = [function for module in modules for function in functions_of(module)]
    known = {module.name for module in modules}
    imports = [link for module in modules for link in imports_of(module, known)]
    kinds: dict[str, set[When]] = {"load": {"load"}, "load+types": {"load", "types"}, "all": {"load", "types", "call"}}
    return Measures(
        sizes=sizes(modules, functions),
        names=names(modules, functions, imports),
        circles={kind: circles({(i.source, i.target) for i in imports if i.when in kinds[kind]}) for kind in kinds},
        folders=folders(modules, imports),
    )


def sizes(modules: Sequence[Module], functions: Sequence[Function]) -> Sizes:
    """Of files, functions and classes."""
    ordered = sorted(function.lines for function in functions) or [0]
    return Sizes(
        lines=sum(module.lines for module in modules),
        code_lines=sum(map(code_lines, modules)),
        files=len(modules),
        short_files=sum(module.lines < SHORT_FILE for module in modules),
        comment_lines=sum(map(comment_lines, modules)),
        functions=len(functions),
        median_lines=statistics.median(ordered),
        ninth_decile_lines=ordered[math.ceil(0.9 * len(ordered)) - 1],
        longest=_over(
            min(LONG_FUNCTION, ordered[-1] - 1), {function.full_name: function.lines for function in functions}
        ),
        many_methods=_over(MANY_METHODS, _methods(modules)),
        many_parameters=_over(MANY_PARAMETERS, {function.full_name: function.parameters for function in functions}),
    )


def code_lines(module: Module) -> int:
    """Lines that are neither blank nor in a docstring, and hold more than a comment."""
    tokens = tokenize.generate_tokens(io.StringIO(module.text).readline)
    kinds = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    held = {line for token in tokens if token.type not in kinds for line in range(token.start[0], token.end[0] + 1)}
    described = [node for node in ast.walk(module.tree) if isinstance(node, Def | ast.ClassDef | ast.Module)]
    texts = [node.body[0] for node in described if ast.get_docstring(node, clean=False) is not None]
    return len(held.difference(*(range(node.lineno, node.lineno + _height(node)) for node in texts)))


def comment_lines(module: Module) -> int:
    """Lines with a comment for people."""
    tokens = tokenize.generate_tokens(io.StringIO(module.text).readline)
    return sum(token.type == tokenize.COMMENT and not TO_TOOLS.match(token.string) for token in tokens)


def _methods(modules: Iterable[Module]) -> dict[str, int]:
    """Class -> the methods that it defines itself."""
    classes = [(module, node) for module in modules for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef)]
    return {f"{module.name}.{node.name}": sum(isinstance(part, Def) for part in node.body) for module, node in classes}


def _over(most: int, counts: Mapping[str, int]) -> dict[str, int]:
    """Those above `most`, the highest first."""
    return {name: count for name, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])) if count > most}


def names(modules: Sequence[Module], functions: Sequence[Function], imports: Sequence[Import]) -> Names:
    """Of functions, modules and classes."""
    participles = Counter(function.name for function in functions if is_participle(function.name))
    alone = {name: count for name, count in sorted(participles.items()) if "_" not in name.strip("_")}
    stems = [(module.name.rpartition(".")[2], module.name) for module in modules]
    classes = [
        (node.name, module.name)
        for module in modules
        for node in module.tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    once = list(used_once(modules, functions, imports))
    called = {module.name: set(_called(module.tree)) for module in modules}
    elsewhere: dict[str, set[str]] = defaultdict(set)
    for link in imports:
        here = called[link.source]
        elsewhere[link.target] |= here | {name for name, alias in link.names.items() if alias in here}
    with_one_caller = [
        function for function in once if function.name in called[function.module.name] | elsewhere[function.module.name]
    ]
    return Names(
        participles=alone,
        ending_in_participles={name: count for name, count in sorted(participles.items()) if name not in alone},
        private_functions=sum(function.is_private for function in functions),
        used_once=[function.full_name for function in once],
        with_one_caller=[function.full_name for function in with_one_caller],
        modules_of_one_name=_several(pair for pair in stems if pair[0] != "__main__"),
        classes_of_one_name=_several(classes),
    )


def is_participle(name: str) -> bool:
    """Whether the last word of a function's name is a past participle, as far as its letters tell."""
    words = name.strip("_").lower().split("_")
    if name.endswith("__") or words[0] in ASKING:
        return False
    last = words[-1]
    return bool(IRREGULAR.fullmatch(last)) or (last.endswith("ed") and last not in NOT_PARTICIPLES)


def used_once(
    modules: Sequence[Module], functions: Sequence[Function], imports: Sequence[Import]
) -> Iterator[Function]:
    """Private functions that one place uses; where a module has several of one name, as many places as those are."""
    uses = {module.name: _uses(module.tree) for module in modules}
    importing: dict[str, list[Import]] = defaultdict(list)
    for link in {(i.source, i.target, *i.names.items()): i for i in imports}.values():
        importing[link.target].append(link)
    private = [function for function in functions if function.is_private]
    of_one_name: dict[tuple[str, str], list[Function]] = defaultdict(list)
    for function in private:
        of_one_name[function.module.name, function.name].append(function)
    for function in private:
        module, name = function.module.name, function.name
        same = of_one_name[module, name]
        count = uses[module][name] + uses[module]["." + name]
        count -= sum(_uses(namesake.node)[name] + _uses(namesake.node)["." + name] for namesake in same)
        count += sum(uses[link.source][link.names[name]] for link in importing[module] if name in link.names)
        if function.is_method:
            count += sum(uses[source]["." + name] for source in {link.source for link in importing[module]})
        if count == len(same):
            yield function


def _called(tree: ast.AST) -> Iterator[str]:
    """Yield the name of each function, and of each method without its object, that is called."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node.func.attr


def _uses(tree: ast.AST) -> Counter[str]:
    """How often each name is read, and, with a dot before it, each attribute."""
    nodes = list(ast.walk(tree))
    plain = Counter(node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load))
    return plain + Counter(f".{node.attr}" for node in nodes if isinstance(node, ast.Attribute))


def _several(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Name -> its places, where they are several; the most frequent first."""
    places_of: dict[str, set[str]] = defaultdict(set)
    for name, module in pairs:
        places_of[name].add(module)
    ordered = sorted(places_of.items(), key=lambda pair: (-len(pair[1]), pair[0]))
    return {name: sorted(places) for name, places in ordered if len(places) > 1}


def folders(modules: Sequence[Module], imports: Sequence[Import]) -> list[Folder]:
    """Every folder with a module in it; first, named `.`, the one of the top packages if they are several."""
    known = {module.name for module in modules}
    inner = {name.rpartition(".")[0] for name in known} | {module.name for module in modules if module.is_package}
    above = {".".join(name.split(".")[:count]) for name in inner for count in range(1, name.count(".") + 2)}
    tops = {name.partition(".")[0] for name in known}
    return [_folder(name, modules, imports) for name in ([""] if len(tops) > 1 else []) + sorted(above - {""})]


def _folder(name: str, modules: Sequence[Module], imports: Sequence[Import]) -> Folder:
    rooms = {room for module in modules if (room := _room(name, module.name))}
    plain = {module.name for module in modules if not module.is_package}
    pairs = [(_room(name, link.source), _room(name, link.target), link.when) for link in imports]
    between = [pair for pair in pairs if pair[0] and pair[1] and pair[0] != pair[1]]
    every = {(room, other) for room, other, _ in between}
    at_load = {(room, other) for room, other, when in between if when == "load"}
    return Folder(
        name=name or ".",
        rooms=len(rooms),
        neighbours=len(_neighbours(every)),
        modules=sum((f"{name}.{room}" if name else room) in plain for room in rooms),
        floors=floors(rooms, at_load),
        back_up=back_up(at_load),
        floors_of_all=floors(rooms, every),
        back_up_of_all=back_up(every),
    )


def _neighbours(edges: Edges) -> set[str]:
    """Return the rooms that do not stand alone."""
    shared = {other for _, other in edges if other.startswith("_")}
    return shared | {room for edge in edges if edge[1] not in shared for room in edge}


def _room(folder: str, module: str) -> str:
    """Return the room of the folder in which a module is; empty for the folder's own `__init__`, and outside."""
    start = f"{folder}." if folder else ""
    return module.removeprefix(start).partition(".")[0] if module.startswith(start) else ""


# ------------------------------------------------------------------------------------------------------------- showing


def shown(measures: Measures) -> str:
    """All measures as text for people."""
    parts = [aligned(_totals(measures))]
    heads = ("folder", "rooms", "neighbours", "modules", "floors", "back up", "floors, all", "back up, all")
    parts.append(aligned([heads, *map(_folder_row, measures.folders)]))
    parts += [_listing(title, lines) for title, lines in _lists(measures).items()]
    return "\n\n".join(parts)


def _totals(measures: Measures) -> list[tuple[object, ...]]:
    size, its = measures.sizes, measures.names
    alone, ending = sum(its.participles.values()), sum(its.ending_in_participles.values())
    return [
        ("lines", f"{size.lines:,}"),
        ("lines of code", f"{size.code_lines:,}"),
        ("files", size.files),
        (f"files under {SHORT_FILE} lines", _share(size.short_files, size.files)),
        ("lines with a comment for people", _share(size.comment_lines, size.lines)),
        ("functions", f"{size.functions:,}"),
        ("lines of a function: median", f"{size.median_lines:g}"),
        ("lines of a function: 90 % have at most", size.ninth_decile_lines),
        ("lines of a function: most", max(size.longest.values(), default=0)),
        (f"functions with over {LONG_FUNCTION} lines", sum(lines > LONG_FUNCTION for lines in size.longest.values())),
        (f"classes with over {MANY_METHODS} methods", len(size.many_methods)),
        (f"functions with over {MANY_PARAMETERS} parameters", len(size.many_parameters)),
        ("functions named by a participle alone", _share(alone, size.functions)),
        ("functions whose last word is a participle", _share(alone + ending, size.functions)),
        ("private functions", its.private_functions),
        ("private functions used once", _share(len(its.used_once), its.private_functions)),
        ("private functions with one caller", _share(len(its.with_one_caller), its.private_functions)),
        ("module names that occur again", len(its.modules_of_one_name)),
        ("public class names that occur again", len(its.classes_of_one_name)),
        *((f"import circles ({kind})", _circle_counts(sets)) for kind, sets in measures.circles.items()),
        *_folder_totals(measures.folders),
    ]


def _folder_totals(rows: Sequence[Folder]) -> list[tuple[object, ...]]:
    most = max(rows, key=lambda row: row.neighbours)
    highest = max(rows, key=lambda row: row.floors)
    return [
        ("folders", len(rows)),
        ("neighbours: median", f"{statistics.median(row.neighbours for row in rows):g}"),
        ("neighbours: most", f"{most.neighbours} ({most.name})"),
        ("floors: most", f"{highest.floors} ({highest.name})"),
        ("arrows back up", sum(len(row.back_up) for row in rows)),
        ("arrows back up, all imports", sum(len(row.back_up_of_all) for row in rows)),
    ]


def _share(count: int, total: int) -> str:
    return f"{count:,} ({count / total:.1%})" if total else f"{count:,}"


def _circle_counts(sets: Sequence[Sequence[str]]) -> str:
    return f"{len(sets)}{f' ({sum(map(len, sets))} modules)' if sets else ''}"


def _folder_row(folder: Folder) -> tuple[object, ...]:
    counts = (folder.floors, len(folder.back_up), folder.floors_of_all, len(folder.back_up_of_all))
    return (folder.name, folder.rooms, folder.neighbours, folder.modules, *counts)


def _lists(measures: Measures) -> dict[str, list[str]]:
    """Title -> lines, of what is worth a look one by one."""
    size, its = measures.sizes, measures.names
    arrows = [(folder, pair) for folder in measures.folders for pair in folder.back_up_of_all]
    return {
        f"classes with over {MANY_METHODS} methods": _counted(size.many_methods),
        "longest functions": _counted(size.longest),
        f"functions with over {MANY_PARAMETERS} parameters": _counted(size.many_parameters),
        "module names that occur again": _placed(its.modules_of_one_name),
        "public class names that occur again": _placed(its.classes_of_one_name),
        **{
            f"import circles ({kind})": [" ".join(circle) for circle in sets] for kind, sets in measures.circles.items()
        },
        "arrows back up (`*`: not at load)": [
            f"{folder.name}: {pair[0]} -> {pair[1]}{'' if pair in folder.back_up else ' *'}" for folder, pair in arrows
        ],
        "participles alone": [_joined(its.participles)],
        "participles as the last of several words": [_joined(its.ending_in_participles)],
        "private functions with one caller": list(its.with_one_caller),
        "private functions used once, and not called": [
            name for name in its.used_once if name not in its.with_one_caller
        ],
    }


def _counted(counts: Mapping[str, int]) -> list[str]:
    return [f"{count:3} {name}" for name, count in counts.items()]


def _placed(places: Mapping[str, Sequence[str]]) -> list[str]:
    return [f"{name} x{len(where)}: {' '.join(where)}" for name, where in places.items()]


def _joined(counts: Mapping[str, int]) -> str:
    return " ".join(name if count == 1 else f"{name} x{count}" for name, count in counts.items())


def _listing(title: str, lines: Sequence[str]) -> str:
    full = [line for line in lines if line]
    return "\n".join([f"{title}:{'' if full else ' none'}", *(f"  {line}" for line in full)])


def aligned(rows: Sequence[Sequence[object]]) -> str:
    """Rows of equally many cells: the first to the left, the others to the right, but a lone one to the left too."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    align: Callable[[str, int], str] = str.ljust if len(widths) == 2 else str.rjust
    lines = [[row[0].ljust(widths[0]), *map(align, row[1:], widths[1:])] for row in cells]
    return "\n".join("  ".join(line).rstrip() for line in lines)


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description="Measures of the source code.")
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help=f"Default: {' '.join(FOLDERS)}.")
    parser.add_argument("--json", action="store_true", help="For programs.")
    given = parser.parse_args()
    chosen: list[Path] = given.folders or [path for path in map(Path, FOLDERS) if path.is_dir()]
    modules = read(chosen)
    if not modules:
        parser.error("there is no Python file in these folders")
    measures = measured(modules)
    print(json.dumps(asdict(measures), indent=2) if given.json else shown(measures))


if __name__ == "__main__":
    main()
