"""The page with all trials of a study: pages by cursor, conditions, orders, columns, groups, and what is ticked."""

from __future__ import annotations

import csv
import html
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlencode

import numpy as np
import polars as pl
import pytest
from fastapi.testclient import TestClient
from scipy.stats import t as student

from graft.stored.export import export_study
from graft.web.security.access import make_token
from graft.web.settings import Settings
from search.analysis.study.value_groups import group_by_value
from storage import open_store
from storage.frames import open_reader
from tests.support.browser import Browser
from tests.support.databases import raw
from tests.support.launches import wait_until
from tests.support.servers import serving
from tests.support.studies import write_study
from tests.support.tools import call, error_of
from tests.support.web import client_of
from tests.support.web_arms import client as arms_client
from tests.support.web_charts import press
from tests.support.web_pages import EVIL, SIZES, Shown, page, shown

__all__ = ["arms_client", "page", "shown"]
STAR = "document.querySelector('[data-star=\"N\"]')"
AXE = Path(__file__).parents[2] / "data" / "axe" / "axe.min.js"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    database = f"sqlite:///{tmp_path_factory.mktemp('trials')}/graft.db"
    with open_store(database) as store:
        write_study(store)
    return database


@pytest.fixture
def client(url: str) -> Iterator[TestClient]:
    with client_of(url) as test_client:
        yield test_client


@pytest.fixture
def quiet(tmp_path: Path) -> Iterator[str]:
    """Yield the address of a server whose study no process runs."""
    database = f"sqlite:///{tmp_path}/graft.db"
    with open_store(database) as store:
        write_study(store)
    with serving(Settings(database=database, rate=1000.0, burst=1000)) as address:
        yield address


def numbers_of(text: str) -> list[int]:
    return [int(number) for number in re.findall(r'class="tick" value="(\d+)"', text)]


@pytest.mark.parametrize("sort", ["", "objective", "params.optimizer.learning_rate DESC"])
def test_pages_have_each_trial_once_and_in_the_order_of_the_frames(
    client: TestClient, url: str, monkeypatch: pytest.MonkeyPatch, sort: str
) -> None:
    monkeypatch.setattr("graft.web.routes.trial_table._ROWS", 7)
    seen: list[int] = []
    address = f"?{urlencode({'sort': sort})}"
    pages = 0
    while address:
        text = client.get(f"/studies/demo/trials{address}").text
        seen += numbers_of(text)
        link = re.search(r'<a href="([^"]*)" rel="next">', text)
        address = html.unescape(link[1]) if link else ""
        pages += 1
    with open_reader(url) as reader:
        assert seen == reader.study("demo").trials(sort=sort or None, columns=("number",))["number"].to_list()
    assert pages == 3


def click_head(client: TestClient, text: str) -> tuple[list[tuple[str, int]], str]:
    """Return order and first number of three pages, each by the column's link on the one before, and the next link."""
    address, seen = "", list[tuple[str, int]]()
    for _ in range(3):
        page = client.get(f"/studies/demo/trials{address}").text
        head = re.search(rf'aria-sort="(\w+)"><a href="([^"]*)">{text}</a>', page)
        assert head
        seen.append((head[1], numbers_of(page)[0]))
        address = html.unescape(head[2])
    return seen, address


def test_a_head_sorts_the_best_first_then_the_worst_then_not_at_all(client: TestClient) -> None:
    seen, address = click_head(client, "objective")
    assert seen == [("none", 0), ("ascending", 0), ("descending", 15)]
    assert "sort=" not in address


@pytest.mark.parametrize(("direction", "best", "worst"), [("minimize", 3, 15), ("maximize", 15, 3)])
def test_the_head_of_the_second_objective_has_its_own_direction(
    tmp_path: Path, direction: str, best: int, worst: int
) -> None:
    database = f"sqlite:///{tmp_path}/graft.db"
    with open_store(database) as store:
        write_study(store)
    raw(database, f"UPDATE studies SET second_objective = '{direction} model.width'")
    raw(database, "UPDATE trials SET second_objective = number WHERE number IN (3, 7, 15)")
    with client_of(database) as client:
        seen, address = click_head(client, "second_(?:<wbr>)?objective")
    assert [number for _, number in seen] == [0, best, worst]
    assert "sort=" not in address


MIXED = """
study: demo
transfer: {tasks: {five: {space: a}, seven: {space: b, objective: {minimize: loss/raw}}}}
search: {objective: {maximize: accuracy/raw}}
"""


