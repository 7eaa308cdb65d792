"""The report of a compatibility matrix in every format, from a database to what a browser shows of it."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from cli.commands.compatibility import ENDINGS as OFFERED
from graft.report.compatibility import heatmap
from graft.report.compatibility.cells import change
from graft.report.compatibility.content import Paths, Transfer
from graft.report.compatibility.formats import ENDINGS, render
from graft.report.compatibility.latex import escape
from graft.report.compatibility.reading import MatrixRequest, read_transfer
from graft.report.rendering.drawing import figure_style
from search.analysis.transfer.compatibility_matrix import BASELINE, compute_matrix
from search.analysis.transfer.stage_two import READ, results
from spaces.settings import Direction
from storage.frames import open_reader
from tests.support.browser import Browser, browser
from tests.support.databases import raw
from tests.support.inside import reporting
from tests.support.launches import wait_until
from tests.support.nonlinearities import add_architectures, learned, wave
from tests.support.report import Page, assert_inert
from tests.support.transfer_report import TASKS, value, write

AXE = Path(__file__).parents[2] / "data" / "axe" / "axe.min.js"
EVIL = "<script>alert('1 & 2')</script>|`$x_1$` \"{0}%\\"

LEARNED = [(7, "add", "mlp", wave(1.0, 6)), (3, "mano", "mlp", wave(1.5, 8)), (9, "add", "mlp", wave(1.1, 6))]
"""What trials of the study `stage-two` learned."""


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stage-two") / "graft.db"
    study = write(f"sqlite:///{path}", "stage-two")
    add_architectures(f"sqlite:///{path}", study, LEARNED)
    write(f"sqlite:///{path}", "one-seed", pairs=1)
    return path


Search = Callable[..., str]


@pytest.fixture
def search(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Search:
    return reporting("transfer", database, tmp_path, monkeypatch, capsys)


def made_of(results: pl.DataFrame, direction: Direction = "maximize", study: str = "made") -> Transfer:
    return Transfer(
        study=study,
        objective="accuracy/raw",
        direction=direction,
        paths=Paths(source="architecture.source", target="task.name", pair="pair"),
        matrix=compute_matrix(results),
        results=results,
        left_out=0,
    )


def frame(rows: list[tuple[str, str, int, float | None]], direction: str = "maximize") -> pl.DataFrame:
    columns = ["source", "target", "seed", "value"]
    return pl.DataFrame(rows, schema=columns, orient="row").with_columns(
        direction=pl.lit(direction), number=pl.int_range(pl.len())
    )


def sure(values: dict[str, float], direction: str = "maximize") -> pl.DataFrame:
    """Results on `t` with six seeds, whose noise is far below the differences between the sources."""
    random = np.random.default_rng(0)
    rows = [
        (source, "t", seed, value + abs(value) * 1e-5 * float(random.normal()))
        for source, value in values.items()
        for seed in range(6)
    ]
    return frame(rows, direction)


def of_names(*names: str, direction: str = "maximize", pairs: int = 3) -> pl.DataFrame:
    rows = [
        (source, target, pair, 0.4 + 0.01 * pair + 0.01 * (source != BASELINE) * (index - other) + 0.001 * (pair % 2))
        for index, source in enumerate((BASELINE, *names))
        for other, target in enumerate(names)
        for pair in range(pairs)
    ]
    return frame(rows, direction)


# -- the command -----------------------------------------------------------------------------------------------------


def test_the_command_offers_what_the_report_writes() -> None:
    assert OFFERED == ENDINGS


@pytest.mark.sampled(3)
@pytest.mark.parametrize("ending", OFFERED)
def test_every_format_is_written_from_a_database(search: Search, tmp_path: Path, ending: str) -> None:
    output = search("stage-two", "-o", f"matrix{ending}")
    assert output == f"note: 1 pair was dropped: one side did not finish with a finite result.\nmatrix{ending}\n"
    assert (tmp_path / f"matrix{ending}").stat().st_size > 500
    assert "--force" in search("stage-two", "-o", f"matrix{ending}", status=2)
    search("stage-two", "-o", f"matrix{ending}", "--force")


def test_csv_and_parquet_hold_the_cells(search: Search, tmp_path: Path) -> None:
    for ending in ("csv", "parquet"):
        search("stage-two", "-o", f"matrix.{ending}", "--order", "name")
    cells = pl.read_parquet(tmp_path / "matrix.parquet")
    assert_frame_equal(pl.read_csv(tmp_path / "matrix.csv"), cells)
    assert ",".join(cells.columns) == "source,target,direction,unit,mean,low,high,pairs,dropped,p,q,verdict"
    assert cells.select("source", "target").rows() == [(source, target) for source in TASKS for target in TASKS]
    row = cells.row(by_predicate=(pl.col("source") == "add") & (pl.col("target") == "memorize"), named=True)
    expected = [100 * (value("add", "memorize", pair) - value(BASELINE, "memorize", pair)) for pair in range(5)]
    assert row["mean"] == pytest.approx(np.mean(expected))
    assert (row["pairs"], row["dropped"]) == (5, 1)


def test_any_two_paths_make_a_matrix(search: Search, tmp_path: Path) -> None:
    paths = ("--source", "task.name", "--target", "architecture.source", "--pair", "pair", "--baseline", "mano")
    search("stage-two", "-o", "matrix.csv", *paths, "--interval", "bootstrap")
    cells = pl.read_csv(tmp_path / "matrix.csv")
    assert set(cells["source"]) == {"add", "copy", "memorize"}
    assert set(cells["target"]) == {BASELINE, *TASKS}
    assert cells.filter(pl.col("target") == "copy")["pairs"].to_list() == [0, 0, 0]


def test_every_database_gives_the_same_results(url: str) -> None:
    write(url, "here", pairs=2)
    with open_reader(url) as reader:
        rows = results(reader.study("here").trials(columns=READ), "maximize")
    assert rows.height == 2 * (20 - 1)
    for row in rows.drop_nulls("value").iter_rows(named=True):
        assert row["value"] == value(row["source"], row["target"], row["seed"])


def test_trials_that_are_not_feasible_are_in_no_pair(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/graft.db"
    write(url, "bounded")
    raw(url, "UPDATE trials SET feasible = (params->>'pair' < 5)")
    with open_reader(url) as reader:
        transfer, _ = read_transfer(reader, "bounded", MatrixRequest())
    assert set(transfer.results["seed"]) == set(range(5))
    assert set(transfer.matrix.cells["pairs"]) == {0, 5}
    assert transfer.left_out == 0


def test_trials_that_did_not_finish_give_no_pair(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/graft.db"
    write(url, "stopped")
    raw(url, "UPDATE trials SET state = 'pruned' WHERE params->>'pair' = 5")
    with open_reader(url) as reader:
        transfer, _ = read_transfer(reader, "stopped", MatrixRequest())
    tried = transfer.matrix.cells.filter(pl.col("pairs") > 0)
    assert set(tried["pairs"]) == {5}
    assert set(tried["dropped"]) == {1}


def test_one_seed_gives_a_matrix_without_intervals(search: Search, tmp_path: Path) -> None:
    output = search("one-seed", "-o", "matrix.csv")
    assert "note: No cell has more than one pair, so there are no intervals and no tests.\n" in output
    cells = pl.read_csv(tmp_path / "matrix.csv")
    assert cells["mean"].count() == 14
    assert cells["low"].count() == cells["q"].count() == 0


BAD: dict[str, tuple[tuple[str, ...], str]] = {
    "unknown study": (("nope", "-o", "m.csv"), "study 'nope' does not exist; there are"),
    "unknown ending": (("stage-two", "-o", "m.txt"), "m.txt: the ending must be one of .html, .md, .tex, .csv"),
    "no folder": (("stage-two", "-o", "no/m.csv"), "the folder no does not exist"),
    "unknown path": (
        ("stage-two", "-o", "m.csv", "--source", "model.scoer"),
        "no trial has 'model.scoer'; what differs between trials is architecture.source, group_number, pair, task.name",
    ),
    "no baseline": (
        ("stage-two", "-o", "m.csv", "--baseline", "softmax"),
        "no result has the source 'softmax', the baseline; the sources are add, baseline, copy, mano, memorize",
    ),
    "pair that is no integer": (("stage-two", "-o", "m.csv", "--pair", "task.name"), "must be an integer"),
    "nothing pairs": (("stage-two", "-o", "m.csv", "--pair", "seed"), "no seed has results of both 'baseline'"),
    "unknown interval": (("stage-two", "-o", "m.csv", "--interval", "normal"), "'student', 'bootstrap'"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_is_one_line(search: Search, tmp_path: Path, case: str) -> None:
    arguments, words = BAD[case]
    message = search(*arguments, status=2)
    assert message.startswith("error: ")
    assert message.count("\n") == 1
    assert words in message
    assert list(tmp_path.iterdir()) == []


# -- the page in a browser -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as running:
        yield running


@pytest.fixture
def page(search: Search, tmp_path: Path, chromium: Browser) -> Browser:
    """Return the report of `stage-two`, rows and columns by name, on the screen."""
    search("stage-two", "-o", "matrix.html", "--order", "name")
    chromium.open(tmp_path / "matrix.html")
    return chromium


ROWS = "[...document.querySelectorAll('#matrix tbody th')].map(header => header.innerText)"
COLUMNS = "[...document.querySelectorAll('#matrix thead th')].map(header => header.innerText)"
OPEN = "[...document.querySelectorAll('.folded')].filter(one => getComputedStyle(one).display !== 'none')"


def texts(page: Browser) -> list[list[str]]:
    """Return what the cells of the matrix show, row by row."""
    return page.run("[...matrix.tBodies[0].rows].map(row => [...row.cells].slice(1).map(cell => cell.innerText))")


def test_the_matrix_is_on_the_screen_and_nothing_is_fetched(page: Browser, tmp_path: Path) -> None:
    assert (page.run(ROWS), page.run(COLUMNS)) == (list(TASKS), list(TASKS))
    shown = texts(page)
    assert all(re.fullmatch(r"\+25\*\n\+2\d to \+2\d", row[index]) for index, row in enumerate(shown)), shown
    assert shown[1][2] == "–"
    assert page.run("matrix.getBoundingClientRect().width") > 300
    colours = page.run(
        "[...document.querySelectorAll('#matrix td a')].map(a => getComputedStyle(a.parentNode).backgroundColor)"
    )
    assert len(set(colours)) > 5
    page.picture(tmp_path / "screen.png")
    pixels = matplotlib.image.imread(tmp_path / "screen.png")[..., :3]
    strongest = np.abs(pixels - np.array([0x05, 0x30, 0x61]) / 255).max(axis=-1) < 0.02  # the colour of the best cell
    assert strongest.sum() > 500
    assert page.complaints == []
    assert page.fetched == [(tmp_path / "matrix.html").as_uri()]


def test_a_cell_under_the_mouse_tells_its_details(page: Browser) -> None:
    assert page.run("hint.hidden") is True
    page.point("#matrix tbody tr:nth-child(1) td:nth-of-type(4) a")
    assert page.run("hint.hidden") is False
    words = page.run("hint.innerText")
    number = r"\+1[123]\.\d"
    pattern = (
        f"add → memorize: {number} points, interval {number} to {number}, 5 pairs, p < 0.0001, q < 0.0001, 1 dropped"
    )
    assert re.fullmatch(pattern, words), words
    page.point("h1")
    assert page.run("hint.hidden") is True
    assert page.complaints == []


def test_a_name_sorts_by_its_column_or_row(page: Browser) -> None:
    column = "#matrix thead th:nth-of-type(3) button"  # mano, where copy was not tried
    by_gain = []
    for _ in range(3):
        page.point(column, click=True)
        by_gain.append(page.run(ROWS))
    assert by_gain == [["mano", "add", "memorize", "copy"], ["memorize", "add", "mano", "copy"], list(TASKS)]
    before = texts(page)
    page.point("#matrix tbody tr:nth-child(2) th button", click=True)  # copy: its own task first, the missing one last
    columns = page.run(COLUMNS)
    assert (columns[0], columns[-1]) == ("copy", "mano")
    after = texts(page)
    for row in range(4):
        assert [after[row][columns.index(task)] for task in TASKS] == before[row]
    assert page.complaints == []


def test_a_cell_leads_to_its_trials(page: Browser, database: Path) -> None:
    assert page.run(f"{OPEN}.length") == 0
    page.point("#matrix tbody tr:nth-child(3) td:nth-of-type(1) a", click=True)
    assert page.run("location.hash") == "#cell-2-0"
    assert page.run(f"{OPEN}.map(one => one.id)") == ["cell-2-0"]
    words, command = page.run(f"{OPEN}[0].innerText"), page.run(f"{OPEN}[0].querySelector('code').innerText")
    assert words.startswith("mano → add: +3.")
    numbers = re.fullmatch(r'search trials stage-two --where "number IN \(([\d, ]+)\)"', command)
    assert numbers
    with open_reader(f"sqlite:///{database}") as reader:
        trials = reader.study("stage-two").trials(where=f"number IN ({numbers[1]})")
    assert trials.height == 12
    assert set(trials["task"]) == {"add"}
    assert set(trials["params"].str.json_path_match('$["architecture.source"]')) == {"mano", BASELINE}
    page.point("#cell-2-0 a", click=True)
    assert page.run(f"{OPEN}.length") == 0
    assert page.complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_report_shuts_nobody_out_and_prints_in_light(page: Browser, scheme: str) -> None:
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    page.run(AXE.read_text() + "; 0")
    page.run("axe.run().then(found => { window.found = found.violations }); 0")
    wait_until(lambda: page.run("window.found !== undefined"))
    violations = page.run("JSON.stringify(found.map(({id, nodes}) => [id, nodes.slice(0, 3).map(node => node.html)]))")
    assert json.loads(violations) == []
    page.call("Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": scheme}])
    assert page.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.run(f"{OPEN}.length") == page.run("document.querySelectorAll('.folded').length") > 10
    page.call("Emulation.setEmulatedMedia", media="", features=[])


FIGURE = "document.querySelector('figure svg')"


def test_the_figure_of_non_linearities_is_visible(page: Browser, tmp_path: Path) -> None:
    page.run(f"{FIGURE}.scrollIntoView({{block: 'center'}})")
    box = page.run(f"(box => [box.width, box.height])({FIGURE}.getBoundingClientRect())")
    assert box[0] > 300
    assert box[1] > 100
    page.picture(tmp_path / "screen.png")
    pixels = matplotlib.image.imread(tmp_path / "screen.png")[..., :3]
    curve = np.abs(pixels - np.array([0x00, 0x72, 0xB2]) / 255).max(axis=-1) < 0.02  # the colour of what is learned
    assert curve.sum() > 300
    assert page.run("document.querySelectorAll('figure').length") == 1
    assert page.complaints == []
    assert page.fetched == [(tmp_path / "matrix.html").as_uri()]


def test_a_non_linearity_leads_to_its_trial_and_to_those_trained_with_it(page: Browser, database: Path) -> None:
    rows = "[...document.querySelectorAll('#learned ~ .wide')][0].querySelectorAll('tbody tr')"
    shown = page.run(f"[...{rows}].map(row => [...row.cells].slice(0, 3).map(cell => cell.innerText))")
    objectives = {row["number"]: row["objective"] for row in stored(database).iter_rows(named=True)}
    adds = sorted((7, 9), key=objectives.__getitem__, reverse=True)
    assert shown == [["add", "mlp", str(adds[0])], ["add", "mlp", str(adds[1])], ["mano", "mlp", "3"]]
    page.point("#learned ~ .wide tbody tr:nth-child(3) a", click=True)
    assert page.run(f"{OPEN}.length") == 1
    assert page.run(f"{OPEN}[0].innerText").startswith("Trial 3 learned this non-linearity (mlp) on mano.")
    show, used = page.run(f"[...{OPEN}[0].querySelectorAll('code')].map(code => code.innerText)")
    assert show == "search show stage-two 3"
    numbers = re.fullmatch(r'search trials stage-two --where "architecture_id = (\d+)"', used)
    assert numbers
    assert stored(database).filter(id=int(numbers[1]))["number"].to_list() == [3]
    assert page.complaints == []


def stored(database: Path) -> pl.DataFrame:
    with open_reader(f"sqlite:///{database}") as reader:
        return reader.study("stage-two").architectures.read()


@pytest.mark.parametrize("ending", ["html", "md", "tex"])
@pytest.mark.parametrize(("study", "count"), [("stage-two", 1), ("one-seed", 0)])
def test_only_a_study_that_learned_something_has_a_table_of_it(
    search: Search, tmp_path: Path, ending: str, study: str, count: int
) -> None:
    search(study, "-o", f"matrix.{ending}")
    assert (tmp_path / f"matrix.{ending}").read_text(encoding="utf-8").count("Most off GELU") == count


def test_texts_of_users_stay_texts_on_the_page(chromium: Browser, tmp_path: Path) -> None:
    render(made_of(of_names(EVIL, "add"), study=EVIL), tmp_path / "evil.html")
    chromium.open(tmp_path / "evil.html")
    assert sorted(chromium.run(COLUMNS)) == sorted([EVIL, "add"])
    assert chromium.run("document.querySelector('h1').textContent").endswith(EVIL)
    assert chromium.run("document.scripts.length") == 1
    assert chromium.complaints == []


def test_a_page_is_inert_but_for_its_one_script(tmp_path: Path) -> None:
    render(made_of(of_names(EVIL, "add")), tmp_path / "evil.html", learned([0.5, 0.25], task=EVIL))
    text = (tmp_path / "evil.html").read_text(encoding="utf-8")
    head, script, tail = re.split(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    assert "innerHTML" not in script
    page = Page(head + tail)
    assert_inert(page)
    assert EVIL in page.text
    assert f"learned this non-linearity (mlp) on {EVIL}." in page.text
    assert "script-src 'sha256-" in head


# -- other formats ---------------------------------------------------------------------------------------------------


def test_markdown_has_the_matrix_as_a_table(search: Search, tmp_path: Path) -> None:
    search("stage-two", "-o", "matrix.md", "--order", "name")
    text = (tmp_path / "matrix.md").read_text(encoding="utf-8")
    rows = [
        line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith(("| Source | add", "| copy |"))
    ]
    assert rows[0] == ["Source", *TASKS]
    assert rows[1][0] == "copy"
    assert [re.sub(r" \([−+]\d+ to [−+]\d+\)$", "", cell) for cell in rows[1][1:4]] == ["−6\\*", "+25\\*", "–"]
    assert ElementTree.parse(tmp_path / "matrix_figure1.svg").getroot().tag.endswith("svg")


def balanced(text: str) -> bool:
    """Whether LaTeX's groups, math and environments are closed where they must be."""
    open_groups: list[str] = []
    for token in re.findall(r"\\begin\{\w+\}|\\end\{\w+\}|\\.|[{}]", text, flags=re.DOTALL):
        if token.startswith("\\begin") or token == "{":
            open_groups.append(token)
        elif token.startswith("\\end") or token == "}":
            expected = token.replace("\\end", "\\begin") if token.startswith("\\end") else "{"
            if not open_groups or open_groups.pop() != expected:
                return False
    return not open_groups and len(re.findall(r"(?<!\\)\$", text)) % 2 == 0


