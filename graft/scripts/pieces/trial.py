"""What a script says of its trial; each has its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

STAGES: Sequence[Mapping[str, Any]] = ()
"""`seed`, `config`, and `until`, the step up to which it is trained: the trial, after those whose states it took over."""

EVALUATION_SEED = 0
"""Of the sets that the trial is judged on."""

STORED: Mapping[tuple[int, str, str, str], float | None] = {}
"""Step, metric, variant and condition -> value; None: it was not finite."""

DIVERGENCE: str | None = None
"""How the trial diverged; None: it did not."""

PARTS: Mapping[str, Mapping[str, Any]] = {}
"""Family -> name -> class, of all that the trial uses."""
