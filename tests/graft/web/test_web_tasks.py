"""Questions that people have, each answered within three clicks from the first page; and pages that shut nobody out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from graft.web.settings import Settings
from storage import open_store
from tests.support.browser import Browser, browser
from tests.support.house_of_studies import house
from tests.support.launches import wait_until
from tests.support.queue import submit
from tests.support.servers import serving

AXE = Path(__file__).parents[2] / "data" / "axe" / "axe.min.js"
MOST_CLICKS = 3
SIZES = {"wide": (1280, 900), "phone": (390, 844)}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    url = f"sqlite:///{tmp_path_factory.mktemp('tasks')}/graft.db"
    with house(url), serving(Settings(database=url, rate=1000.0, burst=1000)) as server_url:
        yield server_url


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("chromium")) as chromium:
        yield chromium


TASKS: dict[str, tuple[list[str], str]] = {
    "which scorer wins beyond noise?": (["#study-scorers"], "ssa-1.5 is better than softmax"),
    "is the learning rate or dropout at fault?": (
        ["#study-rate-or-dropout"],
        "Associated: optimizer.learning_rate",
    ),
    "what did trial 17 do differently?": (
        ["#study-rate-or-dropout", "#table-link-by-number", "a[href$='/trials/17']"],
        "Values that differ from the best trial's come first",
    ),
    "why does my study wait?": (["#study-next-rates"], "waits for lanes: studies of a higher class have them all"),
    "what trains now, and until when?": (["#study-rate-or-dropout"], "worker-2 trains 8 trials:"),
    "why did trials fail?": (["#study-out-of-memory", "#error-link-2"], "CUDA error: out of memory"),
    "does what was found on add help on memorize?": (
        ["#study-quick-transfer", "#matrix a[href*='source=add&target=memorize']"],
        "add on memorize",
    ),
    "do two studies agree?": (
        ["#tick-scorers", "#tick-scorers-again", "[formaction='/compare']"],
        "Arms against scorers-again: softmax",
    ),
    "how do I train the best one again?": (
        ["#study-rate-or-dropout", "#best-link"],
        "search replay rate-or-dropout",
    ),
    "who has the workers?": (["nav a[href='/queue']"], "rack-4"),
}
"""Question -> what is clicked on, one after the other, and what then can be read."""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("task", TASKS)
def test_a_question_is_answered_within_three_clicks(page: Browser, address: str, task: str) -> None:
    clicks, answer = TASKS[task]
    assert len(clicks) <= MOST_CLICKS
    page.open(f"{address}/")
    for selector in clicks:
        # A refresh may lay the page out anew between looking where an element is and the click.
        element = f"document.querySelector({json.dumps(selector)})"
        wait_until(lambda element=element: page.run(f"document.readyState === 'complete' && !!{element}"))
        page.run(f"window.clicked = {element}; window.clicked.click()")
        wait_until(
            lambda: page.run("document.readyState === 'complete' && (!window.clicked || clicked.type === 'checkbox')")
        )
    wait_until(lambda: answer in page.run("document.body.innerText"))
    assert not page.complaints


PAGES = {
    "studies": "/",
    "found": "/?q=nothing+of+this",
    "search": "/studies/rate-or-dropout",
    "arms": "/studies/scorers",
    "transfer": "/studies/quick-transfer",
    "failed": "/studies/out-of-memory",
    "empty": "/studies/just-begun",
    "trials": "/studies/rate-or-dropout/trials?sort=objective&group=model.scorer",
    "trial": "/studies/rate-or-dropout/trials/17",
    "compared arms": "/compare?study=scorers",
    "matrix": "/studies/quick-transfer/matrix?source=add&target=memorize",
    "workers": "/studies/rate-or-dropout/workers",
    "non-linearities": "/studies/scorers/nonlinearities",
    "queue": "/queue",
    "compare": "/compare?study=rate-or-dropout&study=just-begun",
    "choose": "/compare",
    "addresses": "/addresses",
    "login": "/login",
    "refused": "/studies/none",
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("size", SIZES)
def test_a_page_shuts_nobody_out(page: Browser, address: str, name: str, size: str) -> None:
    page.open(address + PAGES[name], SIZES[size])
    assert page.run("document.documentElement.scrollWidth") <= SIZES[size][0]
    page.run("for (const one of document.querySelectorAll('main details')) one.open = true")
    page.run(AXE.read_text() + "; 0")
    page.run("axe.run().then(found => { window.found = found.violations }); 0")
    wait_until(lambda: page.run("window.found !== undefined"))
    violations = page.run("JSON.stringify(found.map(({id, nodes}) => [id, nodes.slice(0, 3).map(node => node.html)]))")
    assert json.loads(violations) == []


def test_ticked_studies_stay_ticked_and_are_counted(page: Browser, address: str) -> None:
    page.open(f"{address}/")
    disabled = "[...document.querySelectorAll('#chosen button')].map(button => button.disabled)"
    assert page.run(disabled) == [True, True]
    page.run("document.getElementById('tick-scorers').click()")
    assert page.run(disabled) == [True, False]
    page.run("refresh(); 0")
    page.run("document.getElementById('tick-scorers-again').click()")
    assert page.run("document.getElementById('ticked').innerText") == "2 ticked"
    page.run("window.done = 0; live.addEventListener('refreshed', () => { window.done = 1 }); refresh(); 0")
    wait_until(lambda: page.run("window.done === 1"))
    assert page.run("document.querySelectorAll('.tick:checked').length") == 2
    assert page.run(disabled) == [False, False]


WHY = "document.querySelector('#entry-one .why')?.innerText ?? ''"


def test_a_study_is_paused_resumed_and_cancelled_on_the_page_of_the_queue(page: Browser, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/graft.db"
    with open_store(url) as store:
        submit(store)
    with serving(Settings(database=url)) as address:
        page.open(f"{address}/queue")
        for action, state in (("pause", "stopped"), ("resume", "waiting"), ("cancel", "cancelled")):
            # Not by the mouse: the row may move, or be drawn again, between a look at its place and the press.
            page.run(f"document.getElementById('{action}-one').click()")
            wait_until(lambda state=state: page.run(WHY).startswith(state))
        assert not page.run("!!document.getElementById('cancel-one')")
        assert not page.complaints
