"""Pages of a study of arms lead with what is told of the arms; a matrix that is not there yet is said."""

from __future__ import annotations

from pathlib import Path

from fastapi.testclient import TestClient

from tests.support.web_arms import client

__all__ = ["client"]


def test_the_page_of_a_study_of_arms_leads_with_the_verdict(client: TestClient) -> None:
    page = client.get("/studies/arms").text
    assert "ssa is better than softmax: accuracy/raw differs by" in page
    assert "warm is not told apart from softmax" in page
    assert page.index("ssa is better than softmax") < page.index("<h2>History</h2>")
    assert "mean of each arm&#39;s seeds" in page or "mean of each arm's seeds" in page
    assert "seeds of each arm beside those of softmax" in page
    assert page.count("difference of each arm from softmax") == 2 * page.count("<h3>Differences from softmax, ") == 4
    assert "<dt>best</dt>" not in page
    goes_with = page[page.index("Association with the objective") :].partition("</section>")[0]
    assert "correlation ratio of ranks" in goes_with
    assert "PED-ANOVA" in goes_with
    assert "Associated: arm." in goes_with
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
    pages = Path(__file__).parents[3] / "graft" / "web" / "pages"
    shown = [path.name for path in pages.glob("*.html") if "{{ entry.state }}" in path.read_text()]
    assert shown == []
