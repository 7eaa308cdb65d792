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
    """Return the numbers of `search status --format prometheus`, and how long answers wait."""
    sparing: Sparing | None = request.app.state.sparing
    text = prometheus(settings_of(request).database)
    if sparing:
        waits = sparing.app.waits
        for name, value in {
            "processor_seconds": sparing.bucket.used(),
            "processor_left_seconds": sparing.bucket.level(),
            "waits": waits.answers,
            "wait_seconds": waits.seconds,
            "wait_refusals": waits.refused,
            "answers_again": sparing.answers.given,
        }.items():
            text += write_metric(f"graft_http_{name}", [Sample(f"graft_http_{name}", {}, value)])
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")
