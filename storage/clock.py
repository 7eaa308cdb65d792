"""The clock of the database, which all stored times are by."""

from __future__ import annotations

from typing import Any

from sqlalchemy import DateTime
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement


class Now(FunctionElement[Any]):
    """The database's clock in UTC, to DateTime's microseconds; `Now(x)`: x seconds from now."""

    type = DateTime(timezone=True)
    inherit_cache = True


@compiles(Now, "sqlite")
def _now_sqlite(element: Any, compiler: Any, **options: Any) -> str:  # pyright: ignore[reportUnusedFunction]
    seconds = compiler.process(element.clauses, **options)
    return f"strftime('%Y-%m-%d %H:%M:%f000', 'now'{f', ({seconds}) || {_SECONDS}' if seconds else ''})"


@compiles(Now, "postgresql")
def _now_postgresql(element: Any, compiler: Any, **options: Any) -> str:  # pyright: ignore[reportUnusedFunction]
    seconds = compiler.process(element.clauses, **options)
    return f"(now() + make_interval(secs => {seconds}))" if seconds else "now()"


_SECONDS = "' seconds'"
