"""The page of the database's tables, from the schema and its comments."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping

from sqlalchemy import CheckConstraint, Column, Table
from sqlalchemy.dialects import postgresql, sqlite

from docs.generators.tables import code, prose, sentence, table
from storage import schema


def page() -> str:
    """Every table with its columns, types, keys and rules."""
    text = inspect.getdoc(schema) or ""
    sentences, times = _sentences(text), "Times " + text.partition("Times ")[2]
    lines = ["# Tables", "", f"This is version {schema.VERSION} of the schema. {prose(times)}"]
    for name, one in schema.metadata.tables.items():
        lines += [
            "",
            f"## {name}",
            "",
            prose(sentence(sentences[name])),
            "",
            *_columns(one, _comments(name)),
            *_rules(one),
        ]
    return "\n".join(lines) + "\n"


def _sentences(text: str) -> Mapping[str, str]:
    """Table -> what it holds, from the list in the docstring of the schema."""
    return dict(re.findall(r"^(\w+) {2,}(.+)$", text, flags=re.MULTILINE))


def _comments(name: str) -> Mapping[str, str]:
    """Column -> the comment behind it in the source of the table."""
    source = inspect.getsource(schema).partition(f'    "{name}",\n')[2].partition("\n)\n")[0]
    return dict(re.findall(r'Column\("(\w+)".*?#\s*(.+)$', source, flags=re.MULTILINE))


def _columns(one: Table, comments: Mapping[str, str]) -> Iterator[str]:
    rows = [
        [
            code(column.name),
            column.type.compile(sqlite.dialect()),
            column.type.compile(postgresql.dialect()),
            "; ".join([*_keys(column), *([prose(comments[column.name])] if column.name in comments else [])]),
        ]
        for column in one.columns
    ]
    yield from table(["column", "SQLite", "PostgreSQL", "notes"], rows)


def _keys(column: Column[object]) -> Iterator[str]:
    if column.primary_key:
        yield "primary key"
    for key in column.foreign_keys:
        yield f"refers to `{key.target_fullname}`"
    if column.nullable:
        yield "may be NULL"


def _rules(one: Table) -> Iterator[str]:
    checks = sorted(str(rule.sqltext) for rule in one.constraints if isinstance(rule, CheckConstraint))
    indexes = sorted(", ".join(column.name for column in index.columns) for index in one.indexes)
    if checks:
        yield from ("", "Rules: " + "; ".join(map(code, checks)) + ".")
    if indexes:
        yield from ("", "Indexes: " + "; ".join(f"({code(columns)})" for columns in indexes) + ".")
