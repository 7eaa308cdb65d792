"""The slots of a launch on a Ray cluster, and what Tune is asked for: no cluster in it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spaces.errors import StudyError
from workers.pool.ray import cluster_slots, tune
from workers.pool.ray.tune import TunedSlots

pytestmark = pytest.mark.fast


class Actor:
    """Writes down how it is ended."""

    def __init__(self) -> None:
        self.reasons: list[str | None] = []
        self.finish = SimpleNamespace(remote=self.reasons.append)


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, float]]:
    """Return the nodes of a pretended cluster, where Tune does nothing by itself."""
    nodes = {"a": {"CPU": 2.0}}
    monkeypatch.setattr(cluster_slots, "_live_nodes", lambda: nodes)
    monkeypatch.setattr(TunedSlots, "_fit", lambda self: None)
    return nodes


def place(slots: TunedSlots, slot: int, actor: object, node: str = "a") -> Any:
    """Start a worker, which Tune places at once; its actor and its node."""

    async def start() -> Any:
        starting = asyncio.create_task(slots.start(slot))
        await asyncio.sleep(0)
        assert slots._placing.suggest(f"trial {slot}") == {"slot": slot, "reservation": {"CPU": 1.0}}
        tune._Notices(slots._placing).on_trial_result(
            1, [], SimpleNamespace(trial_id=f"trial {slot}"), {"actor": actor, "node": node}
        )
        return await starting

    return asyncio.run(start())


def test_there_are_slots_for_the_room_that_there_is_and_no_more_than_asked_for(nodes: dict[str, dict[str, float]]):
    all_of_them, two = TunedSlots(None, ""), TunedSlots(2, "")
    assert all_of_them.device == "cpu"
    assert (all_of_them.update(), two.update()) == ((0, 1), (0, 1))
    nodes["b"] = {"CPU": 1.0}
    assert (all_of_them.update(), two.update()) == ((0, 1, 2), (0, 1))
    nodes.clear()
    assert (all_of_them.update(), two.update()) == ((), ())
    with pytest.raises(StudyError, match="neither GPUs nor cores"):
        TunedSlots(None, "")


def test_where_a_worker_still_runs_there_is_a_slot_and_none_is_added_without_room(nodes: dict[str, dict[str, float]]):
    nodes["b"] = {"CPU": 1.0}
    slots, actor = TunedSlots(None, ""), Actor()
    assert place(slots, 2, actor, "a") == (actor, "a")
    nodes.pop("b")
    assert slots.update() == (0, 2)
    slots.stop(2, actor, "it crashed")
    assert slots.update() == (0, 1)
    assert actor.reasons == ["it crashed"]
    assert slots.has_left("b")
    assert not slots.has_left("a")


@pytest.mark.usefixtures("nodes")
def test_tune_is_asked_for_no_worker_that_is_not_wanted():
    slots = TunedSlots(None, "")

    async def cancel() -> None:
        starting = asyncio.create_task(slots.start(0))
        await asyncio.sleep(0)
        starting.cancel()
        await asyncio.sleep(0)

    assert slots._placing.suggest("before") is None
    asyncio.run(cancel())
    assert slots._placing.suggest("after") is None


@pytest.mark.usefixtures("nodes")
def test_a_worker_that_tune_cannot_start_is_an_error_and_so_is_tunes_own_end(tmp_path: Path):
    (tmp_path / "error.txt").write_text("Failure # 1\nno such module\n")
    slots = TunedSlots(None, "")

    async def start() -> None:
        starting = asyncio.create_task(slots.start(0))
        await asyncio.sleep(0)
        slots._placing.suggest("trial")
        trial = SimpleNamespace(trial_id="trial", error_file=str(tmp_path / "error.txt"))
        tune._Notices(slots._placing).on_trial_error(1, [], trial)
        await starting

    with pytest.raises(RuntimeError, match="no such module"):
        asyncio.run(start())
    slots._failure = OSError("no space left")
    with pytest.raises(OSError, match="no space left"):
        slots.update()