@pytest.mark.parametrize("names", [TASKS, (EVIL, "a_b & c#~^", "x")])
def test_latex_is_a_whole_table(names: tuple[str, ...], tmp_path: Path) -> None:
    render(made_of(of_names(*names)), tmp_path / "matrix.tex")
    text = (tmp_path / "matrix.tex").read_text(encoding="utf-8")
    assert balanced(text)
    (columns,) = re.findall(r"\\begin\{tabular\}\{(l[r]+)\}", text)
    body = text[text.index("\\toprule") : text.index("\\bottomrule")]
    rows = [line for line in body.splitlines() if line.endswith(r"\\")]
    assert len(rows) == 1 + len(names)
    assert all(len(re.findall(r"(?<!\\)&", row)) == len(columns) - 1 == len(names) for row in rows)
    assert not re.findall(r"(?<!\\)[#_%](?!\s\\usepackage)", text)
    assert text.isascii()


def test_latex_has_a_second_table_of_what_was_learned(search: Search, tmp_path: Path) -> None:
    search("stage-two", "-o", "matrix.tex")
    text = (tmp_path / "matrix.tex").read_text(encoding="utf-8")
    assert balanced(text)
    assert text.isascii()
    _, (columns, body) = re.findall(r"\\begin\{tabular\}\{(l+r+)\}\n(.*?)\\end\{tabular\}", text, flags=re.DOTALL)
    rows = [line for line in body.splitlines() if line.endswith(r"\\")]
    assert len(rows) == 1 + len(LEARNED)
    assert all(line.count(" & ") == len(columns) - 1 for line in rows)
    assert sum(line.startswith("add & mlp & ") for line in rows) == 2


