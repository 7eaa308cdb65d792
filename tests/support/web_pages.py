"""Pages in a real browser, with what they show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pytest

from graft.launching.process.run_log import RunLog
from graft.web.settings import Settings
from storage import ControlledStudy, Terms, open_store
from storage.schema import trial_id
from tests.support.browser import Browser, browser
from tests.support.databases import raw
from tests.support.queue import STUDY, submit
from tests.support.servers import serving
from tests.support.studies import write_study
from tests.support.transfer_report import write as write_transfer

EVIL = "<script>document.title = 'evil'</script><img src=x onerror=alert(1)>\"'&"
SIZES = {"wide": (1280, 900), "phone": (390, 844)}
CHARTS = "[...document.querySelectorAll('[data-chart]')].map(box => charts.get(box))"
"""JavaScript for the data that the charts of a page have drawn."""


class Shown(NamedTuple):
    """A server with three studies, one of which is written to."""

    address: str
    url: str
    study: ControlledStudy


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    url = f"sqlite:///{tmp_path_factory.mktemp('pages')}/graft.db"
    write_transfer(url, "stage-two")
    with open_store(url) as store:
        submit(store, STUDY, Terms(owner=EVIL))
        study = write_study(store)
        store.annotate(study.id, note=EVIL)
        task = EVIL.replace("'", "''")
        for number, knots in ((0, "[0.0, 1.0]"), (3, "[0.0, 0.5, 1.0]")):
            trial = f"{study.id}, {trial_id(study.id, number)}"
            raw(
                url,
                f"INSERT INTO architectures VALUES (NULL, {trial}, '{task}', 'mlp', -2, 2, '{knots}', '2026-11-23')",
            )
        RunLog.of(url).write("demo", f"launched {EVIL}")
        with serving(Settings(database=url, rate=1000.0, burst=1000)) as address:
            yield Shown(address, url, study)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("chromium")) as chromium:
        yield chromium


def place_of(page: Browser, chart: int, point: Sequence[float]) -> tuple[float, float]:
    """Scroll a chart into view; returns where on the screen one of its points is."""
    page.run(f"{CHARTS}[{chart}].parts.canvas.scrollIntoView({{block: 'center'}})")
    page.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    x, y = page.run(
        f"(({{chart, parts}}) => {{ const box = parts.canvas.getBoundingClientRect(), "
        f"[x, y] = chart.convertToPixel('grid', {[*point]}); return [box.x + x, box.y + y] }})({CHARTS}[{chart}])"
    )
    return x, y


def drag(page: Browser, start: tuple[float, float], end: tuple[float, float]) -> None:
    """Press the mouse at a place, move it to another one, and let go."""
    for kind, (x, y) in (("mouseMoved", start), ("mousePressed", start), ("mouseMoved", end), ("mouseReleased", end)):
        button = {} if kind == "mouseMoved" and (x, y) == start else {"button": "left", "buttons": 1, "clickCount": 1}
        page.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **button)
