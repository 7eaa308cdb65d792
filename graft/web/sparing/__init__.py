"""Answers beside training take little of the processor.

budget.py    how much of it they may take, and who waits where it is used up
answers.py   what was answered a moment ago is given again
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from starlette.types import ASGIApp

from graft.web.settings import Settings
from graft.web.sparing.answers import FRESH_SECONDS, STALE_SECONDS, Answers
from graft.web.sparing.budget import Bucket, Budget


@dataclass(frozen=True, kw_only=True)
class Sparing:
    """An application that spares the processor, and what it counts."""

    bucket: Bucket
    answers: Answers
    app: Budget


def spare(app: ASGIApp, settings: Settings, trains: Callable[[], bool]) -> Sparing | None:
    """Return the application behind a budget and a store of answers, or None by its settings."""
    if settings.processor is None:
        return None
    bucket = Bucket(settings.processor, settings.processor_burst, is_needed=trains)

    def lifetime() -> float:
        if not bucket.is_needed:
            return 0.0
        return STALE_SECONDS if bucket.is_low else FRESH_SECONDS

    answers = Answers(app, lifetime)
    return Sparing(bucket=bucket, answers=answers, app=Budget(answers, bucket))