def test_latex_sets_the_best_of_a_column_in_bold(tmp_path: Path) -> None:
    render(made_of(sure({BASELINE: 0.5, "a": 0.4, "b": 0.75})), tmp_path / "matrix.tex")
    text = (tmp_path / "matrix.tex").read_text()
    assert "a & $-$10$^{*}$ {\\scriptsize ($-$10 to $-$10)} \\\\" in text
    assert "b & \\textbf{+25}$^{*}$ {\\scriptsize (+25 to +25)} \\\\" in text


def test_latex_sets_nothing_in_bold_that_may_be_no_change(tmp_path: Path) -> None:
    rows = [(BASELINE, "t", seed, 0.5) for seed in range(4)] + [("a", "t", seed, 0.3 + 0.2 * seed) for seed in range(4)]
    render(made_of(frame(rows)), tmp_path / "matrix.tex")
    assert "textbf" not in (tmp_path / "matrix.tex").read_text()


def test_latex_escapes_all_that_is_special() -> None:
    assert escape("\\{}$&#%_^~\n<") == (
        r"\textbackslash{}\{\}\$\&\#\%\_\textasciicircum{}\textasciitilde{} \textless{}"
    )


# -- the picture -----------------------------------------------------------------------------------------------------


def drawn(transfer: Transfer) -> tuple[list[str], list[Any]]:
    """Return the texts in the cells of the picture, and its rectangles."""
    with figure_style():
        axes = heatmap.figure(transfer).axes[0]
    return [text.get_text() for text in axes.texts], list(axes.patches)


