"""The charts of the pages: ranges that are dragged or typed, curves that are read off, the front, what was learned."""

from __future__ import annotations

import html
import itertools
import json
import re
from pathlib import Path

import polars as pl
import pytest

from graft.launching.process.run_log import RunLog
from graft.web.charts.ranges import Ranges
from graft.web.security.refusals import RefusalError
from search.analysis.study.top_k import top_k_statistics
from search.analysis.study.two_studies import compare_studies
from storage import open_store
from tests.browser import Browser
from tests.databases import raw
from tests.launches import wait_until
from tests.studies import write_study
from tests.test_nonlinearities import add_architectures
from tests.test_web import client_of
from tests.test_web_pages import Shown, page, shown

__all__ = ["page", "shown"]
SUMMARY = "document.querySelector('#ranges summary').innerText"


def press(page: Browser, key: str, code: int) -> None:
    for kind in ("keyDown", "keyUp"):
        page.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)


def test_a_range_is_dragged_along_its_axis_and_a_click_lets_go(page: Browser, shown: Shown) -> None:
    page.open(f"{shown.address}/studies/demo?trials=3,17")
    before = page.run(SUMMARY)
    found = page.run(
        "(() => { const reach = document.querySelector('rect.reach[data-path=objective]');"
        " reach.scrollIntoView({block: 'center'}); const box = reach.getBoundingClientRect();"
        " return [box.x + box.width / 2, box.y, box.height, Number(reach.dataset.low), Number(reach.dataset.high)] })()"
    )
    x, top, height, low, high = found
    places = [top + height * share for share in (0.75, 0.5)]
    for kind, y in zip(("mousePressed", "mouseMoved", "mouseReleased"), (places[0], *places[1:] * 2), strict=True):
        page.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)
    wait_until(lambda: page.run(SUMMARY) != before)
    ends = re.findall(r"(?:low|high)\.objective=([\d.]+)", page.run("location.search"))
    assert [float(end) for end in ends] == pytest.approx(
        [low + (high - low) * share for share in (0.25, 0.5)], rel=0.02
    )
    assert "trials=3%2C17" in page.run("location.search")
    kept = page.run(
        "[...document.querySelectorAll('tr[id^=best-] td:nth-child(3)')].map(cell => Number(cell.innerText))"
    )
    assert kept
    assert all(float(ends[0]) <= objective <= float(ends[1]) for objective in kept)
    assert page.run("document.querySelectorAll('polyline.out').length") > 0
    told = page.run(SUMMARY)
    page.open(page.run("location.href"))
    assert page.run(SUMMARY) == told
    page.point("rect.reach[data-path=objective]", click=True)
    wait_until(lambda: page.run(SUMMARY) == before)
    assert page.run("location.search") == "?trials=3%2C17"
    assert not page.complaints


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


def test_curves_are_read_off_and_zoomed_by_the_keyboard(page: Browser, shown: Shown) -> None:
    page.open(f"{shown.address}/studies/demo?trials=3")
    assert page.run("document.querySelectorAll('.plot canvas').length") == 1
    assert page.run("getComputedStyle(document.querySelector('.curves > svg')).display") == "none"
    page.run("document.querySelector('.plot').focus()")
    values = "[...document.querySelectorAll('.plot .u-value')].map(cell => cell.innerText)"
    press(page, "ArrowRight", 39)
    wait_until(lambda: page.run(values) == ["100", "0.13"])
    for _ in range(2):
        press(page, "+", 187)
    drawn = "[...document.querySelectorAll('.plot')].length"
    page.run("window.plot = document.querySelector('.plot'); refresh()")
    wait_until(lambda: page.run(drawn) == 1 and page.run("window.plot.isConnected"))
    assert page.run("document.activeElement === window.plot")
    assert not page.complaints


