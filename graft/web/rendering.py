"""Pages from their templates. Every text is escaped: names, notes and errors come from users."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fastapi.responses import HTMLResponse, StreamingResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from graft.report.rendering.formatting import number, plain, with_interval, with_margin

_FLUSH = "\f"
"""The end of a part of a page; HTML does not have it otherwise."""
STATIC = Path(__file__).with_name("static")
_pages = Environment(
    loader=FileSystemLoader(Path(__file__).with_name("pages")),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
# A long path breaks after a dot, an underscore or a slash, not in mid-word.
_HELPERS: Mapping[str, Any] = {
    "number": number,
    "with_interval": with_interval,
    "with_margin": with_margin,
    "flush": _FLUSH,
    # A study that its queue has paused is stopped, as its own state says.
    "say_state": lambda state: "stopped" if state == "paused" else state,
}
"""Names that every template has."""
_pages.filters["breakable"] = lambda path: Markup(re.sub("([._/])", r"\1<wbr>", str(escape(path))))
# A time such as 4:10 has its unit: 4:10 min, 1:04:10 h.
_pages.filters["timed"] = lambda s: re.sub(r"(\d+:)?\d+:\d\d", lambda m: f"{m[0]} {'h' if m[1] else 'min'}", str(s))


def render(page: str, *, status_code: int = 200, **values: Any) -> HTMLResponse:
    """Return a page, or a part of one, by its template, without characters that HTML has not."""
    return HTMLResponse("".join(_render_parts(page, values)), status_code)


def stream(page: str, **values: Any) -> StreamingResponse:
    """Return a page in the parts that `{{ flush }}` ends, so that a browser shows each at once.

    A value that is made late is a function; it must not raise, as the answer has begun.
    """
    return StreamingResponse(_render_parts(page, values), media_type="text/html")


def _render_parts(page: str, values: Mapping[str, Any]) -> Iterator[str]:
    waiting: list[str] = []
    for text in _pages.get_template(f"{page}.html").generate({**_HELPERS, **values}):
        if text != _FLUSH:
            waiting.append(text)
        else:
            yield plain("".join(waiting))
            waiting.clear()
    yield plain("".join(waiting))
