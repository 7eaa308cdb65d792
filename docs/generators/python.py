"""The pages of the Python interface and of the plug-ins' contracts, from signatures and docstrings."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import graft
from docs.generators.tables import code, prose, table
from graft.plugins.families import families_by_folder, family_of
from workers.numerics.randomness import Streams

_PYTHON = """# Python

`import graft` has these names. Each is loaded when it is first used. How they go together is in
[Use it from Python](../how-to/python.md). What goes wrong is raised as `graft.GraftError`, whose text is one line.
"""
_CONTRACTS = """# Contracts of plug-ins

What a plug-in of each family implements, and what it is given. [Write a plug-in](../how-to/plug-in.md) has the rules;
`search plugin check FILE` runs the contract. A method that is marked *abstract* has to be written, the others may be.
"""


def page() -> str:
    """Every public name of `graft`."""
    return _page(_PYTHON, {name: getattr(graft, name) for name in graft.__all__})


def contracts_page() -> str:
    """Return the base class of every family of plug-ins, what these build on, and the random streams."""
    found: dict[str, Any] = {}
    for family in map(family_of, families_by_folder().values()):
        bases = [one for one in family.__mro__[1:] if _is_ours(one)]
        for one in (*reversed(bases), family, *_specialised(family)):
            found.setdefault(one.__name__, one)
    return _page(_CONTRACTS, {**found, "Streams": Streams})


def _specialised(family: type) -> Iterator[type]:
    """Yield the abstract classes beside a family's base, such as that of tasks over tokens."""
    module = inspect.getmodule(family)
    for one in vars(module).values():
        if (
            inspect.isclass(one)
            and one is not family
            and issubclass(one, family)
            and one.__module__ == family.__module__
        ):
            yield one


def _is_ours(one: type) -> bool:
    return (
        one.__module__.partition(".")[0] in ("graft", "search", "spaces", "workers") and "plugins" not in one.__module__
    )


def _page(opening: str, found: Mapping[str, Any]) -> str:
    lines = [opening]
    for name, one in found.items():
        lines += [
            f"## {name}",
            "",
            *(_describe_class(name, one) if inspect.isclass(one) else _describe_call(name, one)),
        ]
    return "\n".join(lines).rstrip() + "\n"


def _describe_class(name: str, one: type) -> Iterator[str]:
    yield from _docstring(one)
    said = _read_comments(one)
    fields = dataclasses.fields(one) if dataclasses.is_dataclass(one) else ()
    rows = [
        [code(field.name), code(field.type), prose(said.get(field.name, ""))] for field in fields if _is_public(field)
    ]
    if rows:
        yield from (*table(["field", "type", "what it is"], rows), "")
    # What a class has from a base of the interface, such as ReadableStudy, stands with its own members.
    bases = [base for base in reversed(one.__mro__) if base is one or base.__module__.startswith("graft.api.")]
    for member, value in {member: value for base in bases for member, value in vars(base).items()}.items():
        if member.startswith("_") or not _is_member(value):
            continue
        yield from (f"### {name}.{member}", "", *_describe_call(member, value))


def _is_public(field: dataclasses.Field[Any]) -> bool:
    return not field.name.startswith("_")


def _is_member(value: object) -> bool:
    kinds = (property, cached_property, classmethod, staticmethod)
    return inspect.isfunction(value) or isinstance(value, kinds)


def _describe_call(name: str, value: Any) -> Iterator[str]:
    """Yield the signature of a function, a method or a property, and its docstring."""
    if isinstance(value, classmethod | staticmethod):
        value = value.__func__
    function = value.fget if isinstance(value, property) else getattr(value, "func", value)
    signature = inspect.signature(function)
    if isinstance(value, property | cached_property):
        text = f"{name}: {signature.return_annotation}"
    else:
        parameters = [one for one in signature.parameters.values() if one.name not in ("self", "cls")]
        text = name + str(signature.replace(parameters=parameters)).replace("'", "")
    abstract = ["*Abstract.*", ""] if getattr(function, "__isabstractmethod__", False) else []
    yield from ("```python", text, "```", "", *abstract, *_docstring(function))


def _docstring(one: object) -> Iterator[str]:
    """Yield a docstring's paragraphs; those that are indented or aligned stay as they are."""
    for paragraph in (inspect.getdoc(one) or "").split("\n\n"):
        if not paragraph.strip():
            continue
        aligned = any(line.startswith(" ") or "   " in line for line in paragraph.splitlines())
        yield from (["```text", textwrap.dedent(paragraph), "```", ""] if aligned else [prose(paragraph), ""])


def _read_comments(one: type) -> Mapping[str, str]:
    """Return field -> the text that stands below it in the source, of the class and the classes that it builds on."""
    said: dict[str, str] = {}
    for base in reversed([base for base in one.__mro__ if _is_ours(base)]):
        [definition] = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(definition, ast.ClassDef)
        said |= read_comments(definition.body)
    return said


def read_comments(body: Sequence[ast.stmt]) -> Mapping[str, str]:
    """Return field -> the text that stands below it in the body of a class."""
    said: dict[str, str] = {}
    for field, text in pairwise(body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(sentence))):
                said[name] = sentence
            case _:
                pass
    return said
