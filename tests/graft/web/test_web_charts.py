"""The charts of the pages: ranges that are dragged or typed, curves that are read off, the front, what was learned."""

from __future__ import annotations

import html
import itertools
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from graft.launching.process.run_log import RunLog
from graft.web.charts.ranges import Ranges
from graft.web.charts.specs import Line, draw_curves, write_frame
from graft.web.security.refusals import RefusalError
from graft.web.settings import Settings
from search.analysis.study.best_trials import summarise_best
from search.analysis.study.top_k import top_k_statistics
from spaces.records import TrialResult
from storage import open_store
from tests.support.browser import Browser
from tests.support.databases import raw
from tests.support.house_of_studies import SEARCH_RUNNING, SEARCHED, write_search
from tests.support.launches import wait_until
from tests.support.nonlinearities import add_architectures
from tests.support.queue import submit, taking
from tests.support.servers import serving
from tests.support.studies import write_study
from tests.support.web import client_of
from tests.support.web_charts import press
from tests.support.web_pages import CHARTS, Shown, drag, page, place_of, shown

__all__ = ["page", "shown"]
SUMMARY = "document.querySelector('#ranges summary').innerText"


PARALLEL = f"{CHARTS}.find(({{spec}}) => spec.option.parallelAxis)"


@pytest.mark.long
def test_a_range_is_dragged_along_its_axis_and_a_click_lets_go(page: Browser, shown: Shown) -> None:
    page.open(f"{shown.address}/studies/demo?trials=3,17")
    before = page.run(SUMMARY)
    places = places_on_axis(page, "dim3", (0.12, 0.18))
    drag(page, *places)
    wait_until(lambda: page.run(SUMMARY) != before)
    ends = re.findall(r"(?:low|high)\.objective=([\d.]+)", page.run("location.search"))
    assert [float(end) for end in ends] == pytest.approx([0.12, 0.18], rel=0.02)
    assert "trials=3%2C17" in page.run("location.search")
    kept = page.run(
        "[...document.querySelectorAll('tr[id^=best-] td:nth-child(3)')].map(cell => Number(cell.innerText))"
    )
    assert kept
    assert all(float(ends[0]) <= objective <= float(ends[1]) for objective in kept)
    inside, outside = page.run(f"{CHARTS}[0].drawn.dataset.slice(0, 2).map(({{source}}) => source.length)")
    assert (inside, outside > 0) == (len(kept), True)
    summary = page.run(SUMMARY)
    page.open(page.run("location.href"))
    assert page.run(SUMMARY) == summary
    x, _ = places[0]
    page.run(f"{PARALLEL}.parts.canvas.scrollIntoView({{block: 'center'}})")
    top = page.run(f"{PARALLEL}.parts.canvas.getBoundingClientRect().y")
    drag(page, (x, top + 60), (x, top + 60))
    wait_until(lambda: page.run(SUMMARY) == before)
    assert page.run("location.search") == "?trials=3%2C17"
    assert not page.complaints


@pytest.mark.long
def test_a_range_is_typed_by_the_keyboard_and_stays_through_a_change(page: Browser, shown: Shown) -> None:
    page.open(f"{shown.address}/studies/demo")
    before = page.run(SUMMARY)
    page.run("document.querySelector('#ranges summary').focus()")
    press(page, "Enter", 13)
    page.call("Input.dispatchKeyEvent", type="char", text="\r")
    wait_until(lambda: page.run("document.getElementById('ranges').open"))
    page.run("document.getElementById('high.objective').focus()")
    page.call("Input.insertText", text="0.155")
    press(page, "Tab", 9)
    wait_until(lambda: page.run(SUMMARY) != before)
    assert page.run("location.search") == "?high.objective=0.155"
    assert page.run("document.getElementById('ranges').open")
    assert page.run("document.activeElement.innerText") == "keep these"
    page.open(f"{shown.address}/studies/demo?high.objective=0.155")
    assert page.run("document.getElementById('high.objective').value") == "0.155"
    assert not page.complaints


