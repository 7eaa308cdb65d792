"""A stored study is run: its controller in this process or on a cluster, its workers in a pool."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from graft.families import families
from graft.launching.checkpoints import Checkpoints
from graft.launching.placement import Placement
from graft.running import RunningStudy, Standing, find_study
from spaces import load
from spaces.errors import StudyError
from spaces.records import Directives, Offer, Report

if TYPE_CHECKING:
    from spaces.space import Space
    from workers.pool import Saving

CHECKED_DRAWS = 4000
"""Trials drawn before a launch, so that a rule that only few draws break is reported then; a fifth of a second."""


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """A study of a database, and how it is to be run."""

    database: str
    """Its URL."""
    study: str
    placement: Placement
    checkpoints: Checkpoints


def read_space(origin: str, overrides: Mapping[str, str]) -> Space:
    """Read a space, from a file or a packaged one, and try draws of it."""
    space = load(origin, families(), overrides)
    space.check(CHECKED_DRAWS)
    return space


def run_study(
    request: RunRequest, show: Callable[[Standing], None], stop_requested: Callable[[], bool] = lambda: False
) -> Standing:
    """Run a study until it is finished or stopped; says where it then stands.

    `show` is called with its progress, often. `stop_requested` is asked before every exchange. Raises StudyError if
    there is no such study, if another process runs it, or if it cannot be run as requested.
    """
    saving = request.checkpoints.saving(request.database, find_study(request.database, request.study))
    url = request.checkpoints.absolute_url()
    open_study = functools.partial(RunningStudy, request.database, request.study, saving, url)
    if request.placement.executor == "inline":
        return _run_inline(open_study, request.placement, saving, _Watch(show, stop_requested))
    return _run_ray(open_study, request.placement, saving, _Watch(show, stop_requested))


@dataclass(frozen=True)
class _Watch:
    show: Callable[[Standing], None]
    stop_requested: Callable[[], bool]


def _run_inline(
    open_study: Callable[[], RunningStudy], placement: Placement, saving: Saving | None, watch: _Watch
) -> Standing:
    from workers.pool import inline

    study = open_study()
    try:
        inline.run(
            _WatchedStudy(study, watch),
            device=str(placement.device),
            width=placement.width,
            workers=placement.workers,
            saving=saving,
        )
        return study.progress()
    finally:
        study.close()


class _WatchedStudy:
    """A running study that shows its progress after every exchange, and stops when that is requested."""

    def __init__(self, study: RunningStudy, watch: _Watch) -> None:
        self._study, self._watch = study, watch

    def exchange(self, reports: Sequence[Report], offer: Offer) -> Directives:
        if self._watch.stop_requested():
            self._study.request_stop()
        directives = self._study.exchange(reports, offer)
        self._watch.show(self._study.progress())
        return directives

    def handle_crash(self, worker: str) -> None:
        self._study.handle_crash(worker)

    def handle_departure(self, worker: str) -> None:
        self._study.handle_departure(worker)

    def renew(self, worker: str) -> bool:
        return self._study.renew(worker)

    def sweep(self) -> None:
        self._study.sweep()


def _run_ray(
    open_study: Callable[[], RunningStudy], placement: Placement, saving: Saving | None, watch: _Watch
) -> Standing:
    try:
        from workers.pool import ray_tune
    except ModuleNotFoundError:
        raise StudyError("the ray executor needs Ray: pip install 'graft-search[ray]'") from None
    last: list[Standing] = []

    def show(standing: Standing) -> bool:
        last[:] = [standing]
        watch.show(standing)
        return watch.stop_requested() or standing.stopping

    cluster = ray_tune.Cluster(
        address=placement.ray_address, workers=placement.workers, environment=placement.environment()
    )
    ray_tune.run(open_study, cluster=cluster, width=placement.width, saving=saving, watch=show)
    return last[0]
