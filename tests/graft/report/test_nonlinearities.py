"""Learned non-linearities: read from a database, measured, drawn, written, and their versions after the fact."""

from __future__ import annotations

import itertools
import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any

import matplotlib.image
import numpy as np
import polars as pl
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from numpy.polynomial import Chebyshev, Polynomial
from polars.testing import assert_frame_equal

from cli.commands.nonlinearities import ENDINGS as OFFERED
from graft.report.nonlinearities.content import list_drawn, table
from graft.report.nonlinearities.figure import figure
from graft.report.nonlinearities.formats import ENDINGS, render
from graft.report.nonlinearities.learned import MOST, Learned, Nonlinearity
from graft.report.rendering.drawing import figure_style
from spaces.errors import StorageError
from storage.frames import open_reader
from storage.frames.columns import ARCHITECTURES
from tests.support.inside import reporting
from tests.support.nonlinearities import OBJECTIVES, PLACES, ROWS, database, learned, write
from tests.support.report import Page, assert_inert
from workers.networks.spline_forms import FORMS, form

__all__ = ["database"]


EVIL = '<script>alert("1 & 2")</script>|`$x_1$`'


Search = Callable[..., str]


@pytest.fixture
def search(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Search:
    return reporting("nonlinearities", database, tmp_path, monkeypatch, capsys)


def spline(knots: Sequence[float], low: float = 0.0, high: float = 1.0, **fields: Any) -> Nonlinearity:
    usual = {"id": 1, "number": 0, "task": "add", "component": "mlp", "objective": None}
    return Nonlinearity(**{**usual, **fields}, low=low, high=high, knots=knots)


# -- the database ----------------------------------------------------------------------------------------------------


def test_every_database_gives_the_rows_of_its_study_by_task_component_and_number(url: str) -> None:
    write(url, "before", ROWS[:1])
    write(url)
    with open_reader(url) as reader:
        rows = reader.study("study").architectures.read()
        assert reader.study("before").architectures.read().height == 1
    assert rows.schema == ARCHITECTURES
    by_key = sorted(ROWS, key=lambda row: (row[1], row[2], row[0]))
    assert rows.select("number", "task", "component", "knots").rows() == by_key
    assert rows["objective"].to_list() == [OBJECTIVES[row[0]] for row in by_key]
    assert rows.select("low", "high").unique().rows() == [(-20.0, 20.0)]
    assert rows["id"].n_unique() == len(ROWS)


def test_a_study_without_any_gives_an_empty_frame_of_the_same_type(url: str) -> None:
    write(url, "nothing", [])
    with open_reader(url) as reader:
        assert reader.study("nothing").architectures.read().schema == ARCHITECTURES


@pytest.mark.parametrize(
    ("knots", "low", "high"), [([], 0, 1), ([1.0], 0, 1), ([0.5, None], 0, 1), ([0.0, 1.0], 1, 1), ([0.0, 1.0], 2, 1)]
)
def test_a_row_that_is_no_spline_is_refused_by_its_id(knots: Any, low: float, high: float) -> None:
    with pytest.raises(StorageError, match=r"row 17 \(trial 3\) must have two or more knots"):
        spline(knots, low, high, id=17, number=3)


# -- what a report says of a spline ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("knots", "moving"),
    [
        ([0, 0, 0, 1, 0, 0, 0, 0], (2, 4)),
        ([5, 5, 6, 6, 6, 6, 6, 6], (1, 2)),
        ([1, 2, 2, 2, 2, 2, 2, 3], (0, 7)),
        ([3, 3, 3, 3, 3, 3, 3, 3], (0, 7)),
        ([0, 1e-6, 0, 0, 1, -1e-6, 0, 1e-6], (3, 5)),
    ],
)
def test_a_spline_moves_between_the_knots_where_it_leaves_its_end_values(
    knots: list[float], moving: tuple[float, float]
) -> None:
    assert spline(knots, 0.0, 7.0).active_range == moving


def test_variation_and_slope_are_those_of_its_straight_pieces() -> None:
    curve = spline([0.0, 2.0, -1.0, -1.0], -1.0, 5.0)
    assert curve.variation == 5
    assert curve.slope == 1.5
    assert curve.positions == [-1, 1, 3, 5]


