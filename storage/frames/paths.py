"""Paths of a space in a user's SQL over trials: `optimizer.learning_rate > 1e-3`.

The words `starred`, `tags` and `note` stand for what people said of a trial.
"""

from __future__ import annotations

import json
import re

import polars as pl

from spaces.errors import StudyError
from spaces.messages import no_such
from storage import trial_notes
from storage.frames.answers import Answers

SECTIONS = "task|model|optimizer|averaging|learning|training|transfer|architecture"
"""The sections of a configuration, as alternatives of a regular expression."""
_PATH = re.compile(
    r"'(?:[^']|'')*'|\bparams\.(?P<path>[A-Za-z_]\w*(?:\.\w+)*)"
    rf"|\b(?P<knob>(?:{SECTIONS})(?:\.[A-Za-z_]\w*)+)"
    rf"|(?<![\w.])(?P<said>{'|'.join(trial_notes.WORDS)})\b"
)


def spell_paths(answers: Answers, study_id: int, sql: str) -> str:
    """Return the SQL with paths and words of notes spelled out; StudyError for an unknown path."""

    def spell(match: re.Match[str]) -> str:
        if match["said"]:
            return trial_notes.spell(match["said"])
        if match["knob"] is None:
            path = match["path"]
            return answers.reading.parameter(study_id, path) if path else match[0]
        value = answers.reading.knob(study_id, match["knob"])
        if value is None:
            unknown.append(match["knob"])
        return value or match[0]

    unknown: list[str] = []
    with answers.transaction():
        spelled = _PATH.sub(spell, sql)
    if unknown:
        # The choices: what was drawn for the study's first trial, and facts that follow from it.
        first = f"SELECT params FROM trials WHERE study_id = {study_id} ORDER BY number LIMIT 1"
        params = answers.read(first, {"params": pl.String()})["params"]
        known = sorted(path for text in params for path in json.loads(text))
        raise StudyError(no_such("value of the study's trials", unknown[0], known))
    return spelled