def test_trials_of_tasks_that_are_minimized_and_maximized_are_not_sorted_the_best_first(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/graft.db"
    with open_store(database) as store:
        write_study(store)
    raw(database, f"UPDATE studies SET space = '{MIXED}', direction = 'maximize'")
    words = "some of its tasks are minimized and others maximized"
    with client_of(database) as client:
        for path in ("/api/studies/demo/trials", "/api/studies/demo/export/trials.csv", "/studies/demo/trials"):
            answer = client.get(path, params={"sort": "objective"})
            assert (answer.status_code, words in answer.text) == (400, True), path
        seen, _ = click_head(client, "objective")
    assert seen == [("none", 0), ("ascending", 0), ("descending", 15)]
    assert words in error_of(call(database, "query", study="demo", sort="objective"))
    content = call(database, "query", study="demo", sort="objective DESC", limit=1).structured_content
    assert content
    assert content["objective"] == "maximize accuracy/raw on five, minimize loss/raw on seven"


def test_a_condition_chooses_trials_and_their_files(client: TestClient, url: str, tmp_path: Path) -> None:
    where = "objective < 0.2 AND model.scorer = 'ssa'"
    text = client.get("/studies/demo/trials", params={"where": where, "sort": "objective"}).text
    assert numbers_of(text) == [0, 3, 6, 9]
    assert "4 of 20 trials" in text
    [address] = re.findall(r'href="(/api/studies/demo/export/trials\.csv\?[^"]*)"', text)
    rows = [*csv.DictReader(io.StringIO(client.get(html.unescape(address)).text))]
    with open_reader(url) as reader:
        export_study(reader, "demo", tmp_path / "all.csv")
    whole = [*csv.DictReader(io.StringIO((tmp_path / "all.csv").read_text()))]
    assert rows == [whole[number] for number in (0, 3, 6, 9)]
    assert client.get("/api/studies/demo/export/metrics.csv", params={"where": where}).status_code == 400


def test_columns_are_those_of_the_address(client: TestClient) -> None:
    text = client.get("/studies/demo/trials?column=seed&column=params.optimizer.learning_rate&column=none").text
    heads = re.findall(r'<th scope="col"[^>]*><a href="([^"]*)">(.*?)</a>', text)
    assert [name.replace("<wbr>", "") for _, name in heads] == ["seed", "optimizer.learning_rate"]
    kept = parse_qs(html.unescape(heads[0][0]).lstrip("?"))
    assert kept["column"] == ["seed", "params.optimizer.learning_rate", "none"]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"where": "objective <"}, 'near ")": syntax error'),
        ({"where": "optimizer.rate > 1"}, "learning_rate"),
        ({"where": EVIL}, "'script' is no column of trials"),
        ({"where": "1; DROP TABLE trials"}, "is no value, path, word or sign"),
        ({"group": "random()"}, "random"),
        ({"group": "(SELECT 1)"}, "SELECT"),
        ({"sort": "objective, (SELECT 1)"}, "SELECT"),
    ],
)
def test_what_cannot_be_read_is_told_beside_what_was_typed(
    client: TestClient, query: dict[str, str], message: str
) -> None:
    answer = client.get("/studies/demo/trials", params=query)
    assert answer.status_code == 400
    alert = re.search(r'role="alert">([^<]*)<', answer.text)
    assert alert
    assert message in html.unescape(alert[1])
    assert ".db" not in alert[1], "where the database lies is not told"
    assert "<script>document" not in answer.text
    [typed] = query.values()
    assert (
        f'value="{html.escape(typed, quote=True).replace("&quot;", "&#34;").replace("&#x27;", "&#39;")}"' in answer.text
    )


def test_commands_of_a_trial_name_its_draws(client: TestClient) -> None:
    text = client.get("/studies/demo/trials").text
    commands = re.search(r'value="3" aria-label="trial 3" data-replay="([^"]*)" data-enqueue="([^"]*)"', text)
    assert commands
    assert commands[1] == "search replay demo 3"
    assert commands[2] == "search enqueue demo --set model.scorer=ssa --set optimizer.learning_rate=0.004"


