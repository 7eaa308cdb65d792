"""Quotas of people whose requests arrive together, over several connections to a server."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from threading import Barrier

from spaces.errors import StudyError
from storage import StoreRequest, Terms, open_reader, open_store
from tests.support.databases import Server
from tests.support.queue import STUDY


def test_submissions_that_arrive_together_are_counted_one_after_another(postgres: Server):
    with postgres.database() as url, ExitStack() as opened:
        stores = [opened.enter_context(open_store(url)) for _ in range(6)]
        row = {"role": "submit", "digest": "digest", "seconds": None}
        stores[0].carry_out(StoreRequest(action="make_token", study="bob", row=row))
        together = Barrier(len(stores))

        def submit(index: int) -> str:
            asked = StoreRequest.of_study(replace(STUDY, name=f"study-{index}"), Terms(owner="bob"))
            together.wait()
            try:
                stores[index].carry_out(replace(asked, by="bob", most_open=2))
            except StudyError as refusal:
                return str(refusal)
            return "queued"

        with ThreadPoolExecutor(len(stores)) as pool:
            answers = sorted(pool.map(submit, range(len(stores))))
        refusal = "bob has 2 studies in the queue, as many as a person may have here; cancel one"
        assert answers == [*4 * [refusal], *2 * ["queued"]]
        with open_reader(url) as reader:
            assert len(reader.queue()) == 2