@pytest.mark.long
def test_curves_are_read_off_and_zoomed_by_the_keyboard(page: Browser, shown: Shown) -> None:
    page.open(f"{shown.address}/studies/demo?trials=3")
    page.run("window.chart = document.querySelectorAll('.canvas')[1]; chart.focus()")
    press(page, "ArrowRight", 39)
    press(page, "ArrowRight", 39)
    read = "chart.parentElement.querySelector('.readout').innerText"
    wait_until(lambda: page.run(read) == "trial 3, step: 100, tvd/bema: 0.13")
    for _ in range(2):
        press(page, "+", 187)
    zoom = f"{CHARTS}[1].chart.getOption().dataZoom[0]"
    assert page.run(f"[{zoom}.start, {zoom}.end]") == [37.5, 62.5]
    page.run("refresh()")
    wait_until(lambda: page.run("chart.isConnected && document.querySelectorAll('.canvas').length") == 7)
    assert page.run("document.activeElement === window.chart")
    assert page.run(f"[{zoom}.start, {zoom}.end]") == [37.5, 62.5], "a refresh keeps what is zoomed"
    press(page, "0", 48)
    assert page.run(f"[{zoom}.start, {zoom}.end]") == [0, 100]
    assert not page.complaints


def test_a_chart_is_zoomed_by_dragging_and_shows_its_numbers(page: Browser, shown: Shown) -> None:
    page.open(f"{shown.address}/studies/demo", script=SAVED)
    drag(page, place_of(page, 0, (2, 0.11)), place_of(page, 0, (6, 0.17)))
    extent = f"{CHARTS}[0].chart.getModel().getComponent('xAxis').axis.scale.getExtent()"
    wait_until(lambda: page.run(extent) == pytest.approx([2, 6], abs=0.3))
    tool = "[...document.querySelectorAll('.tools')[0].children].find(button => button.innerText === '{}').click()"
    page.run(tool.format("reset"))
    assert page.run(extent)[0] == 0
    page.run(tool.format("log"))
    assert page.run(f"{CHARTS}[0].chart.getOption().yAxis[0].type") == "log"
    page.run(tool.format("table"))
    assert page.run("document.querySelector('.plot table a').href").endswith("/studies/demo/trials/0")
    page.run(tool.format("PNG"))
    page.run(tool.format("CSV"))
    (picture, image), (data, _) = page.run("window.saved")
    assert (picture, data) == ("objective-of-trials.png", "objective-of-trials.csv")
    assert image.startswith("data:image/png;base64,")
    wait_until(lambda: page.run("window.text") is not None)
    text = page.run("window.text")
    assert text.startswith("series,number,objective,")
    assert "\ntrials,3,0.13," in text
    assert not page.complaints


