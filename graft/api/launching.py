"""A space becomes a study, which is trained."""

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

    `space`: what `Space` takes; `trials`, `study`: in place of the space's own number and name; `database`: a SQLite
    file or a URL; `run`: where it runs, and whether its progress is shown; `replace`: begin a study of this name again
    that has no result yet; `warm_start`: earlier studies of the database that the sampler starts from, or "auto" for
    all of them, as `search launch --warm-start` takes them. Raises GraftError, one line, for what cannot be launched;
    KeyboardInterrupt after an interrupt, when the study has stopped with everything kept.
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
        for note in review(loaded, placement.device if placement.executor != "ray" else None, placement.width or 1):
            warnings.warn(f"{name}: {note}", stacklevel=2)
        enrol(url, name, loaded, replace=replace)
    found = Study(url, name)
    if found.status().state != "finished":
        train(url, name, run, placement)
    return found
