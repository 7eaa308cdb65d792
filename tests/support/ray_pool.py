"""Offers of workers on Ray, and a controller that answers them."""

from __future__ import annotations

from collections.abc import Sequence

from spaces.records import Directives, Offer, Report


def offer(worker: str) -> Offer:
    return Offer(worker=worker, lanes=1, structure=None, host="here", device="cpu", steps=0, room=0)


class FakeController:
    """Writes down what it is told, and fails when it is time."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.answer = Directives()
        self.error: Exception | None = None

    def exchange(self, reports: Sequence[Report], offer: Offer) -> Directives:
        if self.error:
            raise self.error
        self.told.append(f"exchange {offer.worker}")
        return self.answer

    def handle_crash(self, worker: str) -> None:
        self.told.append(f"lost {worker}")

    def renew(self, worker: str) -> bool:
        self.told.append(f"renew {worker}")
        return True

    def sweep(self) -> None:
        if self.error:
            raise self.error
        self.told.append("sweep")

    def request_stop(self) -> None:
        self.told.append("stop")

    def progress(self) -> int:
        return 7

    def close(self) -> None:
        self.told.append("close")
