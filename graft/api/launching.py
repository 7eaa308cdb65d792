"""`graft.launch`: writes a space into the database as a study, and trains it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from graft.api.database import DEFAULT, database_url
from graft.api.running import Run, train
from graft.api.space import Space
from graft.api.study import Study
from graft.launching.enrolling import enrol
from graft.launching.planning.reading import CHECKED_DRAWS
from graft.launching.planning.review import review
from graft.launching.planning.warm_start import warm_start as start_warm


def launch(
    space: Space | str | Path | Mapping[str, Any],
    *,
    trials: int | None = None,
    study: str | None = None,
    database: str | Path = DEFAULT,
    run: Run | None = None,
    replace: bool = False,
    warm_start: str | Sequence[str] | None = None,
) -> Study:
    """Train a space's study until it is finished; launching it again resumes it.

    `space` is anything that `Space` accepts. `trials` and `study` replace the space's number and
    name, `database` is a SQLite file or a URL, and `run` has the placement and the display of
    progress. `replace` restarts a study of this name that has no result yet. `warm_start` names
    earlier studies of the database for the sampler to start from, or "auto" for all of them. Raises
    GraftError, one line, if the space cannot be launched, and KeyboardInterrupt after an interrupt,
    once the study has stopped with everything kept.
    """
    run, url = run or Run(), database_url(database)
    space = space if isinstance(space, Space) else Space(space)
    if trials is not None:
        space = space.set("search.trials", trials)
    placement = run.placement()
    with space.load() as loaded:
        loaded.check(CHECKED_DRAWS)
        name = loaded.name if study is None else study
        if warm_start is not None:
            earlier = warm_start if isinstance(warm_start, str) else ",".join(warm_start)
            warm = start_warm(url, name, loaded, earlier)
            loaded = warm.space
            if run.progress is True:
                print(f"{name}: warm start: {warm.finding}", file=sys.stderr, flush=True)
        device = placement.device if placement.executor != "ray" else None
        for note in review(loaded, device, placement.width or 1):
            warnings.warn(f"{name}: {note}", stacklevel=2)
        enrol(url, name, loaded, replace=replace)
    launched = Study(url, name)
    if launched.status().state != "finished":
        train(url, name, run, placement)
    return launched