def test_the_distance_to_gelu_is_zero_for_gelu_and_grows_by_what_is_added() -> None:
    exact = [x * NormalDist().cdf(x) for x in np.linspace(-5, 5, 2001)]
    assert spline(exact, -5.0, 5.0).distance < 1e-5
    heights = [value + 0.25 * (abs(x) < 2) for x, value in zip(np.linspace(-5, 5, 2001), exact, strict=True)]
    assert spline(heights, -5.0, 5.0).distance == pytest.approx(0.25, abs=1e-5)
    assert spline([0.0, 0.0], 0.0, 3.0).distance == pytest.approx(3 * NormalDist().cdf(3))


def test_the_table_has_the_numbers_of_each_spline() -> None:
    splines = learned([0.125])
    [row] = table(splines).rows
    named = dict(zip(table(splines).header, row, strict=True))
    assert (named["Task"], named["Component"], named["Trial"], named["tvd/bema"]) == ("add", "mlp", "0", "0.125")
    assert (named["Knots"], named["Range"], named["Moves on"]) == ("5", "0 to 4", "1 to 3")
    assert (named["Total variation"], named["Largest slope"]) == ("2", "1")
    assert float(named["Most off GELU"]) == pytest.approx(3 * NormalDist().cdf(3), rel=1e-2)


# -- the picture -----------------------------------------------------------------------------------------------------


def panels(learned: Learned) -> dict[str, Axes]:
    with figure_style():
        return {axes.get_title(): axes for axes in figure(learned).axes}


def lines(axes: Axes) -> list[tuple[float, float, bool]]:
    """Height, width and whether it is dashed, of the lines of a panel."""
    return [
        (float(np.max(line.get_ydata())), line.get_linewidth(), line.get_linestyle() == "--") for line in axes.lines
    ]


@pytest.mark.parametrize(("direction", "best"), [("minimize", 2), ("maximize", 0)])
def test_the_best_trial_of_a_panel_is_thick_and_gelu_is_dashed(direction: str, best: int) -> None:
    [axes] = panels(learned([0.75, 0.5, 0.25, None], direction)).values()
    widths = {height - 1: width for height, width, dashed in lines(axes) if not dashed}
    assert set(widths) == {0, 1, 2, 3}
    assert {number for number, width in widths.items() if width > 1.5} == {best}
    assert sum(dashed for _, _, dashed in lines(axes)) == 1


def test_without_objectives_no_line_of_several_is_thick_and_a_lone_one_is() -> None:
    [axes] = panels(learned([None, None])).values()
    assert all(width < 1.5 for _, width, _ in lines(axes))
    [axes] = panels(learned([None])).values()
    assert any(width > 1.5 for _, width, _ in lines(axes))


def test_a_panel_shows_where_its_curves_move_and_all_of_their_heights() -> None:
    [axes] = panels(learned([0.5, 0.25])).values()
    (low, high), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    assert 0 < low < 1
    assert 3 < high < 4
    assert -0.5 < bottom < 0
    assert 2 < top < 2.5


def test_at_most_so_many_lines_share_a_panel_and_these_are_the_best() -> None:
    many = learned([float(number) for number in range(MOST + 10)], "maximize")
    assert sorted(curve.number for curve in list_drawn(many)) == list(range(10, MOST + 10))
    [axes] = panels(many).values()
    assert len(lines(axes)) == MOST + 1


def test_each_task_has_a_panel_and_components_are_named_where_there_are_two(database: Path) -> None:
    with open_reader(f"sqlite:///{database}") as reader:
        row, architectures = reader.study("study").row, reader.study("study").architectures.read()
    assert list(panels(Learned.of(row, architectures))) == ["add, mlp", "copying, attention", "copying, mlp"]
    assert list(panels(Learned.of(row, architectures.filter(component="mlp")))) == ["add", "copying"]


def test_a_constant_spline_is_drawn() -> None:
    [axes] = panels(Learned(study="made", objective="x", members=[spline([2.0, 2.0, 2.0])])).values()
    assert axes.get_ylim()[0] < 2 < axes.get_ylim()[1]


# -- the command -----------------------------------------------------------------------------------------------------


def test_the_command_offers_what_the_report_writes() -> None:
    assert OFFERED == ENDINGS


