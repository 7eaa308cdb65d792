"""Pages from their templates. Every text is escaped: names, notes and errors come from users."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from graft.report.rendering.formatting import number, plain

STATIC = Path(__file__).with_name("static")
_pages = Environment(
    loader=FileSystemLoader(Path(__file__).with_name("pages")),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def render(page: str, *, status_code: int = 200, **values: Any) -> HTMLResponse:
    """A page, or a part of one, by the name of its template; without characters that HTML does not have."""
    return HTMLResponse(plain(_pages.get_template(f"{page}.html").render(number=number, **values)), status_code)
