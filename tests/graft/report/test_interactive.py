"""Figures of reports as charts: what the adapter reads from axes, what it leaves to the picture, and a page in use."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter

from graft.api.display import Figures
from graft.report.interactive.charts import read_charts
from graft.report.rendering import html
from graft.report.rendering.document import Document, Picture
from graft.report.rendering.drawing import to_svg
from tests.support.browser import Browser, browser
from tests.support.launches import wait_until
from tests.support.web_charts import press
from tests.support.web_pages import drag, place_of

AXE = Path(__file__).parents[2] / "data" / "axe" / "axe.min.js"
EVIL = '</metadata></svg><script>document.title = "evil"</script>'


def one_chart(draw: Callable[[Axes], object]) -> dict[str, Any]:
    """Return the chart of a figure of one panel."""
    [chart] = charts_of(draw)
    return chart


def charts_of(draw: Callable[[Axes], object]) -> list[dict[str, Any]]:
    figure = Figure()
    draw(figure.subplots())
    figure.draw_without_rendering()
    return read_charts(figure)


def test_a_line_has_its_numbers_its_name_and_its_look() -> None:
    def draw(axes: Axes) -> None:
        axes.plot([1, 2, 3], [4.0, math.nan, 6.0], "--s", color="#D55E00", label="raw")
        axes.set(title="panel", xlabel="step", ylabel="loss")

    chart = one_chart(draw)
    assert chart["title"] == "panel"
    [data], [series] = chart["option"]["dataset"], chart["option"]["series"]
    assert data == {"dimensions": ["step", "loss"], "source": [[1, 4], [2, None], [3, 6]], "name": "raw"}
    assert (series["type"], series["colour"], series["symbol"], series["showSymbol"]) == ("line", "c1", "rect", True)
    assert series["lineStyle"]["type"] == "dashed"
    assert [chart["option"][f"{side}Axis"]["type"] for side in "xy"] == ["value", "value"]
    json.dumps(chart, allow_nan=False)


def test_a_band_is_that_of_its_line_and_the_legend_names_it() -> None:
    figure = Figure()
    axes = figure.subplots()
    axes.plot([1, 2, 3], [1, 2, 3], color="#0072B2")
    axes.fill_between([2, 3], [1.5, 2.5], [2.5, 3.5], color="#0072B2", alpha=0.2, linewidth=0)
    figure.legend(handles=[Line2D([], [], color="#0072B2", label="BEMA")])
    [chart] = read_charts(figure)
    [data] = chart["option"]["dataset"]
    assert data["source"] == [[1, 1, None, None], [2, 2, 1.5, 2.5], [3, 3, 2.5, 3.5]]
    assert data["dimensions"] == ["x", "y", "low", "high"]
    assert [(series["name"], series["type"]) for series in chart["option"]["series"]] == [
        ("BEMA", "custom"),
        ("BEMA", "line"),
    ]


def test_a_band_of_other_points_and_with_a_gap_stands_alone() -> None:
    def draw(axes: Axes) -> None:
        axes.plot([1, 2, 3, 4, 5], [1] * 5, color="black")
        axes.fill_between([1, 2, 3, 4, 5], [0, 0, math.nan, 0, 0], [2] * 5, color="#0072B2")

    datasets = one_chart(draw)["option"]["dataset"]
    assert [[row[0] for row in data["source"]] for data in datasets] == [[1, 2, 3, 4, 5], [1, 2], [4, 5]]


def test_error_bars_and_upright_lines_are_intervals() -> None:
    def draw(axes: Axes) -> None:
        axes.errorbar([1, 2], [3, 4], yerr=[0.5, 1], capsize=3, color="#009E73", label="mean")
        axes.scatter([7, 8], [1, 2], color="#D55E00", label="marks")
        axes.vlines([7, 8], [0, 1], [2, 3], color="#D55E00")

    chart = one_chart(draw)
    assert [data["source"] for data in chart["option"]["dataset"]] == [
        [[1, 3, 2.5, 3.5], [2, 4, 3, 5]],
        [[7, 1, 0, 2], [8, 2, 1, 3]],
    ]
    assert [series.get("renderItem") for series in chart["option"]["series"]] == ["bars", None, "bars", None]
    assert {series["name"] for series in chart["option"]["series"]} == {"mean", "marks"}


@pytest.mark.parametrize(("where", "step"), [("pre", "start"), ("mid", "middle"), ("post", "end")])
def test_steps_stay_steps(where: Any, step: str) -> None:
    assert one_chart(lambda axes: axes.step([1, 2], [3, 4], where=where))["option"]["series"][0]["step"] == step


def test_logarithmic_and_turned_axes_and_limits_are_those_of_the_figure() -> None:
    def draw(axes: Axes) -> None:
        axes.loglog([1, 1000], [1e-6, 1])
        axes.set_ylim(10, 1e-8)

    option = one_chart(draw)["option"]
    assert [option[f"{side}Axis"]["type"] for side in "xy"] == ["log", "log"]
    assert (option["yAxis"]["min"], option["yAxis"]["max"], option["yAxis"]["inverse"]) == (1e-8, 10, True)


def test_labels_that_are_not_their_positions_stay_and_name_what_stands_there() -> None:
    def draw(axes: Axes) -> None:
        axes.plot([0.1, 0.2], [1, 1], ".", color="red")
        axes.set_yticks([0, 1], ["first arm", "second arm"])
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3f}"))

    chart = one_chart(draw)
    assert chart["option"]["yAxis"]["labels"] == [[0, "first arm"], [1, "second arm"]]
    [data] = chart["option"]["dataset"]
    assert (data["name"], data["dimensions"]) == ("second arm", ["x", "y (position)"])


def test_lines_across_the_axes_end_at_its_limits() -> None:
    def draw(axes: Axes) -> None:
        axes.plot([0, 10], [0, 10], label="own")
        axes.axhline(5, color="black")
        axes.set_xlim(0, 10)

    assert one_chart(draw)["option"]["dataset"][1] == {
        "dimensions": ["x", "y"], "source": [[0, 5], [10, 5]], "name": "at 5"
    }  # fmt: skip


def test_panels_of_a_row_and_of_a_column_share_labels() -> None:
    figure = Figure()
    grid = figure.subplots(2, 2)
    for axes in grid.flat:
        axes.plot([1, 2], [1, 2])
    grid[0, 1].set_title("second")
    grid[1, 0].set_ylabel("loss")
    grid[1, 1].set_xlabel("step")
    charts = read_charts(figure)
    assert [chart["title"] for chart in charts] == ["y against x", "second", "loss against x", "second"]
    assert charts[3]["option"]["dataset"][0]["dimensions"] == ["step", "loss"]


def draw_two_names_of_a_colour(axes: Axes) -> None:
    axes.scatter([1], [1], color="red")
    axes.plot([1], [1], "-", color="red", label="one")
    axes.plot([1], [1], "-", color="red", label="another")


@pytest.mark.parametrize(
    "draw",
    {
        "a heat map": lambda axes: axes.imshow([[1, 2], [3, 4]]),
        "a mesh": lambda axes: axes.pcolormesh(np.ones((3, 3))),
        "bars": lambda axes: axes.bar([1, 2], [3, 4]),
        "a text": lambda axes: axes.text(1, 1, "here"),
        "an arrow": lambda axes: axes.annotate("here", (1, 1), (0, 0)),
        "a patch": lambda axes: axes.add_patch(Rectangle((0, 0), 1, 1)),
        "colours that say something": lambda axes: axes.scatter([1, 2], [1, 2], c=[1, 2]),
        "sizes that say something": lambda axes: axes.scatter([1, 2], [1, 2], s=[1, 2]),
        "a symmetric logarithm": lambda axes: axes.set_yscale("symlog"),
        "0 on a logarithmic axis": lambda axes: axes.semilogy([1, 2], [0, 1]),
        "error bars across": lambda axes: axes.errorbar([1], [1], xerr=[1]),
        "a band along y": lambda axes: axes.fill_betweenx([1, 2], [0, 0], [1, 1]),
        "a band of steps": lambda axes: axes.fill_between([1, 2, 3], [1, 2, 3], step="post"),
        "level lines": lambda axes: axes.hlines([1, 2], [0, 0], [1, 1]),
        "two names of a colour": draw_two_names_of_a_colour,
        "too many points": lambda axes: axes.plot(range(20_001)),
        "a line in the figure's space": lambda axes: axes.plot([0, 1], [0, 1], transform=axes.transAxes),
    }.items(),
    ids=lambda item: item[0],
)
def test_what_a_chart_would_not_show_stays_a_picture(draw: tuple[str, Callable[[Axes], object]]) -> None:
    def both(axes: Axes) -> None:
        axes.plot([1, 2], [1, 2])
        draw[1](axes)

    assert charts_of(both) == []


def test_two_axes_in_one_place_and_words_of_the_figure_stay_a_picture() -> None:
    figure = Figure()
    axes = figure.subplots()
    axes.plot([1, 2], [1, 2])
    assert len(read_charts(figure)) == 1
    figure.suptitle("of all")
    assert read_charts(figure) == []
    twin = Figure()
    axes = twin.subplots()
    for panel in (axes, axes.twinx()):
        panel.plot([1, 2], [1, 2])
    assert read_charts(twin) == []


# -- the page ----------------------------------------------------------------------------------------------------------


def picture(number: int, *, is_map: bool = False, name: str = "raw") -> Picture:
    figure = Figure(figsize=(6, 3))
    axes = figure.subplots()
    if is_map:
        axes.imshow([[1, 2], [3, 4]])
    else:
        steps = list(range(1, 101))
        axes.plot(steps, [1 / step for step in steps], color="#0072B2", label=name)
        axes.fill_between(steps, [0.5 / s for s in steps], [2 / s for s in steps], color="#0072B2", alpha=0.2)
        axes.set(xlabel="step", ylabel="loss")
    return Picture(number=number, caption=f"The loss of {name}.", svg=to_svg(figure, f"figure{number}"))


def write(path: Path, *pictures: Picture) -> str:
    html.write(Document(title="A report", blocks=pictures), path)
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("chromium")) as chromium:
        yield chromium


def test_a_file_has_the_scripts_once_and_only_for_figures_that_need_them(tmp_path: Path) -> None:
    assert "<script" not in write(tmp_path / "map.html", picture(1, is_map=True))
    single, double = (write(tmp_path / "page.html", *map(picture, range(1, count))) for count in (2, 3))
    assert [text.count('id="drawing"') for text in (single, double)] == [1, 1]
    assert len(double) - len(single) < 60_000
    assert len(single) < 400_000
    policy = re.search(r'content="(default-src[^"]*)"', single)
    assert policy
    script = re.search(r"<script>(.*?)</script>", single, re.DOTALL)
    assert script
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert policy[1].startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-")
    assert f"'sha256-{digest}'" in policy[1]
    assert "unsafe" not in policy[1].partition("script-src")[2]


CHART = "charts.get(document.querySelector('[data-chart]'))"
SHOWN = "['figure svg', 'figure .charts'].map(name => !!document.querySelector(name)?.checkVisibility())"


@pytest.mark.long
@pytest.mark.parametrize("size", [(1280, 900), (390, 844)])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_figure_is_zoomed_read_off_and_exported_in_a_file(
    page: Browser, tmp_path: Path, size: tuple[int, int], scheme: str
) -> None:
    write(tmp_path / "page.html", picture(1), picture(2, is_map=True), picture(3, name=EVIL))
    page.open(tmp_path / "page.html", size)
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    assert page.run(SHOWN) == [True, False]
    assert page.run("typeof echarts") == "undefined"
    assert page.run("[...document.querySelectorAll('figure')].map(one => one.querySelectorAll('button').length)") == [
        1,
        0,
        1,
    ]
    press(page, "Tab", 9)
    assert page.run("document.activeElement.textContent") == "interactive"
    page.run("document.activeElement.click()")  # what Enter does
    wait_until(lambda: page.run("document.querySelector('figure canvas') !== null"))
    assert page.run(SHOWN) == [False, True]
    page.run("document.querySelector('figure .canvas').focus()")
    for _ in range(3):
        press(page, "ArrowRight", 39)
    readout = page.run("document.querySelector('.readout').textContent")
    assert readout == "raw, step: 3, loss: 0.333333, low: 0.166667, high: 0.666667"
    press(page, "+", 187)
    zoomed = page.run(f"(({{start, end}}) => [start, end])({CHART}.chart.getOption().dataZoom[0])")
    assert zoomed == pytest.approx([25, 75])
    page.run("document.querySelector('.tools [aria-label^=reset]').click()")
    if size[0] > 1000:  # on a phone a finger that drags scrolls the page
        drag(page, place_of(page, 0, (20, 0.8)), place_of(page, 0, (60, 0.1)))
        ends = page.run(
            f"(({{startValue, endValue}}) => [startValue, endValue])({CHART}.chart.getOption().dataZoom[0])"
        )
        assert ends == pytest.approx([20, 60], abs=1)
        page.run("document.querySelector('.tools [aria-label^=reset]').click()")
    assert page.run(f"{CHART}.chart.getOption().dataZoom[0].end") == 100
    page.run("document.querySelector('.tools [aria-label^=table]').click()")
    assert page.run("document.querySelectorAll('figure table tr').length") == 101
    assert page.run(f"asCsv({CHART}.drawn).split('\\n').slice(0, 2)") == ["series,step,loss,low,high", "raw,1,1,0.5,2"]
    ground = page.run(f"getComputedStyle({CHART}.parts.canvas).backgroundColor")
    assert ground == {"light": "rgb(246, 248, 250)", "dark": "rgb(22, 27, 34)"}[scheme]
    page.run("document.querySelectorAll('figure .tools > button[aria-label^=interactive]')[1].click()")
    wait_until(lambda: page.run("document.querySelectorAll('figure canvas').length") == 2)
    assert page.run("[...document.querySelectorAll('[data-chart]')].at(-1).innerHTML.includes('<script')") is False
    assert page.run("[document.title, document.documentElement.scrollWidth <= innerWidth]") == ["A report", True]
    page.run(AXE.read_text(encoding="utf-8") + "; 0")
    page.run("axe.run().then(found => { window.found = found.violations }); 0")
    wait_until(lambda: page.run("window.found !== undefined"))
    assert page.run("window.found.map(({id, nodes}) => [id, nodes[0].html.slice(0, 200)])") == []
    page.call("Emulation.setEmulatedMedia", media="print")
    assert page.run(SHOWN) == [True, False]
    assert page.run("document.querySelector('figure .tools').checkVisibility()") is False
    page.call("Emulation.setEmulatedMedia", media="")
    page.run("document.querySelector('figure .tools > button').click()")
    assert page.run(SHOWN) == [True, False]
    assert page.complaints == []
    assert [address for address in page.fetched if not address.startswith(("file:", "data:image"))] == []


@pytest.mark.long
def test_charts_of_a_notebook_are_drawn_in_a_frame_that_cannot_reach_it(page: Browser, tmp_path: Path) -> None:
    figures = Figures("tiny: loss", [picture(1, name=EVIL), picture(2, is_map=True), picture(3)])
    cell = figures.interactive()._repr_html_()
    (tmp_path / "notebook.html").write_text(f"<!DOCTYPE html><title>notebook</title>{cell}", encoding="utf-8")
    page.open(tmp_path / "notebook.html", (1280, 900))
    [frame] = page.call("Page.getFrameTree")["frameTree"]["childFrames"]
    world = page.call("Page.createIsolatedWorld", frameId=frame["frame"]["id"])["executionContextId"]

    def run(expression: str) -> Any:
        answer = page.call("Runtime.evaluate", expression=expression, contextId=world, returnByValue=True)
        return answer["result"].get("value")

    wait_until(lambda: run("document.querySelectorAll('figure canvas').length") == 2)
    looks = "[...document.querySelectorAll('figure')].map(one => one.querySelector('svg').checkVisibility())"
    assert run(looks) == [False, True, False]
    assert run("[document.title, self.origin]") == ["tiny: loss", "null"]
    assert page.run("document.title") == "notebook"
    assert page.complaints == []
    assert [address for address in page.fetched if not address.startswith(("file:", "data:image"))] == []