@pytest.mark.long
def test_all_is_done_while_a_study_trains(page: Browser, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/graft.db"
    settings = Settings(database=url, rate=1000.0, burst=1000)
    with open_store(url) as store, taking(store), serving(settings) as address:
        store.lock_service()
        study = write_search(store)
        submit(store)
        left = iter(range(SEARCHED, SEARCHED + SEARCH_RUNNING))
        ended = "document.querySelector('.tiles progress').value"

        def end_one() -> None:
            number = next(left)
            study.end([TrialResult(number=number, fence=1, state="finished", objective=0.05)])
            wait_until(lambda: page.run(ended) == number + 1, 60)

        page.open(f"{address}/studies/rate-or-dropout", script=SAVED)
        drag(page, place_of(page, 0, (50, 0.02)), place_of(page, 0, (150, 0.3)))
        extent = f"{CHARTS}[0].chart.getModel().getComponent('xAxis').axis.scale.getExtent()"
        wait_until(lambda: page.run(extent) == pytest.approx([50, 150], abs=5), 60)
        end_one()
        assert page.run(extent) == pytest.approx([50, 150], abs=5), "what is zoomed stays so"
        before = page.run(SUMMARY)
        drag(page, *places_on_axis(page, "dim4", (0.01, 0.05)))
        wait_until(lambda: page.run(SUMMARY) != before, 60)
        end_one()
        assert "high.objective=" in page.run("location.search")
        page.run("[...document.querySelectorAll('.tools')[0].children].find(one => one.innerText === 'CSV').click()")
        assert page.run("window.saved.map(([name]) => name)") == ["objective-of-trials.csv"]
        assert not page.complaints

        page.open(f"{address}/studies/rate-or-dropout/trials?where=objective+%3C+0.1&group=model.scorer")
        follow(page, "[...document.querySelectorAll('th a')].find(one => one.innerText === 'objective')")
        numbers = page.run("[...document.querySelectorAll('.tick')].map(box => Number(box.value))")
        assert numbers[0] == 31
        assert page.run("document.querySelectorAll('#groups tbody tr').length") == 4
        study.end([TrialResult(number=next(left), fence=1, state="finished", objective=0.001)])
        page.point(".star[data-star='31']", click=True)
        wait_until(lambda: page.run("document.querySelector('.star[data-star=\"31\"]').ariaPressed") == "true", 60)
        follow(page, "[...document.querySelectorAll('a')].find(one => one.innerText === 'reset')")
        for number in (0, 1):
            page.run(f"document.querySelector('.tick[value=\"{number}\"]').click()")
        follow(page, "document.querySelector('[data-act=curves]')")
        assert page.run("[...document.querySelectorAll('.legend li')].map(one => one.innerText)") == [
            "trial 0",
            "trial 1",
        ]
        assert not page.complaints

        page.open(f"{address}/queue")
        page.point("#cancel-one", click=True)
        wait_until(lambda: page.run("document.querySelector('#entry-one .why')?.innerText ?? ''") == "cancelled", 60)
        assert not page.complaints


def follow(page: Browser, expression: str) -> None:
    """Click on what a JavaScript expression finds, and wait for the page that follows."""
    page.run(f"window.here = 1; {expression}.click()")
    wait_until(lambda: page.run("document.readyState === 'complete' && !window.here"), 60)


def places_on_axis(page: Browser, axis: str, values: Sequence[float]) -> list[tuple[float, float]]:
    """Scroll the parallel coordinates into view; returns where on the screen values of an axis are."""
    page.run(f"{PARALLEL}.parts.canvas.scrollIntoView({{block: 'center'}})")
    return page.run(
        f"(({{chart, parts}}) => {{ const box = parts.canvas.getBoundingClientRect(); "
        "const system = chart.getModel().getComponent('parallel').coordinateSystem; "
        f"return {[*values]}.map(value => system.dataToPoint(value, '{axis}'))"
        f".map(([x, y]) => [box.x + x, box.y + y]) }})({PARALLEL})"
    )


SAVED = """
window.saved = []; window.text = null;
HTMLAnchorElement.prototype.click = function () { window.saved.push([this.download, this.href]); };
const make = URL.createObjectURL;
URL.createObjectURL = (blob) => { blob.text().then((text) => { window.text = text; }); return make(blob); };
"""
"""Run in a page before its own scripts: what is downloaded is kept, as a headless browser has no folder for it."""


@pytest.mark.long
def test_a_text_of_a_user_is_no_style_of_a_chart(page: Browser, shown: Shown) -> None:
    page.open(f"{shown.address}/studies/demo")
    wrong = page.run(f"{CHARTS}.filter(({{drawn}}) => drawn.tooltip.renderMode !== 'richText').length")
    assert wrong == 0


def test_outliers_are_told_and_do_not_flatten_the_rest() -> None:
    values = [0.1 + 0.001 * number for number in range(100)]
    for far, note in ((-50.0, "2 of 102"), (None, "")):
        extra = [] if far is None else [far, -far]
        chart = draw_curves([Line("a", [*range(100 + len(extra))], [*values, *extra])], ("step", "loss"), "losses")
        [_, zoom] = chart.option["dataZoom"]
        assert chart.note.startswith(note)
        assert (zoom.get("startValue"), zoom.get("endValue")) == ((None, None) if far is None else (0.1, values[-1]))


@pytest.mark.parametrize("value", [0.9, 0.0, -3.0, 1e-300, 1e300, math.nan, math.inf])
def test_a_chart_of_any_number_is_json(value: float) -> None:
    frame = write_frame(pl.DataFrame({"number": [0, 1], "objective": [value, None]}))
    assert frame["source"][0][1] == (pytest.approx(value) if math.isfinite(value) else None)
    json.dumps(frame, allow_nan=False)


@pytest.mark.long
def test_a_page_can_be_used_without_scripts(page: Browser, shown: Shown) -> None:
    page.open(f"{shown.address}/studies/demo")
    page.call("Emulation.setScriptExecutionDisabled", value=True)
    page.call("Page.reload")
    wait_until(lambda: page.run("document.readyState === 'complete' && !document.querySelector('.plot')"))
    assert page.run("document.querySelector('.chart > p').getBoundingClientRect().height") > 10
    before = page.run(SUMMARY)
    page.run("document.getElementById('high.objective').value = '0.155'")
    page.run("document.querySelector('#ranges button').click()")
    wait_until(lambda: "high.objective=0.155" in page.run("location.search"))
    wait_until(lambda: page.run("document.readyState === 'complete'") and page.run(SUMMARY) != before)
    page.call("Emulation.setScriptExecutionDisabled", value=False)


def read_charts(text: str) -> list[dict[str, Any]]:
    """Return the charts that a page declares."""
    return [json.loads(html.unescape(declaration)) for declaration in re.findall(r'data-chart="([^"]*)"', text)]


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_the_front_is_that_of_all_pairs(tmp_path: Path, direction: str) -> None:
    url = f"sqlite:///{tmp_path}/graft.db"
    with open_store(url) as store:
        write_study(store)
    raw(url, f"UPDATE studies SET second_objective = '{direction} model.width'")
    raw(url, "UPDATE trials SET second_objective = 1 + (number * 7) % 11 WHERE objective IS NOT NULL")
    rows = raw(url, "SELECT number, objective, second_objective FROM trials WHERE objective IS NOT NULL")
    sign = -1 if direction == "maximize" else 1
    beaten = {
        row[0]
        for row, other in itertools.permutations(rows, 2)
        if other[1] <= row[1] and sign * other[2] <= sign * row[2] and other[1:] != row[1:]
    }
    front = {row[0] for row in rows} - beaten
    with client_of(url) as client:
        text = client.get("/studies/demo").text
    [chart] = [chart for chart in read_charts(text) if chart["title"] == "both objectives of trials"]
    marks, line = (data["source"] for data in chart["option"]["dataset"])
    assert len(marks) == len(rows)
    assert {number for number, *_ in line} == front


def test_what_was_learned_is_on_its_page(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/graft.db"
    with open_store(url) as store:
        study = write_study(store)
    add_architectures(
        url, study.id, [(3, "set_complement", "mlp", [0.0, 0.5, 1.0]), (0, "set_complement", "mlp", [0.0, 1.0])]
    )
    with client_of(url) as client:
        assert 'href="/studies/demo/nonlinearities"' in client.get("/studies/demo").text
        text = client.get("/studies/demo/nonlinearities").text
    assert "2 were learned" in text
    [chart] = read_charts(text)
    *learned, beside = chart["option"]["dataset"]
    assert [line["name"] for line in (*learned, beside)] == ["trial 0", "trial 3", "GELU"], "the best first"
    assert [max(y for _, y in line["source"]) for line in learned] == [1.0, 1.0]
    assert 1.0 < max(y for _, y in beside["source"]) <= 1.25, "no more of it than leaves what was learned legible"


def test_studies_differ_from_the_first_by_so_much() -> None:
    frames = {
        name: pl.DataFrame({"number": range(400), "objective": [shift + (n * 7919 % 400) / 400 for n in range(400)]})
        for name, shift in (("a", 0.0), ("b", 0.25), ("c", -1.0))
    }
    for maximize in (False, True):
        table = summarise_best(frames, maximize=maximize)
        statistics = top_k_statistics(
            frames["a"].select("number", pl.lit(-1 if maximize else 1).alias("sign"), pl.lit("raw").alias("variant"),
                               pl.lit("a").alias("study"), cost=pl.col("objective") * (-1 if maximize else 1)),
            ["study"],
        )  # fmt: skip
        first, *others = table.filter(portion="best 10 %").iter_rows(named=True)
        [margin] = statistics.filter(portion="best 10 %")["margin"]
        assert [row["study"] for row in (first, *others)] == ["a", "b", "c"]
        assert (first["difference"], first["difference_margin"], first["counted"]) == (None, None, 40)
        assert [row["difference"] for row in others] == pytest.approx([0.25, -1.0])
        assert [row["difference_margin"] for row in others] == pytest.approx([margin * 2**0.5] * 2)
        assert table["difference_margin"].to_list()[:6] == [None] * 6, "of too few trials there is no interval"


def test_studies_side_by_side_have_intervals(shown: Shown) -> None:
    with client_of(shown.url) as client:
        text = client.get("/compare?study=demo&study=stage-two").text
        assert "the numbers cannot be compared" in text
        assert client.get("/compare?study=demo").text.count("Choose another one.") == 1
        assert client.get("/compare?" + "&".join(f"study=s{number}" for number in range(17))).status_code == 400


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ([("low.a.b", "0.1"), ("high.a.b", "2"), ("trials", "3")], "low.a.b=0.1&high.a.b=2.0"),
        ([("high.objective", "1e-300"), ("low.x", " ")], "high.objective=1e-300"),
        ([("low.a'b", "1"), ("low.", "1"), ("low", "1")], ""),
    ],
)
def test_an_address_has_ranges(query: list[tuple[str, str]], expected: str) -> None:
    assert str(Ranges.parse(query)) == expected