def test_groups_have_students_intervals() -> None:
    random = np.random.default_rng(3)
    words, objectives = ["b", "a", None] * 10, random.normal(size=30)
    table = group_by_value(pl.DataFrame({"value": words, "objective": [*objectives[:-1], None]}))
    assert table["group"].to_list() == ["a", "b", "none"]
    for group, start, counted in (("a", 1, 10), ("b", 0, 10), ("none", 2, 9)):
        members = objectives[start::3][:counted]
        [row] = table.filter(group=group).to_dicts()
        reach = student.ppf(0.975, counted - 1) * members.std(ddof=1) / counted**0.5
        assert row["trials"] == counted
        assert (row["mean"], row["low"], row["high"]) == pytest.approx(
            (members.mean(), members.mean() - reach, members.mean() + reach)
        )
        assert (row["least"], row["most"]) == (members.min(), members.max())


def test_numbers_of_many_values_are_grouped_by_ranges() -> None:
    values = pl.DataFrame({"value": [*range(80), *[7] * 20], "objective": [float(number) for number in range(100)]})
    table = group_by_value(values)
    assert table["trials"].sum() == 100
    assert table.height <= 8
    assert table["group"][0].startswith("0 to ")
    assert table["group"][-1].endswith(" to 79")
    few = group_by_value(pl.DataFrame({"value": [2, 1, 2], "objective": [1.0, 2.0, 3.0]}))
    assert few["group"].to_list() == ["1", "2"]
    assert few["low"].to_list()[0] is None, "a single trial has no interval"
    none = pl.DataFrame({"value": [1], "objective": [None]}, {"value": pl.Int64, "objective": pl.Float64})
    assert group_by_value(none).is_empty()


@pytest.mark.long
def test_trials_are_filtered_sorted_grouped_and_compared(page: Browser, shown: Shown) -> None:
    page.open(f"{shown.address}/studies/demo/trials")
    page.run("document.getElementById('where').focus()")
    page.call("Input.insertText", text="objective < 0.2 AND learn")
    wait_until(lambda: page.run("document.querySelector('#where-words li')?.innerText") == "optimizer.learning_rate")
    press(page, "ArrowDown", 40)
    press(page, "Tab", 9)
    page.call("Input.insertText", text="> 0.002")
    assert page.run("document.getElementById('where').value") == "objective < 0.2 AND optimizer.learning_rate > 0.002"
    page.run("document.getElementById('group').value = 'model.scorer'")
    page.run("window.here = 1; document.querySelector('#choice button').click()")
    wait_until(lambda: page.run("document.readyState === 'complete' && !window.here"))
    numbers = "[...document.querySelectorAll('.tick')].map(box => Number(box.value))"
    assert page.run(numbers) == [2, 3, 4, 5, 6, 7, 8, 9, 17] or page.run(numbers) == [2, 3, 4, 5, 6, 7, 8, 9]
    assert page.run("[...document.querySelectorAll('#groups tbody th')].map(cell => cell.innerText)") == [
        "softmax",
        "ssa",
    ]
    assert page.run("document.querySelectorAll('.canvas canvas').length") == 1
    page.run("window.here = 1; [...document.querySelectorAll('th a')].find(a => a.innerText === 'objective').click()")
    wait_until(lambda: page.run("document.readyState === 'complete' && !window.here"))
    assert page.run("location.search").count("sort=objective") == 1
    assert page.run("document.querySelector('[data-act=curves]').disabled")
    for number in (3, 6):
        page.run(f"document.querySelector('.tick[value=\"{number}\"]').click()")
    assert page.run("document.getElementById('ticked').innerText") == "2 ticked"
    page.run("document.querySelector('[data-act=replay]').click()")
    wait_until(
        lambda: page.run("document.getElementById('copied').innerText") == "search replay demo 3\nsearch replay demo 6"
    )
    assert not page.complaints
    page.run("document.querySelector('[data-act=curves]').click()")
    wait_until(lambda: page.run("location.search === '?trials=3,6' && document.readyState === 'complete'"))
    assert page.run("[...document.querySelectorAll('.legend li')].map(one => one.innerText)") == ["trial 3", "trial 6"]
    assert not page.complaints


