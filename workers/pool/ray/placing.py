"""What Tune asks for workers: a searcher that wants one wherever there is room, while nodes join and leave."""

from __future__ import annotations

from typing import Any, final

from ray.tune.search import Searcher
from ray.tune.stopper import Stopper

from workers.pool.ray.nodes import Nodes
from workers.pool.slots import Slots


@final
class Placing(Searcher):
    """What Tune asks for trials: a worker in each slot, as long as the study needs any."""

    def __init__(self, slots: Slots, nodes: Nodes, controller: Any) -> None:
        super().__init__()
        self.slots = slots
        self._nodes, self._controller = nodes, controller
        self._slot_of: dict[str, int] = {}
        """By Tune's name of the trial."""
        self._node_of: dict[str, str] = {}

    def suggest(self, trial_id: str) -> Any:
        slot = self.slots.take()
        if slot is None:
            return Searcher.FINISHED if self.slots.closed else None
        self._slot_of[trial_id] = slot
        return {"slot": slot}

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        slot = self._slot_of[trial_id]
        self._node_of[trial_id] = result["node"]
        self.slots.note_start(slot)
        if result["reports"]:
            self.slots.note_report(slot)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        slot, node = self._slot_of.pop(trial_id), self._node_of.pop(trial_id, None)
        if not error:
            self.slots.note_end(slot)
            return
        if node is None or node in self._nodes.now():
            self._controller.detach.remote(slot)
            self.slots.note_crash(slot)
        else:
            self._controller.leave.remote(slot)
            self.slots.note_departure(slot)

    def save(self, checkpoint_path: str) -> None:
        """Save nothing: what a study needs to resume is in its database."""


@final
class EndOfStudy(Stopper):
    """Ends the experiment when the only workers left are not placed on a machine yet."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self._slots.finished