def test_the_picture_prints_the_values_and_hatches_what_is_missing() -> None:
    rows = [
        (BASELINE, "a", 0, 0.5),
        ("a", "a", 0, 0.7),
        ("b", "a", 0, 0.5),
        (BASELINE, "b", 0, 0.5),
        ("a", "b", 0, 0.4),
    ]
    words, patches = drawn(made_of(frame(rows)))
    assert [text for text in words if text] == ["+20", "−10", "0"]
    assert [patch.get_hatch() for patch in patches].count("////") == 1
    assert sum(not patch.get_fill() for patch in patches) == 2  # frames around a on a, and b on b, which is missing


def colour_of(transfer: Transfer, source: str) -> np.ndarray[Any, Any]:
    """Red, green and blue of the source's first cell."""
    colour = transfer.cells[source, transfer.matrix.targets[0]].colour
    assert colour
    return np.array([int(colour[start : start + 2], 16) for start in (1, 3, 5)])


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
def test_blue_is_better_and_red_is_worse_and_no_change_is_pale(direction: Direction) -> None:
    values = {BASELINE: 0.5, "more": 0.6, "less": 0.4, "same": 0.5}
    transfer = made_of(sure(values, direction), direction)
    better, worse = ("more", "less") if direction == "maximize" else ("less", "more")
    assert colour_of(transfer, better)[2] > colour_of(transfer, better)[0] + 50
    assert colour_of(transfer, worse)[0] > colour_of(transfer, worse)[2] + 50
    assert colour_of(transfer, "same").min() > 240