@pytest.mark.long
def test_stars_tags_and_notes_of_trials_are_shared(page: Browser, quiet: str) -> None:
    page.open(f"{quiet}/studies/demo/trials?sort=objective")
    assert page.run("document.getElementById('starred').hidden")
    for number, is_on in ((3, "true"), (6, "true"), (7, "true"), (7, "false")):
        page.point(f".star[data-star='{number}']", click=True)
        wait_until(lambda: page.run(f"{STAR.replace('N', str(number))}.ariaPressed") == is_on)  # noqa: B023 - at once
    assert page.run("document.getElementById('starred').innerText") == "show 2 starred"
    for name, text in (("added", "odd thesis"), ("note", EVIL)):
        page.run(
            "for (const tick of document.querySelectorAll('.tick')) tick.checked = ['6', '9'].includes(tick.value)"
        )
        page.run("document.querySelector('.tick').dispatchEvent(new Event('change', {bubbles: true}))")
        page.run(f"document.getElementById('{name}').value = {json.dumps(text)}")
        page.run(f"window.here = 1; document.querySelector('[data-mark={name}]').click()")
        wait_until(lambda: page.run("document.readyState === 'complete' && !window.here"))
    page.open(f"{quiet}/studies/demo/trials/9")
    assert page.run("[tags.value, note.value, document.querySelector('#marks [type=checkbox]').checked]") == [
        "odd thesis",
        EVIL,
        False,
    ]
    page.run("tags.value = 'thesis', document.querySelector('#marks [type=checkbox]').checked = true")
    page.run("window.here = 1; document.querySelector('#marks button').click()")
    wait_until(lambda: page.run("document.readyState === 'complete' && !window.here"))
    assert page.run("tags.value") == "thesis"
    page.open(f"{quiet}/studies/demo/trials")
    page.run("window.here = 1; document.getElementById('starred').click()")
    wait_until(lambda: page.run("document.readyState === 'complete' && !window.here"))
    assert page.run("[...document.querySelectorAll('.tick')].map(box => box.value)") == ["3", "6", "9"]
    odd = urlencode({"where": "starred AND tags LIKE '%odd%'"})
    page.open(f"{quiet}/studies/demo/trials?{odd}")
    assert page.run("[...document.querySelectorAll('.tick')].map(box => box.value)") == ["6"]
    assert page.run("document.getElementById('trials').innerText").count(EVIL) == 1
    assert not page.complaints


@pytest.mark.parametrize(
    ("role", "status", "message"),
    [("read", 403, "this needs submit"), ("submit", 403, "was launched, not submitted"), ("admin", 204, "")],
)
def test_who_may_change_a_study_may_mark_its_trials(tmp_path: Path, role: str, status: int, message: str) -> None:
    database = f"sqlite:///{tmp_path}/graft.db"
    with open_store(database) as store:
        write_study(store)
    headers = {"Authorization": f"Bearer {make_token(database, role, role)}"}
    with client_of(database, needs_token=True) as client:
        form = {"number": "3", "starred": "1"}
        answer = client.post("/studies/demo/trials/marks", data=form, headers={**headers, "Accept": "*/*"})
        table = client.get("/studies/demo/trials", headers=headers).text
    assert answer.status_code == status
    assert message in answer.text
    assert ('id="marks"' in table) == (role != "read")
    assert ("★" in table) == (role == "admin")


@pytest.mark.parametrize("form", [{}, {"number": "99", "note": "x"}, {"number": "3", "added": "<b>"}])
def test_marks_of_no_trial_are_refused(client: TestClient, form: dict[str, str]) -> None:
    answer = client.post("/studies/demo/trials/marks", data=form)
    assert answer.status_code == 400
    assert any(word in answer.text for word in ("0 trials; from 1", "the study has no trial 99", "must be a word"))


@pytest.mark.long
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "path",
    [
        "/studies/demo",
        "/studies/demo/trials?sort=objective&group=model.scorer",
        "/studies/demo/trials?where=objective+%3C",
        "/studies/demo/trials/3",
        "/compare?study=demo&study=stage-two",
    ],
)
def test_pages_keep_nobody_out(page: Browser, shown: Shown, path: str, size: str) -> None:
    page.open(shown.address + path, SIZES[size])
    assert page.run("document.documentElement.scrollWidth") <= SIZES[size][0]
    page.run(
        "[...document.querySelectorAll('.tools button')].filter(({innerText}) => innerText === 'table')"
        ".forEach(button => button.click())"
    )
    page.run(AXE.read_text() + "; 0")
    page.run("axe.run().then(found => { window.found = found.violations }); 0")
    wait_until(lambda: page.run("window.found !== undefined"))
    serious = "found.filter(({impact}) => impact === 'serious' || impact === 'critical')"
    violations = page.run(
        f"JSON.stringify({serious}.map(({{id, nodes}}) => [id, nodes.slice(0, 3).map(node => node.html)]))"
    )
    assert json.loads(violations) == []
