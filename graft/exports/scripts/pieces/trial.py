"""What a script says of its trial; each has its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

STAGES: Sequence[Mapping[str, Any]] = ()
"""Seed, configuration and last step (`until`) of the trial, after those of the trials whose state it took over."""

EVALUATION_SEED = 0
"""Of the sets that the trial is evaluated on."""

STORED: Mapping[tuple[int, str, str, str], float | None] = {}
"""Step, metric, variant and condition -> value; None: it was not finite."""

NOT_COMPUTED: Sequence[str] = ()
"""The stored metrics that a script does not compute: diagnostics of attention."""

DIVERGENCE: str | None = None
"""How the trial diverged; None: it did not."""

PARTS: Mapping[str, Mapping[str, Any]] = {}
"""Family -> name -> class, of all that the trial uses."""
