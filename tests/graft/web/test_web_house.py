"""A study at a glance, the page of studies and what is changed there, the queue with its workers, and comparisons."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from graft.web.app import create_app
from graft.web.security.access import make_token
from graft.web.settings import Settings
from spaces.records import TrialResult
from storage import Terms, open_reader, open_store
from tests.support.databases import raw
from tests.support.house_of_studies import ARMS, SEARCH_RUNNING, control, house, make_trial, plan, write_search
from tests.support.queue import submit
from tests.support.studies import write_study


def client_of(url: str, token: str = "", **settings: Any) -> TestClient:
    app = create_app(Settings(database=url, **settings))
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return TestClient(
        app, base_url="http://127.0.0.1:8765", raise_server_exceptions=False, follow_redirects=False, headers=headers
    )


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """Return a client of a server whose studies run."""
    url = f"sqlite:///{tmp_path_factory.mktemp('house')}/graft.db"
    with house(url), client_of(url) as test_client:
        yield test_client


def read(client: TestClient, path: str, status: int = 200) -> str:
    answer = client.get(path, headers={"Accept": "text/html"})
    assert answer.status_code == status, answer.text
    return html.unescape(answer.text)


def names_of(page: str) -> list[str]:
    return re.findall(r'<tr id="row-([^"]+)"', page)


# --------------------------------------------------------------------------------------------- a study at a glance


def test_a_search_tells_its_best_with_uncertainty_time_cost_and_lanes(client: TestClient) -> None:
    page = read(client, "/studies/rate-or-dropout")
    tiles = page.partition("</dl>")[0]
    assert re.search(r"best tenth: 0\.\d+\s±\s0\.\d+ \(21\strials\)", tiles)
    assert "220 of 300 ended" in tiles
    assert "180,000 model-steps" in tiles
    assert "lane utilisation 90.0 %" in tiles
    assert re.search(r"<dt>time</dt><dd>\d+:\d\d min", tiles)
    lanes = page.partition('aria-label="Training now"')[2].partition("</section>")[0]
    assert lanes.count("<progress") == SEARCH_RUNNING
    assert "worker-1 trains 8 trials:" in lanes
    assert 'title="trial 220: 100 of 1,000 steps"' in lanes


def test_what_goes_with_the_objective_has_intervals_and_what_was_not_varied(client: TestClient) -> None:
    page = read(client, "/studies/rate-or-dropout")
    sentence = re.search(r"<p>Associated: (.*)\. No association shown: (.*)\.</p>", page)
    assert sentence
    assert sentence[1].startswith("optimizer.learning_rate, ")
    assert "model.residual_dropout" in sentence[2]
    assert '"what goes with tvd/raw, with 95 % intervals"' in page
    fixed = page.partition('<details id="fixed">')[2].partition("</details>")[0]
    assert "Not varied: 7 values" in fixed
    assert '<th scope="row">training.<wbr>batch</th><td>32</td>' in fixed
    assert "learning_rate" not in fixed
    assert "scorer" not in fixed


@pytest.mark.long
def test_a_transfer_shows_its_matrix_and_what_is_missing(client: TestClient) -> None:
    page = read(client, "/studies/quick-transfer")
    assert "2 of 9 cells have no pair yet; 2 have fewer than 6, the most of any cell." in page
    assert page.index('id="matrix"') < page.index("<h2>History</h2>")
    [cell] = re.findall(r'<a href="([^"]+source=add&target=memorize#pairs)"', page)
    assert '<h2 id="pairs">add on memorize</h2>' in read(client, cell.partition("#")[0])


def test_a_study_without_a_result_says_so(client: TestClient) -> None:
    assert "No trial has ended with a result yet; figures follow" in read(client, "/studies/just-begun")
    assert "CUDA error: out of memory" in read(client, "/studies/out-of-memory")
    assert (
        '<b>waiting</b><br><small><a id="queue-link" href="/queue">queue</a>: waits for lanes: studies of a higher'
        in read(client, "/studies/next-rates")
    )


def test_a_trial_is_told_apart_from_the_best(client: TestClient) -> None:
    page = read(client, "/studies/rate-or-dropout/trials/17")
    row = r'<th scope="row">(\S+)</th><td><b>(\S+)</b></td><td>(\S+)</td><td>([^<]+)</td>'
    rows = re.findall(row, page.replace("<wbr>", ""))
    drawn = {path: rank for path, _, _, rank in rows}
    assert drawn["optimizer.learning_rate"].startswith("above 9")
    assert re.fullmatch(r"same as \d+\s%", drawn["model.scorer"])
    assert re.search(r"0\.185 \(tvd/raw\), better than \d+ % of the trials", page)
    [both] = re.findall(r'href="(/studies/rate-or-dropout\?trials=17,\d+)">curves beside those of the best', page)
    assert "trial 17" in read(client, both)
    best = both.rpartition(",")[2]
    assert "curves beside" not in read(client, f"/studies/rate-or-dropout/trials/{best}")


def test_sets_of_an_experiment_stand_in_the_order_of_their_sizes(client: TestClient) -> None:
    heads = re.findall("<h3>Differences from softmax, ([^<]*)</h3>", read(client, "/studies/scorers"))
    assert heads == ["validation", "length=8", "length=16"]


def test_counts_of_trials_lead_to_their_rows(client: TestClient) -> None:
    [link] = re.findall('id="failed-link" href="([^"]*)"', read(client, "/studies/rate-or-dropout"))
    assert "3 of 236 trials" in read(client, link)


def test_the_best_trials_have_no_column_without_a_value(client: TestClient) -> None:
    best = read(client, "/studies/quick-transfer").partition('<h2 id="best">')[2]
    assert "transfer.<wbr>target" in best
    assert "transfer.<wbr>task" not in best


def test_only_feasible_trials_are_ranked(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/graft.db"
    with open_store(url) as store:
        write_study(store)
        write_study(store, "other")
    # The first five are the best by the objective alone.
    raw(url, "UPDATE trials SET feasible = (number >= 5) WHERE objective IS NOT NULL")
    with client_of(url) as client:
        page = read(client, "/studies/demo")
        best = [int(number) for number in re.findall(r'id="best-(\d+)"', page)]
        texts = (client.get(path).text for path in ("/studies/demo", "/compare?study=demo&study=other"))
        history, compared = (json.loads(html.unescape(re.findall(r'data-chart="([^"]*)"', text)[0])) for text in texts)
        assert best[0] == 5
        assert min(best) == 5
        assert min(number for number, _ in history["option"]["dataset"][2]["source"]) == 5
        assert min(number for number, _ in compared["option"]["dataset"][0]["source"]) == 5
        broken, kept = (read(client, f"/studies/demo/trials/{number}") for number in (3, 8))
        groups = read(client, "/studies/demo/trials?group=model.scorer")
    assert "Too few trials to tell: a parameter needs 10 that have it." in page
    assert "among all feasible trials" in broken
    assert "better than" not in broken
    assert 'href="/studies/demo/trials/5">trial 5</a>, the best' in broken
    assert "better than 56 % of the trials" in kept
    assert re.findall(r">(softmax|ssa)</t[dh]>\s*<td[^>]*>(\d+)</td>", groups) == [("softmax", "5"), ("ssa", "4")]


def test_a_study_without_a_feasible_trial_says_so(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/graft.db"
    with open_store(url) as store:
        write_study(store)
    raw(url, "UPDATE trials SET feasible = 0 WHERE objective IS NOT NULL")
    with client_of(url) as client:
        assert "No feasible trial has ended with a result yet" in read(client, "/studies/demo")
        assert "better than" not in read(client, "/studies/demo/trials/3")


def test_numbers_beside_words_of_a_parameter_are_told_apart(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/graft.db"
    with open_store(url) as store:
        write_study(store)
    values = {0: 1, 1: 1, 2: 1.5e-7, 3: "x"}
    for number, value in values.items():
        raw(url, f"UPDATE trials SET params = '{json.dumps({'mixed': value})}' WHERE number = {number}")
    with client_of(url) as client:
        pages = [read(client, f"/studies/demo/trials/{number}") for number in values]
    rows = (re.search(r"mixed</th><td>(.*?)</td><td>(.*?)</td><td>(.*?)</td>", page) for page in pages)
    shown = [row.groups() for row in rows if row]
    assert [best for _, best, _ in shown] == ["1"] * 4
    assert ["<b>" in value for value, _, _ in shown] == [False, False, True, True]
    assert [place.replace("\xa0", " ") for _, _, place in shown] == [f"same as {n} %" for n in (50, 50, 25, 25)]


OWN_OBJECTIVES = """
transfer:
  tasks:
    short: {space: {}, objective: {maximize: accuracy/raw}}
    long: {space: {}}
  architecture: {model.scorer: {choice: [softmax, ssa]}}