@pytest.mark.sampled(2)
@pytest.mark.parametrize("ending", OFFERED)
def test_every_format_is_written_from_a_database(search: Search, tmp_path: Path, ending: str) -> None:
    assert search("study", "-o", f"learned{ending}") == f"learned{ending}\n"
    assert (tmp_path / f"learned{ending}").stat().st_size > 500
    assert "--force" in search("study", "-o", f"learned{ending}", status=2)
    search("study", "-o", f"learned{ending}", "--force")


@pytest.mark.long
def test_pictures_can_be_read_and_have_both_inks(search: Search, tmp_path: Path) -> None:
    search("study", "-o", "learned.svg")
    assert ElementTree.parse(tmp_path / "learned.svg").getroot().tag.endswith("svg")
    search("study", "-o", "learned.png", "--with", "symmetrised")
    pixels = matplotlib.image.imread(tmp_path / "learned.png")[..., :3]
    for colour in ("#0072B2", "#D55E00"):
        assert (np.abs(pixels - to_rgb(colour)).max(axis=-1) < 0.02).sum() > 500, colour


def test_files_for_programs_have_a_row_for_each_knot(search: Search, tmp_path: Path) -> None:
    for ending in ("csv", "parquet", "json"):
        search("study", "-o", f"learned.{ending}")
    points = pl.read_parquet(tmp_path / "learned.parquet")
    assert_frame_equal(pl.read_csv(tmp_path / "learned.csv"), points)
    assert json.loads((tmp_path / "learned.json").read_text()) == points.to_dicts()
    assert points.columns == ["number", "task", "component", "x", "y"]
    assert points.height == 121 * len(ROWS)
    for number, task, component, knots in ROWS:
        curve = points.filter(number=number, task=task, component=component)
        assert curve["y"].to_list() == knots
        assert curve["x"].to_numpy() == pytest.approx(PLACES)


@pytest.mark.parametrize(
    ("arguments", "numbers"),
    [
        (("--task", "add"), {0, 1, 3}),
        (("--task", "add", "--task", "copying"), {0, 1, 2, 3}),
        (("--component", "attention"), {2}),
        (("--trial", "1", "--trial", "2"), {1, 2}),
        (("--task", "add", "--trial", "3"), {3}),
    ],
)
def test_filters_leave_what_they_name(
    search: Search, tmp_path: Path, arguments: tuple[str, ...], numbers: set[int]
) -> None:
    search("study", "-o", "learned.csv", *arguments)
    points = pl.read_csv(tmp_path / "learned.csv")
    assert set(points["number"]) == numbers
    if "attention" in arguments:
        assert set(points["component"]) == {"attention"}