@pytest.mark.parametrize("query", [[("low.x", "nan")], [("low.x", "1; DROP")], [("low.x", "1")] * 41])
def test_what_is_no_range_is_refused(query: list[tuple[str, str]]) -> None:
    with pytest.raises(RefusalError, match=r"is no number|there may be 40"):
        Ranges.parse(query)


def test_trials_without_a_value_are_in_no_range_of_it() -> None:
    trials = pl.DataFrame({"objective": [1.0, 2.0, 3.0], "params.n": [5, None, 7], "params.w": ["a", "b", "a"]})
    kept = {
        text: Ranges.parse([(text, "2")]).keep(trials).to_list()
        for text in ("low.objective", "low.n", "low.w", "low.z")
    }
    assert list(kept.values()) == [[False, True, True], [True, False, True], [False] * 3, [False] * 3]


def test_the_last_lines_of_runs_are_on_the_page_of_workers(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/graft.db"
    with open_store(url) as store:
        write_study(store)
    log = RunLog.of(url)
    for number in range(150):
        log.write("demo", f"line {number}\n<b>")
    log.write("other", "of another study")
    with Path(f"{tmp_path}/graft.db.log").open("a") as file:
        file.write('{"time": "half')
    with client_of(url) as client:
        text = client.get("/studies/demo/workers").text
    assert re.findall(r"line (\d+) &lt;b&gt;", text) == [str(number) for number in range(50, 150)]
    assert "of another study" not in text