search: {objective: {minimize: tvd/bema}}
"""


def test_trials_of_tasks_with_objectives_of_their_own_are_not_ranked(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/graft.db"
    with open_store(url) as store:
        write_study(store)
        write_study(store, "other")
    raw(url, f"UPDATE studies SET space = '{OWN_OBJECTIVES}'")
    # With plug-ins of their own, so that the server reads no more of them than the text.
    columns = "study_id, bundle, module, path, is_package, sha256, text, plugins"
    raw(url, f"INSERT INTO sources ({columns}) SELECT id, 0, 'own', 'own.py', 0, '', '', '[]' FROM studies")
    task = "json_object('transfer.target', CASE number % 2 WHEN 0 THEN 'short' ELSE 'long' END, 'x', number)"
    raw(url, f"UPDATE trials SET params = {task}")
    with client_of(url) as client:
        page, other = read(client, "/studies/demo"), read(client, "/compare?study=demo&study=other")
        short, long = (read(client, f"/studies/demo/trials/{number}") for number in (2, 3))
        groups = read(client, "/studies/demo/trials?group=params.x")
    assert "<h2>History</h2>" not in page
    assert 'id="best-' not in page
    assert "maximize accuracy/raw on short, minimize tvd/bema on long" in page
    assert "trials of different tasks are not ranked" in page
    assert "the numbers cannot be compared" in other
    assert "(accuracy/raw)" in short
    assert "(tvd/bema)" in long
    assert not any(word in text for word in ("better than", "the best") for text in (short, long))
    assert "tvd/bema" not in groups


# ------------------------------------------------------------------------------------------------ studies and queue


@pytest.mark.long
def test_studies_are_found_and_sorted(client: TestClient) -> None:
    every = names_of(read(client, "/"))
    assert every[0] == "just-begun", "the newest comes first"
    assert "last-year" not in every
    assert names_of(read(client, "/?archived=1")) == ["last-year"]
    assert names_of(read(client, "/?q=thesis+finished")) == ["scorers"]
    assert names_of(read(client, "/?q=ANN")) == ["abandoned", "next-rates"]
    assert names_of(read(client, "/?q=waiting")) == ["next-rates"], "the state that is shown is found"
    assert "None of 9 studies has “<b>”" in read(client, "/?q=%3Cb%3E")
    assert names_of(read(client, "/?sort=name&up=1")) == sorted(every)
    assert names_of(read(client, "/?sort=name")) == sorted(every)[::-1]
    assert client.get("/?sort=space").status_code == 422
    page = read(client, "/")
    assert 'aria-sort="descending"><a href="?q=&sort=created_at&up=1&archived=0">' in page
    assert "next-rates</a><br><small>waits for lanes: studies of a higher class" in page


@pytest.mark.long
def test_arms_of_several_studies_are_compared(client: TestClient) -> None:
    page = read(client, "/compare?study=scorers&study=scorers-again")
    assert "Arms against scorers: softmax" in page
    assert "<option selected>scorers: softmax</option>" in page
    assert page.count('<th scope="row">scorers') == 3 * (len(ARMS) + 2)
    turned = read(client, "/compare?study=scorers&study=scorers-again&baseline=scorers%3A+entmax")
    assert "scorers: ssa-1.5 is better than scorers: entmax" in turned
    unknown = read(client, "/compare?study=scorers&study=scorers-again&baseline=none", 404)
    assert "baseline: 'none' is no arm; choose one of scorers: softmax" in unknown
    mixed = read(client, "/compare?study=scorers&study=rate-or-dropout&study=quick-transfer")
    assert "the numbers cannot be compared" in mixed
    assert "quick-transfer from scorers" in mixed
    assert read(client, "/compare?study=none&study=scorers", 404)


def test_the_queue_has_its_workers(client: TestClient) -> None:
    page = read(client, "/queue")
    assert "28 lanes train now" in page
    assert page.count('<tr id="worker-') == 3
    assert "rack-4" in page
    assert "of all the time" in page


@pytest.fixture
def own(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/graft.db"
    with open_store(url) as store:
        write_search(store, ended=4).set_state("stopped")
        submit(store, plan("mine", "loss", "minimize", 4), Terms(owner="ann"))
    return url


@pytest.mark.long
def test_a_study_is_noted_tagged_renamed_archived_and_deleted(own: str) -> None:
    def post(client: TestClient, path: str, text: str, status: int = 303) -> str:
        answer = client.post(path, content=text, headers={"Content-Type": "application/x-www-form-urlencoded"})
        assert answer.status_code == status, answer.text
        return answer.text if status != 303 else answer.headers["location"]

    with client_of(own) as client:
        study = "/studies/rate-or-dropout"
        assert post(client, f"{study}/note", "text=warm+%26+dry") == study
        assert post(client, f"{study}/tags", "text=b+a") == study
        post(client, f"{study}/tags", "text=a+c")
        assert "warm & dry" in read(client, study)
        assert "<dt>tags</dt><dd>a, c</dd>" in read(client, study)
        assert "tag '<b>' must be a word" in html.unescape(post(client, f"{study}/tags", "text=%3Cb%3E", 400))
        assert post(client, f"{study}/rename", "text=rates") == "/studies/rates"
        assert "exists already" in post(client, "/studies/rates/rename", "text=mine", 400)
        assert post(client, "/studies", "study=rates&study=mine&action=archive") == "/"
        assert names_of(read(client, "/?archived=1&sort=name")) == ["rates", "mine"]
        assert names_of(read(client, "/")) == []
        post(client, "/studies", "study=rates&action=restore")
        assert names_of(read(client, "/")) == ["rates"]
        refused = post(client, "/studies/rates/delete", "text=rate", 400)
        assert "to delete study rates type its name; typed was 'rate'" in html.unescape(refused)
        assert post(client, "/studies/rates/delete", "text=rates") == "/"
    with open_reader(own) as reader:
        assert reader.studies()["name"].to_list() == ["mine"]


@pytest.mark.long
def test_who_may_change_a_study(own: str) -> None:
    tokens = {
        name: make_token(own, name, role) for name, role in (("ann", "submit"), ("eve", "submit"), ("bob", "read"))
    }
    cases = [
        ("bob", "mine/note", "the role read; this needs submit"),
        ("eve", "mine/note", "study mine is ann's"),
        ("ann", "rate-or-dropout/tags", "was launched, not submitted"),
        ("ann", "mine/rename", "the role submit; this needs admin"),
        ("ann", "mine/delete", "the role submit; this needs admin"),
    ]
    for name, path, words in cases:
        with client_of(own, tokens[name], needs_token=True) as client:
            answer = client.post(f"/studies/{path}", content="text=mine")
            assert answer.status_code == 403
            assert words in html.unescape(answer.text)
    with client_of(own, tokens["ann"], needs_token=True) as client:
        assert client.post("/studies/mine/note", content="text=ours").status_code == 303
        assert client.post("/studies", content="study=mine&action=archive").status_code == 303
        page = read(client, "/studies/mine")
        assert 'id="manage"' in page
        assert "/studies/mine/delete" not in page
    with client_of(own, tokens["bob"], needs_token=True) as client:
        assert 'id="manage"' not in read(client, "/studies/mine")
        assert 'value="archive"' not in read(client, "/")
        foreign = client.post("/studies", content="study=mine&action=restore", headers={"Origin": "http://elsewhere"})
        assert foreign.status_code == 403


@pytest.mark.long
def test_a_study_that_another_process_runs_is_not_renamed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/graft.db"
    with house(url), client_of(url) as client:
        answer = client.post("/studies/rate-or-dropout/rename", content="text=other", headers={"Accept": "text/html"})
        assert answer.status_code in (400, 503)
        assert answer.text.count('<p class="error">') == 1


@pytest.mark.long
def test_a_text_of_a_user_is_text_on_all_pages(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/graft.db"
    evil = "<script>alert(1)</script>"
    with open_store(url) as store:
        study = control(store, plan("evil", "loss", "minimize", 2))
        config = {
            "task": {"name": evil},
            "model": {"name": evil},
            "optimizer": {"name": evil},
            "training": {"steps": 1},
        }
        study.start([make_trial(number, {"model.scorer": f"{evil}{number}"}, config) for number in range(2)], evil)
        study.end([TrialResult(number=0, fence=1, state="finished", objective=1.0)])
        store.annotate(study.id, note=evil, tags=[evil])
        with client_of(url) as client:
            for path in ("/", "/?q=%3Cscript%3E", "/queue", "/studies/evil", "/studies/evil/trials/0", "/compare"):
                answer = client.get(path)
                assert answer.status_code == 200
                assert evil not in answer.text