BAD: dict[str, tuple[tuple[str, ...], str]] = {
    "unknown study": (("nope", "-o", "l.csv"), "study 'nope' does not exist; there are"),
    "nothing learned": (
        ("nothing", "-o", "l.csv"),
        "those of a space with `learning: architecture` do, and those that",
    ),
    "unknown ending": (("study", "-o", "l.txt"), "l.txt: the ending must be one of .svg, .png, .pdf, .html, .csv"),
    "no folder": (("study", "-o", "no/l.csv"), "the folder no does not exist"),
    "unknown task": (("study", "-o", "l.csv", "--task", "mano"), "is left for 'mano'; choose among add, copying"),
    "unknown trial": (("study", "-o", "l.csv", "--trial", "9"), "is left for 9; choose among 0, 1, 2, 3"),
    "unknown component": (("study", "-o", "l.csv", "--component", "norm"), "'mlp', 'attention'"),
    "nothing left": (
        ("study", "-o", "l.csv", "--task", "add", "--component", "attention"),
        "--component: no non-linearity is left for 'attention'; choose among mlp",
    ),
    "unknown version": (("study", "-o", "l.csv", "--with", "fourier"), "'symmetrised', 'polynomial', 'chebyshev'"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_is_one_line(search: Search, tmp_path: Path, case: str) -> None:
    arguments, words = BAD[case]
    message = search(*arguments, status=2)
    assert message.startswith("error: ")
    assert message.count("\n") == 1
    assert words in message
    assert list(tmp_path.iterdir()) == []


def test_a_page_is_inert_and_has_the_figure_and_the_table(tmp_path: Path) -> None:
    render(learned([0.5, 0.25], task=EVIL), tmp_path / "page.html")
    page = Page((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert_inert(page)
    assert page.tags.count("svg") == 1
    assert page.tags.count("tr") == 3
    assert EVIL in page.text


# -- versions after the fact -----------------------------------------------------------------------------------------


def with_version(search: Search, folder: Path, name: str, trial: int) -> tuple[pl.DataFrame, float]:
    """Rows of the trial's MLP with a version beside them, and its largest error as it is told."""
    message = search("study", "-o", "v.csv", "--force", "--trial", trial, "--component", "mlp", "--with", name)
    [(label, error, number)] = re.findall(r"note: (.*): off by at most (\S+) \(trial (\d+), ", message)
    assert label.startswith(name)
    assert int(number) == trial
    return pl.read_csv(folder / "v.csv"), float(error.replace("−", "-"))


def test_the_symmetrised_version_is_the_mean_with_the_image_most_like_it(search: Search, tmp_path: Path) -> None:
    rows, error = with_version(search, tmp_path, "symmetrised", 0)
    heights, version = rows["y"].to_numpy(), rows["symmetrised"].to_numpy()
    moved: list[tuple[float, np.ndarray[Any, Any]]] = []
    for image, shift in itertools.product((heights[::-1], -heights, -heights[::-1]), range(-120, 121)):
        shifted = np.array([image[index - shift] if 0 <= index - shift < 121 else 0.0 for index in range(121)])
        # The ends are 0, so that a moved image has 0 there.
        moved.append((float(shifted @ heights), (heights + shifted) / 2))
    _, best = max(moved, key=lambda pair: pair[0])
    assert version == pytest.approx(best, abs=1e-12)
    assert error == pytest.approx(np.abs(heights - version).max(), rel=1e-2)
    assert error > 0.01


@pytest.mark.parametrize("name", ["polynomial", "chebyshev"])
@pytest.mark.parametrize("trial", [0, 1])
def test_polynomials_are_numpys_over_the_range_where_the_spline_moves(
    search: Search, tmp_path: Path, name: str, trial: int
) -> None:
    rows, error = with_version(search, tmp_path, name, trial)
    heights = rows["y"].to_numpy()
    [low, *_, high] = PLACES[np.abs(heights) > 1e-3 * np.ptp(heights)]
    low, high = low - 1 / 3, high + 1 / 3
    unit = np.linspace(-1, 1, 121) if name == "polynomial" else np.polynomial.chebyshev.chebpts1(121)
    there = (low + high) / 2 + (high - low) / 2 * unit
    kind = Polynomial if name == "polynomial" else Chebyshev
    fit = kind.fit(there, np.interp(there, PLACES, heights), 18, domain=[low, high])
    oracle: Callable[[Any], Any] = lambda x: fit(np.clip(x, low, high))  # noqa: E731
    assert rows[name].to_numpy() == pytest.approx(oracle(PLACES), abs=1e-7)
    fine = np.linspace(-20, 20, 961)
    largest = np.abs(oracle(fine) - np.interp(fine, PLACES, heights)).max()
    assert error == pytest.approx(largest, rel=1e-2)
    assert 1e-3 < error < 1


def test_the_largest_error_is_that_of_the_worst_trial_and_all_stand_in_the_page(search: Search, tmp_path: Path) -> None:
    errors = {trial: with_version(search, tmp_path, "polynomial", trial)[1] for trial in (0, 1)}
    worst = max(errors, key=errors.__getitem__)
    message = search("study", "-o", "v.html", "--trial", 0, "--trial", 1, "--with", "polynomial")
    assert f"off by at most {errors[worst]} (trial {worst}, add, mlp)" in message
    text = Page((tmp_path / "v.html").read_text(encoding="utf-8")).text
    assert "polynomial of degree 18" in text
    assert all(f"{error:.3g}" in text for error in errors.values())


@pytest.mark.parametrize("name", FORMS)
def test_a_spline_that_is_zero_everywhere_has_every_version(name: str) -> None:
    version = form(name, [0.0] * 5, (-1.0, 1.0), (-1.0, 1.0))
    assert version.at_knots == (0.0,) * 5
    assert version.error == 0
