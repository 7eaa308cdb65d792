"""The numbers for Prometheus: of the studies, and of the server itself."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse

from graft.exports.interchange.prometheus import Sample, prometheus, write_metric
from graft.web.reading import settings_of
from graft.web.sparing import Sparing

router = APIRouter(tags=["numbers"])


@router.get("/prometheus", response_class=PlainTextResponse)
def send_numbers(request: Request) -> PlainTextResponse:
    """Where all studies stand, as `search status --format prometheus` writes it, and how long answers wait."""
    sparing: Sparing | None = request.app.state.sparing
    text = prometheus(settings_of(request).database)
    numbers: dict[str, float] = {}
    if sparing:
        waits = sparing.app.waits
        numbers = {
            "graft_http_processor_seconds": sparing.bucket.used(),
            "graft_http_processor_left_seconds": sparing.bucket.level(),
            "graft_http_waits": waits.answers,
            "graft_http_wait_seconds": waits.seconds,
            "graft_http_wait_refusals": waits.refused,
            "graft_http_answers_again": sparing.answers.given,
        }
    text += "".join(write_metric(name, [Sample(name, {}, value)]) for name, value in numbers.items())
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")
