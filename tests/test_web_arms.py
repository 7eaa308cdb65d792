"""Pages of a study of arms lead with what is told of the arms; a matrix that is not there yet is said."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from spaces.records import Metric, Report, Trial, TrialResult
from spaces.settings import Objective
from storage import NewStudy, open_store
from tests.test_web import client_of

ARMS, SEEDS = ("softmax", "warm", "ssa"), 6
CONFIG = {"task": {"name": "copying"}, "model": {"name": "minimal", "scorer": {"name": "softmax"}}}
OBJECTIVE = Objective(direction="maximize", metric="accuracy", variant="raw")


def accuracy(arm: int, seed: int) -> float:
    """`ssa` is better by .3, `warm` is not told apart from the baseline."""
    return 0.5 + 0.01 * seed + (0.3 + 0.005 * seed * seed if arm == 2 else 0.011 * (-1) ** seed * arm)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    url = f"sqlite:///{tmp_path_factory.mktemp('arms')}/graft.db"
    keys = [(arm, seed) for arm in range(len(ARMS)) for seed in range(SEEDS)]
    with open_store(url) as store:
        for name, has_arms in (("arms", True), ("plain", False)):
            new = NewStudy(
                name,
                space="",
                space_hash="",
                objective=OBJECTIVE,
                seed=0,
                trials=len(keys),
                version="0.2.0",
                numerics=1,
            )
            study = store.claim(store.create_study(new), policy="full", objective=OBJECTIVE)
            params = [
                {"arm": ARMS[arm], "configuration": 0, "seed": seed} if has_arms else {"rate": accuracy(arm, seed)}
                for arm, seed in keys
            ]
            trials = [
                Trial(number=number, group=0, seed=number, draws={}, params=one, config=CONFIG, structure="")
                for number, one in enumerate(params)
            ]
            study.start(trials, "worker")
            for step in (1, 2):
                study.record(
                    [
                        Report(
                            number=number,
                            fence=1,
                            step=step,
                            metrics=tuple(
                                Metric("accuracy", "raw", condition, accuracy(arm, seed) * step / 2)
                                for condition in ("", "length=8")
                            ),
                        )
                        for number, (arm, seed) in enumerate(keys)
                    ]
                )
            study.end(
                [
                    TrialResult(number=number, fence=1, state="finished", objective=accuracy(arm, seed))
                    for number, (arm, seed) in enumerate(keys)
                ]
            )
    return client_of(url)


def test_the_page_of_a_study_of_arms_leads_with_the_verdict(client: TestClient) -> None:
    page = client.get("/studies/arms").text
    assert "ssa is better than softmax: accuracy/raw differs by" in page
    assert "warm is not told apart from softmax" in page
    assert page.index("ssa is better than softmax") < page.index("<h2>History</h2>")
    assert "mean of each arm&#39;s seeds" in page or "mean of each arm's seeds" in page
    assert "seeds of each arm beside those of softmax" in page
    assert page.count("difference of each arm from softmax") == 2 * page.count("<h3>Differences from softmax, ") == 4
    assert "<dt>best</dt>" not in page
    goes_with = page[page.index("What goes with the objective") :].partition("</section>")[0]
    assert "correlation ratio of ranks" in goes_with
    assert "fANOVA" in goes_with
    assert "Told apart from no association: arm." in goes_with
    assert "seed" not in goes_with.partition("<summary>")[0]
    assert '<a href="/compare?study=arms">compare arms</a>' in page
    plain = client.get("/studies/plain").text
    assert "<h2>Arms</h2>" not in plain
    assert "compare arms" not in plain
    assert "<dt>best</dt>" in plain


def test_arms_are_compared_with_any_of_them(client: TestClient) -> None:
    page = client.get("/compare?study=arms").text
    assert "ssa is better than softmax" in page
    assert "length=8" in page
    turned = client.get("/compare?study=arms&baseline=ssa").text
    assert "softmax is worse than ssa" in turned
    assert "<option selected>ssa</option>" in turned
    for address, words in (
        ("/compare?study=arms&baseline=none", "&#39;none&#39; is no arm; choose one of softmax, warm, ssa"),
        ("/compare?study=arms&study=none", "does not exist"),
    ):
        answer = client.get(address)
        assert answer.status_code == 404
        assert words in answer.text


def test_a_matrix_that_cannot_be_made_yet_is_no_error(client: TestClient) -> None:
    answer = client.get("/studies/plain/matrix")
    assert answer.status_code == 200
    assert "There is no matrix yet: no trial has" in answer.text


def test_a_state_has_one_word_on_all_pages() -> None:
    pages = Path(__file__).parents[1] / "graft" / "web" / "pages"
    shown = [path.name for path in pages.glob("*.html") if "{{ entry.state }}" in path.read_text()]
    assert shown == []
