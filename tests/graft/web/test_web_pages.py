"""The pages of the server in a real browser: figures are there, changes are seen, nothing is fetched from elsewhere."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.request import urlopen

import pytest

from graft.report.rendering.document import Picture
from graft.web.charts.sampling import MOST, Sample, read_sample
from graft.web.security.access import make_token
from graft.web.settings import Settings
from spaces.errors import StorageError
from spaces.records import Report, TrialResult
from storage import StoreRequest, Terms, open_store, request_queue
from storage.databases import find_database
from storage.frames import open_reader
from storage.frames.study import StudyReader
from tests.support.browser import Browser
from tests.support.databases import raw
from tests.support.launches import wait_until
from tests.support.queue import STUDY
from tests.support.servers import serving
from tests.support.studies import metrics, write_study
from tests.support.web import client_of
from tests.support.web_pages import CHARTS, SIZES, Shown, drag, page, place_of, shown

__all__ = ["page", "shown"]


def click_on(page: Browser, chart: int, point: Sequence[float]) -> None:
    """Click on a point of a chart."""
    position = place_of(page, chart, point)
    drag(page, position, position)


PAGES = {
    "/": ("Studies", "demo"),
    "/queue": ("Queue and workers", "No service runs"),
    "/studies/one": ("Study one", "waiting"),
    "/studies/demo": ("Study demo", "Learning curves"),
    "/studies/demo?trials=3,17": ("Study demo", "trial 17"),
    "/studies/demo/trials/3": ("Trial 3 of demo", "search replay demo 3"),
    "/studies/demo/trials/14": ("Trial 14 of demo", "out of | memory <b>"),
    "/studies/demo/figures": ("Figures of demo", "Figure"),
    "/studies/demo/nonlinearities": ("Non-linearities of demo", "2 were learned"),
    "/studies/demo/workers": ("Workers of demo", "launched <script>"),
    "/studies/stage-two/matrix": ("Compatibility matrix of stage-two", "memorize"),
    "/studies/stage-two/matrix?source=add&target=copy": ("Compatibility matrix of stage-two", "add on copy"),
    "/compare?study=demo&study=stage-two": ("Compare studies", "the numbers cannot be compared"),
    "/addresses": ("HTTP API", "/api/studies/{study}/trials"),
    "/login": ("Log in", "token"),
    "/studies/none": ("Not found", "study 'none' does not exist"),
}


@pytest.mark.sampled(len(PAGES))
@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize("size", SIZES)
def test_a_page_shows_what_it_should_and_complains_of_nothing(
    page: Browser, shown: Shown, path: str, size: str, tmp_path: Path
) -> None:
    page.open(shown.address + path, SIZES[size])
    heading, text = PAGES[path]
    assert page.run("document.querySelector('h1').textContent") == heading
    assert text in page.run("document.body.innerText") or text in page.run("document.body.textContent")
    assert "evil" not in page.run("document.title")
    assert all(url.startswith(f"{shown.address}/static/") for url in page.run("[...document.scripts].map(s => s.src)"))
    expected = 1 if heading == "Not found" else 0  # the browser notes the status 404 of the page itself
    assert len(page.complaints) == expected, page.complaints
    assert all(url.startswith((shown.address, "data:")) for url in page.fetched)
    assert page.run("document.documentElement.scrollWidth") <= SIZES[size][0]
    assert not page.run("[...document.images].filter(image => !image.naturalWidth).map(image => image.src)")
    if folder := os.environ.get("SCREENSHOTS"):
        page.picture(Path(folder, f"{path.strip('/').replace('/', '-').replace('?', '-') or 'studies'}-{size}.png"))


def test_what_a_study_is_comes_before_its_figures(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    may_draw = threading.Event()

    def wait_and_read(study: StudyReader) -> Sample:
        may_draw.wait()
        return read_sample(study)

    monkeypatch.setattr("graft.web.routes.study_pages.read_sample", wait_and_read)
    try:
        with urlopen(f"{shown.address}/studies/demo", timeout=240) as answer:
            text = ""
            while "</dl>" not in text:
                text += answer.read1().decode()
            assert "trial 0</a>" in text
            assert "<h2>History" not in text
            may_draw.set()
            assert "<h2>History" in answer.read().decode()
    finally:
        may_draw.set()


def test_figures_that_take_too_long_are_refused_in_their_place(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(study: StudyReader) -> Sample:
        raise StorageError(f"{find_database(shown.url).name}: interrupted <b>")

    monkeypatch.setattr("graft.web.routes.study_pages.read_sample", refuse)
    with client_of(shown.url) as client:
        text = client.get("/studies/demo").text
    assert '<p class="error" role="alert">No figures: interrupted &lt;b&gt;</p>' in text
    assert "trial 0</a>" in text
    assert text.rstrip().endswith("</html>")


def test_figures_begin_with_a_kind_that_has_some(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = {"best_per_group": [], "dropout": [Picture(number=1, caption="Rates", svg="<svg/>")], "distribution": []}
    monkeypatch.setattr("graft.web.routes.pages.figure_kinds", lambda data: [*pictures])
    monkeypatch.setattr("graft.web.routes.figures.draw_figures", lambda data, kind: pictures[kind])
    with client_of(shown.url) as client:
        text = client.get("/studies/demo/figures").text
        assert 'aria-current="page">dropout</a>' in text
        assert "Rates" in text
        chosen = client.get("/studies/demo/figures?kind=best_per_group").text
        assert "There is no picture of best per group" in chosen


def test_studies_of_different_objectives_are_not_drawn_together(shown: Shown) -> None:
    with client_of(shown.url) as client:
        assert "data-chart=" not in client.get("/compare?study=demo&study=stage-two").text


@pytest.mark.long
def test_charts_have_a_mark_for_each_trial_that_leads_to_it(page: Browser, shown: Shown) -> None:
    page.open(f"{shown.address}/studies/demo")
    [marks, _, best] = page.run(f"{CHARTS}[0].drawn.dataset.map(({{source}}) => source.length)")
    assert marks == best >= 14
    assert page.run(f"{CHARTS}.length") == page.run("document.querySelectorAll('.canvas canvas').length") == 7
    values = ["optimizer.learning_rate", "model.scorer.n", "model.scorer"]
    assert sorted(page.run("[...document.querySelectorAll('.small h3')].map(h => h.innerText)")) == sorted(values)
    row = page.run(f"{CHARTS}[0].drawn.dataset[0].source.find(([number]) => number === 3)")
    click_on(page, 0, row[:2])
    wait_until(lambda: page.run("document.querySelector('h1')?.textContent") == "Trial 3 of demo")


@pytest.mark.long
def test_a_change_is_seen_without_a_reload(page: Browser, shown: Shown) -> None:
    page.open(f"{shown.address}/studies/demo")
    page.run("window.here = true")
    before = page.run("document.querySelector('progress').value")
    shown.study.end([TrialResult(number=16, fence=1, state="finished", objective=0.01)])
    deadline = time.monotonic() + 240
    while page.run("document.querySelector('progress').value") != before + 1:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert "0.01, trial 16" in page.run("document.querySelector('dl').innerText")
    assert page.run("document.getElementById('told').textContent") == "live"
    assert page.run("window.here")
    assert not page.complaints


@pytest.mark.long
def test_a_page_says_that_its_stream_is_broken_and_when_it_is_live_again(page: Browser, tmp_path: Path) -> None:
    settings = Settings(database=f"sqlite:///{tmp_path}/graft.db")
    notice = "document.getElementById('told').textContent"
    with open_store(settings.database) as store:
        study = write_study(store)
        with serving(settings) as address:
            page.open(f"{address}/studies/demo")
            wait_until(lambda: page.run(notice) == "live")
        wait_until(lambda: page.run(notice) == "no connection; trying again")
        assert page.run("document.querySelector('header').innerText.split('no connection').length") == 2
        study.end([TrialResult(number=16, fence=1, state="finished", objective=0.01)])
        with serving(settings, port=int(address.rpartition(":")[2])):
            wait_until(lambda: page.run(notice) == "live")
            wait_until(lambda: "0.01, trial 16" in page.run("document.querySelector('dl').innerText"))


@pytest.mark.long
def test_the_end_of_a_stream_in_good_order_is_not_told(
    page: Browser, shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graft.web.routes.events._LONGEST", 1)
    page.open(f"{shown.address}/studies/demo")
    page.run(
        "window.ever = []; new MutationObserver(() => ever.push(told.textContent)).observe(told, {childList: true})"
    )
    wait_until(lambda: page.run("ever.length") > 2, 60)  # each stream tells it at its start
    assert set(page.run("ever")) == {"live"}


@pytest.mark.long
def test_a_page_whose_stream_was_refused_asks_again(page: Browser, shown: Shown) -> None:
    """Another one of the same address has the only stream, and gives it back."""
    settings = Settings(database=shown.url, streams_each=1, rate=1000.0, burst=1000)
    notice = "document.getElementById('told').textContent"
    with serving(settings) as address:
        with urlopen(f"{address}/api/studies/demo/events"):
            hasty = "const wait = setTimeout; window.setTimeout = (act, after) => wait(act, after / 50)"
            page.open(f"{address}/studies/demo", script=hasty)
            wait_until(lambda: page.run(notice) == "no connection; trying again")
        wait_until(lambda: page.run(notice) == "live")


HASTY = "const every = setInterval; window.setInterval = (act, after) => every(act, after / 50)"
"""Run in a page before its own scripts, which then ask again fifty times as often."""


def test_pages_without_a_stream_ask_again(page: Browser, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/graft.db"
    text = "document.getElementById('live').innerText"
    with open_store(url) as store, serving(Settings(database=url, rate=1000.0, burst=1000)) as address:
        study = write_study(store)
        page.open(f"{address}/", script=HASTY)
        page.run("window.here = true")
        assert "0.1\ntvd/bema" in page.run(text)
        study.end([TrialResult(number=16, fence=1, state="finished", objective=0.01)])
        wait_until(lambda: "0.01\ntvd/bema" in page.run(text))
        assert page.run("window.here && document.getElementById('told').textContent") == "live"
        page.open(f"{address}/studies/demo/workers", script=HASTY)
        wait_until(lambda: page.run("document.querySelector('tbody td.n').innerText") == "3")  # lanes
        study.end([TrialResult(number=17, fence=1, state="finished", objective=0.02)])
        wait_until(lambda: page.run("document.querySelector('tbody td.n').innerText") == "2")
        assert not page.complaints


def test_a_trial_that_trains_is_followed_to_its_end(page: Browser, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/graft.db"
    with open_store(url) as store, serving(Settings(database=url, rate=1000.0, burst=1000)) as address:
        study = write_study(store)
        page.open(f"{address}/studies/demo/trials/18", script=HASTY)
        wait_until(lambda: page.run("document.querySelectorAll('.plot').length") == 1)
        known = f"{CHARTS}[0].drawn.dataset[0].source.map(([step]) => step).join()"
        assert page.run(known) == "50,100"
        assert page.run("document.getElementById('live').dataset.every")
        study.record([Report(number=18, fence=1, step=150, metrics=metrics(18, 200))])
        wait_until(lambda: page.run(known) == "50,100,150")
        study.end([TrialResult(number=18, fence=1, state="finished", objective=0.5)])
        wait_until(lambda: "finished after" in page.run("document.querySelector('dd').innerText"))
        assert page.run("document.getElementById('live').dataset.every ?? 'no more'") == "no more"
        assert page.run("document.querySelectorAll('.plot').length") == 1
        assert not page.complaints


def test_a_page_says_that_its_server_has_gone(page: Browser, shown: Shown) -> None:
    gone = "window.fetch = async () => { throw new TypeError('Failed to fetch') }"
    page.open(f"{shown.address}/queue", script=f"{HASTY}; window.known = fetch; {gone}")
    notice = "document.getElementById('told').textContent"
    wait_until(lambda: page.run(notice) == "no connection; trying again")
    page.run("window.fetch = async () => new Response('', { status: 503, statusText: 'Service Unavailable' })")
    wait_until(lambda: page.run(notice) == "not refreshed: 503 Service Unavailable")
    page.run("window.fetch = known")
    wait_until(lambda: page.run(notice) == "live")
    assert not page.complaints


@pytest.mark.long
def test_who_reads_a_page_keeps_the_focus_when_it_changes(page: Browser, shown: Shown) -> None:
    page.open(f"{shown.address}/studies/demo")
    page.run("window.link = document.getElementById('best-link-3')")
    page.run("link.focus(); getSelection().selectAllChildren(link.closest('.wide').previousElementSibling)")
    above = page.run("link.closest('tr').rowIndex")
    selected = page.run("getSelection().toString()")
    assert selected
    shown.study.end([TrialResult(number=17, fence=1, state="finished", objective=0.105)])
    wait_until(lambda: page.run("link.closest('tr')?.rowIndex") == above + 1)
    assert page.run("document.activeElement === link && link.id === 'best-link-3' && link.innerText === '3'")
    assert page.run("getSelection().toString()") == selected
    assert not page.complaints


def test_a_page_can_be_used_by_the_keyboard(page: Browser, shown: Shown) -> None:
    page.open(f"{shown.address}/studies/demo")
    reached: list[str] = []
    for _ in range(12):
        for kind in ("keyDown", "keyUp"):
            page.call("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
        reached.append(page.run("document.activeElement.textContent.trim() || document.activeElement.id"))
    assert reached[:4] == ["studies", "queue and workers", "compare", "API"]
    assert {"overview", "trials", "figures", "workers", "non-linearities"} <= set(reached)
    assert page.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"


@pytest.mark.long
def test_links_and_words_have_room_on_a_phone(page: Browser, shown: Shown) -> None:
    page.open(f"{shown.address}/studies/demo", SIZES["phone"])
    boxes = "[...document.querySelectorAll('main nav a')].map(link => link.getBoundingClientRect())"
    beside = "boxes.slice(1).map((box, place) => [box, boxes[place]]).filter(([one, other]) => one.top === other.top)"
    gaps = page.run(f"(boxes => {beside}.map(([one, other]) => one.left - other.right))({boxes})")
    assert len(gaps) > 1
    assert min(gaps) > 5
    assert page.run("document.querySelector('#error-14 .words').offsetHeight") < 60


@pytest.mark.long
def test_the_dark_is_dark(page: Browser, shown: Shown) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    colours: list[str] = []
    for scheme in ("light", "dark"):
        page.open(f"{shown.address}/studies/demo")
        page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        colours.append(page.run(ground))
        if folder := os.environ.get("SCREENSHOTS"):
            page.picture(Path(folder, f"{scheme}.png"))
    assert colours == ["rgb(255, 255, 255)", "rgb(13, 17, 23)"]


def test_a_matrix_is_coloured_and_sorts_by_a_name(page: Browser, shown: Shown) -> None:
    page.open(f"{shown.address}/studies/stage-two/matrix")
    colours = "[...document.querySelectorAll('#matrix td[class^=g]')].map(one => getComputedStyle(one).backgroundColor)"
    assert len(set(page.run(colours))) > 4
    rows = "[...document.querySelectorAll('#matrix tbody th')].map(name => name.innerText)"
    before = page.run(rows)
    page.point("#matrix thead th:nth-of-type(1) button", click=True)
    assert page.run("document.querySelector('#matrix thead th').getAttribute('aria-sort')") == "descending"
    assert sorted(page.run(rows)) == sorted(before)
    assert not page.complaints


def test_a_person_logs_in_with_a_token(page: Browser, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/graft.db"
    open_store(url).close()
    token = make_token(url, "ada", "read")
    with serving(Settings(database=url, needs_token=True)) as address:
        page.open(f"{address}/queue")
        assert page.run("location.pathname") == "/login"
        for typed, path in (("graft_wrong", "/login"), (token, "/")):
            page.run(f"document.getElementById('token').value = '{typed}'")
            page.run("document.querySelector('form button').click()")
            deadline = time.monotonic() + 240
            while page.run("document.readyState") != "complete" or page.run("location.pathname") != path:
                assert time.monotonic() < deadline
                time.sleep(0.1)
            time.sleep(0.3)
        assert page.run("document.querySelector('h1').textContent") == "Studies"
        assert page.run("document.cookie") == ""


def test_buttons_change_the_queue_for_who_may(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/graft.db"
    open_store(url).close()
    tokens = {role: make_token(url, role, role) for role in ("read", "submit", "admin")}
    request_queue(url, StoreRequest.of_study(STUDY, Terms(owner="ann")))
    with client_of(url, needs_token=True) as client:
        for role, status in (("read", 403), ("submit", 403), ("admin", 303)):
            headers = {"Authorization": f"Bearer {tokens[role]}"}
            before, log_out, after = client.get("/queue", headers=headers).text.partition("<button>log out</button>")
            assert log_out
            assert ("<button" in before + after) == (role != "read")
            answer = client.post("/queue/one/pause", headers=headers, follow_redirects=False)
            assert answer.status_code == status
        assert client.post("/queue/one/delete", headers=headers).status_code == 422
    with open_reader(url) as reader:
        assert [entry.state for entry in reader.queue()] == ["paused"]


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "path", ["/", "/queue", "/studies/demo", "/studies/demo/trials/3", "/compare?study=demo&study=demo"]
)
def test_pages_of_both_databases(url: str, path: str) -> None:
    with open_store(url) as store, client_of(url) as client:
        write_study(store)
        assert client.get(path).status_code == 200


@pytest.mark.long
def test_a_large_study_is_sampled_by_the_database_and_says_so(page: Browser, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/graft.db"
    with open_store(url) as store:
        write_study(store)
    many = 100_000
    columns = [name for (_, name, *_) in raw(url, "PRAGMA table_info(trials)")]
    values = {"id": "1000000000 + x", "number": "x", "objective": "0.5 + (x * 7919 % 1000) / 1000.0"}
    values |= {"second_objective": "1 + x * 104729 % 997"}
    raw(url, "UPDATE studies SET second_objective = 'minimize model.width'")
    chosen = ", ".join(values.get(name, f"first.{name}") for name in columns)
    raw(
        url,
        f"WITH RECURSIVE more(x) AS (SELECT 20 UNION ALL SELECT x + 1 FROM more WHERE x < {many - 1})"
        f" INSERT INTO trials SELECT {chosen} FROM more, (SELECT * FROM trials WHERE number = 3) AS first",
    )
    with open_reader(url) as reader:
        sample = read_sample(reader.study("demo"))
        assert sample.every == 67
        assert sample.trials.height <= MOST + 30
        best = reader.study("demo").trials(top=5)["number"].to_list()
        assert set(best) <= set(sample.trials["number"])
    with client_of(url) as client:
        started = time.process_time()  # others may have the cores
        text = client.get("/studies/demo").text
        taken = time.process_time() - started
    assert "A sample: one trial in 67 and the best 30" in text
    assert "Pareto front" in text
    assert taken < 2, taken
    with serving(Settings(database=url)) as address:
        page.open(f"{address}/studies/demo")
        wait_until(lambda: page.run("performance.getEntriesByName('first-contentful-paint').length") == 1)
        painted = page.run("performance.getEntriesByName('first-contentful-paint')[0].startTime") / 1000
        assert not page.complaints
    print(f"{many:,} trials: {taken:.2f} s of processor, {len(text):,} bytes, first paint after {painted:.2f} s")