def test_the_numbers_of_an_axis_can_be_told_apart(page: Browser, shown: Shown) -> None:
    page.open(f"{shown.address}/studies/demo?trials=3")
    written = {
        "[2.48512, 2.48514], 0, 0, 0.00002": ["2.48512", "2.48514"],
        "[0.25, 0.275], 0, 0, 0.025": ["0.250", "0.275"],
        "[100, 200], 0, 0, 100": ["100", "200"],
        "[2e6, 3e6], 0, 0, 1e6": ["2.000e+6", "3.000e+6"],
    }
    assert {values: page.run(f"write(null, {values})") for values in written} == written
    ticks = "new Set(write(plot, places = plot.axes[1]._splits, 1, 0, places[1] - places[0])).size == places.length"
    page.run("window.plot = drawn.get(document.querySelector('[data-curves]')).plot")
    assert page.run("plot.axes[1].values.name") == "write"
    assert page.run(ticks)


def test_a_page_can_be_used_without_scripts(page: Browser, shown: Shown) -> None:
    page.open(f"{shown.address}/studies/demo")
    page.call("Emulation.setScriptExecutionDisabled", value=True)
    page.call("Page.reload")
    wait_until(lambda: page.run("document.readyState === 'complete' && !document.querySelector('.plot')"))
    assert page.run("document.querySelector('.curves > svg').getBoundingClientRect().height") > 100
    before = page.run(SUMMARY)
    page.run("document.getElementById('high.objective').value = '0.155'")
    page.run("document.querySelector('#ranges button').click()")
    wait_until(lambda: "high.objective=0.155" in page.run("location.search"))
    wait_until(lambda: page.run("document.readyState === 'complete'") and page.run(SUMMARY) != before)
    page.call("Emulation.setScriptExecutionDisabled", value=False)


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
        one[0]
        for one, other in itertools.permutations(rows, 2)
        if other[1] <= one[1] and sign * other[2] <= sign * one[2] and other[1:] != one[1:]
    }
    front = {row[0] for row in rows} - beaten
    with client_of(url) as client:
        text = client.get("/studies/demo").text
    chart = text[text.index("<h2>Pareto front") :]
    chart = chart[: chart.index("</section>")]
    assert chart.count("<circle") == len(rows)
    [line] = re.findall(r'<polyline class="c1" points="([^"]*)"', chart)
    corners = line.split()[::2]
    circles = {
        int(number): f"{x},{y}"
        for number, x, y in re.findall(r'trials/(\d+)"[^>]*><circle class="" cx="([\d.]+)" cy="([\d.]+)"', chart)
    }
    assert set(corners) == {circles[number] for number in front}


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
    names = re.findall(r"<title>([^<]*)</title></polyline>", text)
    assert names == ["trial 0", "trial 3", "GELU"], "the best first"
    [curves] = re.findall(r"""data-curves=["']([^"']*)["']""", text)
    *learned, beside = json.loads(html.unescape(curves))["lines"]
    assert [max(line["y"]) for line in learned] == [1.0, 1.0]
    assert 1.0 < max(beside["y"]) <= 1.25, "no more of it than leaves what was learned legible"


def test_two_studies_differ_by_so_much() -> None:
    frames = {
        name: pl.DataFrame({"number": range(400), "objective": [shift + (n * 7919 % 400) / 400 for n in range(400)]})
        for name, shift in (("a", 0.0), ("b", 0.25))
    }
    for maximize in (False, True):
        table = compare_studies(frames, maximize=maximize)
        own = top_k_statistics(
            frames["a"].select("number", pl.lit(-1 if maximize else 1).alias("sign"), pl.lit("raw").alias("variant"),
                               pl.lit("a").alias("study"), cost=pl.col("objective") * (-1 if maximize else 1)),
            ["study"],
        )  # fmt: skip
        last = table.row(-1, named=True)
        [margin] = own.filter(portion="best 10 %")["margin"]
        assert last["counted_a"] == last["counted_b"] == 40
        assert last["difference"] == pytest.approx(0.25)
        assert last["difference_margin"] == pytest.approx(margin * 2**0.5)
        assert table["difference_margin"].to_list()[:2] == [None, None]


def test_two_studies_side_by_side_have_intervals(shown: Shown) -> None:
    with client_of(shown.url) as client:
        text = client.get("/compare?a=demo&b=demo").text
    assert re.search(r'<th scope="row">best 10 %</th>\s*<td class="n">0\.1 <small', text)


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