def test_a_change_whose_interval_holds_zero_has_no_colour() -> None:
    rows = [(BASELINE, "t", seed, 0.5) for seed in range(4)] + [("a", "t", seed, 0.3 + 0.2 * seed) for seed in range(4)]
    transfer = made_of(frame(rows))
    assert transfer.cells["a", "t"].text == "+10"
    assert colour_of(transfer, "a").min() > 240


def test_one_source_that_fails_does_not_pale_the_others() -> None:
    names = [f"s{index}" for index in range(20)]
    values = {BASELINE: 2.0, **{name: 2.0 - 0.002 * index for index, name in enumerate(names)}, "failed": 900.0}
    transfer = made_of(sure(values, "minimize"), "minimize")
    assert transfer.shading.limits["percent"] < 10
    assert colour_of(transfer, "s19")[0] < 200


@pytest.mark.parametrize(
    ("amount", "decimals", "text"),
    [(43.4, 0, "+43"), (-0.4, 0, "0"), (-9.96, 1, "−10.0"), (0.0, 2, "0"), (1234.5, 0, "+1,234"), (None, 0, "–")],
)
def test_changes_have_their_sign(amount: float | None, decimals: int, text: str) -> None:
    assert change(amount, decimals) == text


@pytest.mark.parametrize("count", [1, 2, pytest.param(25, marks=pytest.mark.long)])
def test_a_picture_of_any_size_is_drawn(count: int, tmp_path: Path) -> None:
    transfer = made_of(of_names(*(f"a task with a rather long name {index}" for index in range(count))))
    render(transfer, tmp_path / "matrix.png")
    height, width = matplotlib.image.imread(tmp_path / "matrix.png").shape[:2]
    assert 300 < height < 4000
    assert 300 < width < 6000


@pytest.mark.long
def test_units_that_differ_share_a_picture_and_a_page(tmp_path: Path) -> None:
    mixed = pl.concat(
        [of_names("a", "b"), of_names("c", "d", direction="minimize").with_columns(pl.col("number") + 99)]
    )
    transfer = made_of(mixed)
    for ending in ENDINGS:
        render(transfer, tmp_path / f"mixed{ending}")
    assert "percentage points of accuracy/raw or percent of" in (tmp_path / "mixed.md").read_text()
