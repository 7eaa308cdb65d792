"""Test sets: their own data, their own numbers, and none of these to be seen before the study is revealed."""

from __future__ import annotations

import io
import json
import math
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import polars as pl
import pytest
import torch
import yaml
from fastapi.routing import APIRoute
from hypothesis import given
from hypothesis import strategies as st

import graft
from cli.main import program
from graft.launching.planning.review import review
from graft.report.claims import read_claim_report
from graft.stored.claims import put_side_by_side
from graft.web.app import PAGES
from graft.web.security.access import Holder, make_token
from graft.web.tools.offered import TOOLS
from spaces.errors import RowError, SpaceError, StudyError
from spaces.experiment import Claim
from spaces.records import Metric
from storage import reveal_study
from storage.frames import open_reader
from storage.frames.study import StudyReader
from storage.test_sets import seal, unseal
from tests.support.claim_of_study import space_of
from tests.support.databases import raw
from tests.support.inside import called
from tests.support.launches import search
from tests.support.tools import call, error_of
from tests.support.web import client_of
from workers.numerics.randomness import Purpose
from workers.training.recipe import evaluation_sets

TEXT = """
study: sealed
arms:
  softmax:
  ssa: {model.scorer: ssa}
seeds: 2
confirm: {top: 1, seeds: 3}
claim: {arm: ssa, difference: 0.01, metric: {minimize: mse/raw}, on: test}
task: {name: affine, points: 6, curriculum_start: 6}
model: {name: regressor, depth: 1, heads: 1, width: 8}
optimizer: {name: adam, learning_rate: 10 ** uniform(-3, -1)}
averaging: none
training: {steps: 6, batch: 8, validate_every: 2, validation_batch: 16}
search: {trials: 2, objective: {minimize: mse/raw, at: last}, history: full}
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a database with the study, finished and sealed, and `open`, the same without test sets."""
    folder = tmp_path_factory.mktemp("sealed")
    for name, text in (("sealed", TEXT), ("open", TEXT.replace(", on: test", ""))):
        (folder / f"{name}.yaml").write_text(text)
        search(folder, "launch", f"{name}.yaml", "--study", name, "--device", "cpu", "--workers", "1")
    return folder


@pytest.fixture
def folder(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the database, in the working folder."""
    shutil.copytree(trained, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    return tmp_path / "copy"


def url_of(folder: Path) -> str:
    return f"sqlite:///{folder}/graft.db"


def open_all(folder: Path) -> pl.DataFrame:
    """Return the sealed numbers, opened past the commands: number, step, name, variant, condition, value."""
    sealed = raw(url_of(folder), "SELECT number, step, sealed FROM test_results")
    rows = [(number, step, *metric) for number, step, text in sealed for metric in unseal(text)]
    return pl.DataFrame(rows, schema=["number", "step", "name", "variant", "condition", "value"], orient="row")


# ---------------------------------------------------------------------------------------------------------- the numbers


@pytest.mark.long
def test_validation_is_bit_for_bit_what_it_was(trained: Path) -> None:
    with open_reader(url_of(trained)) as reader:
        with_test, without = (reader.study(name).metrics() for name in ("sealed", "open"))
    assert with_test.equals(without)
    assert raw(url_of(trained), "SELECT DISTINCT name FROM test_results JOIN studies ON id = study_id") == [("sealed",)]


@pytest.mark.long
def test_test_metrics_are_those_of_the_weights_on_draws_of_another_stream(trained: Path) -> None:
    model = graft.open(url_of(trained))["sealed"].model(0)
    seeds, count = torch.tensor([model._seed]), model.recipe.training.validation_batch
    shown = evaluation_sets(model.recipe.task, seeds, count)
    test = evaluation_sets(model.recipe.task, seeds, count, Purpose.TEST_DATA)
    assert shown.keys() == test.keys()
    assert not torch.equal(shown[""]["inputs"], test[""]["inputs"])
    rows = open_all(trained).filter(pl.col("number") == 0, pl.col("step") == 6, pl.col("condition") == "")
    batch = {name: tensor[0] for name, tensor in test[""].items()}
    with torch.no_grad():
        expected = model.recipe.task.metrics(model(batch), batch)
    values = dict(rows.select("name", "value").iter_rows())
    assert {name: pytest.approx(tensor.double().mean().item(), rel=1e-5) for name, tensor in expected.items()} == values


numbers = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(st.builds(Metric, st.text(), st.text(), st.text(), numbers)))
def test_a_seal_opens_to_what_was_sealed(metrics: list[Metric]) -> None:
    sealed = seal(metrics)
    assert unseal(sealed) == metrics
    assert re.fullmatch(r"[A-Za-z0-9+/=]+", sealed)


@pytest.mark.parametrize("text", ["", "?", "AAAA", seal([Metric("a", "raw", "", 1.0)])[:-8] + "AAAAAAA="])
def test_an_edited_seal_is_one_line(text: str) -> None:
    with pytest.raises(RowError, match="a row of test_results was edited by hand"):
        unseal(text)


def test_old_claims_keep_their_hash_and_new_ones_say_where_they_are_decided() -> None:
    [claim], [old] = space_of(TEXT).claims, space_of(TEXT.replace(", on: test", "")).claims
    assert claim.to_json() == {**old.to_json(), "on": "test"}
    assert Claim(**old.to_json()) == old
    assert "on test sets" in str(claim)
    assert space_of(TEXT).sample(0, lambda _: 0.5).tested
    assert not space_of(TEXT.replace(", on: test", "")).sample(0, lambda _: 0.5).tested


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("on: test", "on: training", "claim.on: 'training' is no choice here; choose one of validation, test"),
        ("seeds: 2", "seeds: 2", "search.history: last keeps the last; write thin"),
    ],
)
def test_what_no_test_set_can_decide_is_refused(old: str, new: str, message: str) -> None:
    text = TEXT.replace(old, new).replace(", at: last", "").replace("history: full", "history: last")
    with pytest.raises(SpaceError, match=re.escape(message)):
        space_of(text)


def test_a_task_with_too_few_sequences_has_no_test_set() -> None:
    model = "{name: minimal, width: 8, key_width: 4, value_width: 4}"
    task = "{name: set_complement, length: 3, vocabulary: 4}"
    text = TEXT.replace("{name: affine, points: 6, curriculum_start: 6}", task).replace("mse/raw", "tvd/raw")
    text = text.replace("{name: regressor, depth: 1, heads: 1, width: 8}", model)
    with pytest.raises(SpaceError, match=r"claim\.on: test: \d+ % of its test set are in the validation set, too"):
        review(space_of(text))


# ------------------------------------------------------------------------------------------------------------- the walk

READING = {
    "compare": [["open:ssa", "sealed:ssa"], ["sealed:ssa", "sealed:softmax"]],
    "leaderboard": [["affine"]],
    "studies": [[]],
    "status": [["sealed"], ["sealed", "--format", "json"], ["--format", "prometheus"]],
    "wait": [["sealed", "--format", "json"]],
    "trials": [["sealed"], ["sealed", "--format", "json"], ["sealed", "--sort", "objective"]],
    "show": [["sealed", "0"], ["sealed", "7", "--format", "json"]],
    "query": [
        ["SELECT * FROM metrics JOIN trials ON id = trial_id", "--format", "csv"],
        ["SELECT * FROM test_results", "--format", "csv"],
        ["SELECT * FROM claim_events", "--format", "csv"],
        ["SELECT * FROM reveals", "--format", "csv"],
        ["SELECT name, space, note, objective FROM studies", "--format", "csv"],
    ],
    "export": [["sealed", "-o", "trials.csv"], ["sealed", "-o", "trials.json"]],
    "replay": [["sealed", "0", "--format", "csv"]],
    "weights": [["sealed", "0", "-o", "weights.safetensors"]],
    "advise": [["again.yaml"], ["affine"], ["affine", "--format", "json"]],
    "claim list": [[]],
    "claim show": [["sealed"]],
    "report study": [["sealed", "-o", "study.html"], ["sealed", "-o", "study.md"]],
    "report compare": [["sealed"], ["sealed", "--format", "json"], ["sealed", "-o", "arms.html"]],
    "report claim": [["sealed"], ["sealed", "--format", "json"], ["sealed", "-o", "claim.json"]],
    "db check": [["--format", "json"]],
    "db copy": [["graft.db", "copied.db", "--study", "sealed"]],
}
"""Commands that show what a study has found -> their arguments."""
OTHERS = {
    "launch", "resume", "stop", "retry", "serve", "submit", "cancel", "mcp", "enqueue", "note", "tag", "rename",
    "archive", "delete", "list", "dashboard", "optuna-dashboard", "doctor", "claim new", "queue pause", "queue resume",
    "queue cancel", "queue reprioritise", "space check", "space sample", "space describe", "space schema", "space list",
    "plugin new", "plugin check", "plugin show", "token make", "token list", "token revoke", "db upgrade", "db backup",
}  # fmt: skip
"""Commands that show no results of a study, or as `serve` and `dashboard` do, by addresses that are walked below."""
ELSEWHERE = {
    "refit", "evaluate", "learn", "report paper", "report transfer", "report nonlinearities", "report attention",
    "report temperature", "report norms", "report evaluations",
}  # fmt: skip
"""Commands of other kinds of studies, or of other models: they read the tables that `query` shows, or train again on
validation sets, as `weights` and `replay` do."""


def commands(group: Any = None, path: tuple[str, ...] = ()) -> Iterator[str]:
    for name, command in getattr(group or program(), "commands", {}).items():
        if getattr(command, "commands", None):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name))


def test_the_walk_knows_every_command() -> None:
    known = [*READING, *OTHERS, *ELSEWHERE, "reveal"]
    assert sorted(commands()) == sorted(known)


def secrets_of(folder: Path) -> list[float]:
    """Return the numbers of test sets that validation does not have, too, to six digits.

    Sets of some conditions are a grid, whatever the stream, and differ by its order alone.
    """
    known = {f"{value:.6g}" for (value,) in raw(url_of(folder), "SELECT value FROM metrics")}
    candidates = [value for value in set(open_all(folder)["value"]) if f"{value:.6g}" not in known]
    spelled = ((value, f"{value:.8g}") for value in candidates)
    values = [value for value, text in spelled if "." in text and len(text.replace(".", "").lstrip("-0")) == 8]
    assert len(values) > 100
    return values


def spell(values: list[float]) -> set[str]:
    """Return numbers as texts may have them: with six digits or more."""
    return {f"{abs(value):.{digits}g}" for value in values for digits in range(6, 18)}


def check_hidden(text: str, spelled: set[str], where: str) -> None:
    """No number of the text is one of the secrets, to the digits that it has: at least six."""
    said = {word for word in re.findall(r"\d+\.\d+(?:e[+-]?\d+)?", text) if len(word.replace(".", "").lstrip("0")) >= 6}
    assert not said & spelled, where


def pages_of_the_server() -> list[str]:
    """Return the addresses of all pages, but files of the server's own, and comparisons."""
    routes = [route for module in PAGES for route in module.router.routes]
    paths = [route.path for route in routes if isinstance(route, APIRoute) and "GET" in route.methods]
    return [
        *(path for path in paths if "static" not in path),
        "/compare?study=sealed",
        "/compare?study=sealed&study=open",
    ]


@pytest.mark.long
def test_no_command_address_file_or_tool_shows_a_test_metric_before_the_reveal(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "again.yaml").write_text(TEXT.replace("study: sealed", "study: again"))
    secrets = secrets_of(folder)
    spelled = spell(secrets)
    for command, several in READING.items():
        for arguments in several:
            status, out, error = called(monkeypatch, capfd, *command.split(), *arguments)
            assert status == 0, (command, error)
            check_hidden(out + error, spelled, command)
    for path in folder.iterdir():
        if path.suffix in (".csv", ".json", ".html", ".md"):
            check_hidden(path.read_text(), spelled, path.name)
    url = url_of(folder)
    with client_of(url) as client:
        paths = [path for path, methods in client.get("/api/openapi.json").json()["paths"].items() if "get" in methods]
        paths += pages_of_the_server()
        assert len(paths) > 25
        for path in paths:
            if path.endswith("/events"):  # what they tell is in the addresses of the study
                continue
            for values in ({"table": "trials", "form": "json"}, {"table": "metrics", "form": "csv"}):
                there = path.format(study="sealed", number=7, name="", kind="arm_differences", index=1, **values)
                answer = client.get(there)
                assert answer.status_code in (200, 400, 404), there  # no front, or no such figure
                if answer.content.startswith(b"PAR1"):
                    check_hidden(str(pl.read_parquet(io.BytesIO(answer.content)).to_dicts()), spelled, there)
                else:
                    check_hidden(answer.text, spelled, there)
    arguments: dict[str, dict[str, Any]] = {
        "list": {}, "describe": {"name": "study/sealed"}, "check": {"space": TEXT}, "advise": {"space": TEXT},
        "submit": {"space": TEXT}, "watch": {"study": "sealed", "seconds": 0},
        "query": {"study": "sealed", "limit": 200},
        "compare": {"one": "sealed:ssa", "other": "sealed:softmax"}, "claim": {"study": "sealed"},
        "show": {"study": "sealed", "number": 7}, "export": {"study": "sealed", "what": "metrics", "bytes": 100_000},
    }  # fmt: skip
    assert {*arguments, "reveal"} == {*TOOLS}
    for name, given_arguments in arguments.items():
        check_hidden(str(call(url, name, **given_arguments).structured_content), spelled, name)
    with open_reader(url) as reader:
        assert reader.study("sealed").test_results() is None
    check_hidden(str(graft.Database(url)["sealed"].metrics().to_dicts()), spelled, "Python")
    for shown in secrets[:20]:  # the walk finds one that is shown
        with pytest.raises(AssertionError, match="a claim"):
            check_hidden(f"value {shown:.8g}, and more", spell([shown]), "a claim")


# ----------------------------------------------------------------------------------------------------------- the reveal


def test_the_best_by_validation_is_the_configuration_that_was_confirmed() -> None:
    """A claim about another metric than the objective does not choose again, by its own metric."""
    claim = Claim(
        arm="ssa", than="softmax", direction="minimize", metric="loss/raw", at="last", difference=0.1, seeds=1,
        fresh=True, on="test",
    )  # fmt: skip
    rows: list[tuple[int, str, float, str]] = []
    losses: list[tuple[int, int, str, str, str, float]] = []
    for arm in (claim.arm, claim.than):  # the second configuration has the best accuracy, the first the best loss
        for params, accuracy, loss in (
            ({"configuration": 0, "seed": 0}, 0.5, 1.0),
            ({"configuration": 1, "seed": 0}, 0.9, 2.0),
            ({"confirmed rank": 0, "seed": 1}, 0.8, 3.0),
        ):
            losses.append((len(rows), 6, "loss", "raw", "", loss))
            rows.append((len(rows), "finished", accuracy, json.dumps({"arm": arm} | params)))
    validation = pl.DataFrame(losses, ["number", "step", "name", "variant", "condition", "value"], orient="row")
    study = Mock(spec=StudyReader, row={"objective": "accuracy/raw", "direction": "maximize"})
    study.trials.return_value = pl.DataFrame(rows, ["number", "state", "objective", "params"], orient="row")
    study.metrics.return_value = validation
    study.test_results.return_value = validation.with_columns(value=10 * pl.col("value"))
    sides = put_side_by_side(study, claim)
    assert sides is not None
    assert sides.to_dicts() == [
        {"arm": arm, "configurations": 2, "seeds": 1, "validation": 2.0, "test": 20.0, "fresh_seeds": 1,
         "fresh_validation": 3.0, "fresh_test": 30.0} for arm in ("ssa", "softmax")
    ]  # fmt: skip


@pytest.mark.long
def test_a_reveal_is_a_row_decides_and_closes_the_study(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    url = url_of(folder)
    assert "its test sets are sealed" in called(monkeypatch, capfd, "report", "claim", "sealed")[1]
    status, out, error = called(monkeypatch, capfd, "reveal", "sealed")
    assert (status, error) == (0, "")
    with open_reader(url) as reader:
        report = read_claim_report(reader, "sealed")
        trials = reader.study("sealed").trials(columns=("number", "params", "objective"))
    [result], [sides] = report.results, report.sides
    assert result.pairs == 3
    assert sides is not None
    # By hand: the last mse of the confirmations on test sets, in pairs.
    rows = open_all(folder).filter(pl.col("name") == "mse", pl.col("condition") == "", pl.col("step") == 6)
    values = dict(rows.select("number", "value").iter_rows())
    by_arm: dict[str, list[float]] = {"ssa": [], "softmax": []}
    for number, params, _ in trials.iter_rows():
        facts = yaml.safe_load(params)
        if facts.get("confirmed rank") == 0:
            by_arm[facts["arm"]].append(values[number])
    means = {arm: math.fsum(scores) / len(scores) for arm, scores in by_arm.items()}
    assert result.gain == pytest.approx(means["softmax"] - means["ssa"])
    for row in sides.iter_rows(named=True):
        assert row["configurations"] == 2
        assert row["fresh_test"] == pytest.approx(means[row["arm"]])
        assert row["validation"] != row["test"]
    assert out.count("by validation has") == 2
    # Again: a row and a line. A change, more trials: a line, and nothing is changed.
    assert "had been revealed before" in called(monkeypatch, capfd, "reveal", "sealed")[2]
    assert raw(url, "SELECT number, person <> '' FROM reveals") == [(0, 1), (1, 1)]
    before = raw(url, "SELECT space, trials FROM studies")
    for old, new in (("difference: 0.01", "difference: 0.02"), ("top: 1, seeds: 3", "top: 1, seeds: 4")):
        (folder / "other.yaml").write_text(TEXT.replace(old, new))
        status, _, error = called(monkeypatch, capfd, "launch", "other.yaml", "--device", "cpu")
        assert status == 2
        assert error.count("\n") == 1
        assert "revealed its test sets" in error or "exists with another space (confirm.seeds: 3 -> 4)" in error
    status, _, error = called(monkeypatch, capfd, "retry", "sealed")
    assert (status, "revealed its test sets" in error) == (2, True)
    assert raw(url, "SELECT space, trials FROM studies") == before
    assert called(monkeypatch, capfd, "delete", "sealed", "--yes")[0] == 0
    assert raw(url, "SELECT * FROM reveals") == raw(url, "SELECT * FROM test_results") == []


@pytest.mark.long
def test_who_may_not_change_a_study_may_not_reveal_it(folder: Path) -> None:
    url = url_of(folder)
    for name, role in (("bob", "submit"), ("eve", "read")):
        make_token(url, name, role)
    assert "the role read; this needs submit" in error_of(call(url, "reveal", Holder("eve", "read"), study="sealed"))
    assert "to change it needs the role admin" in error_of(call(url, "reveal", Holder("bob", "submit"), study="sealed"))
    assert raw(url, "SELECT * FROM reveals") == []
    content = call(url, "reveal", study="sealed").structured_content
    assert content is not None
    assert [row["verdict"] for row in content["rows"]] != []
    assert raw(url, "SELECT person FROM reveals") == [("local",)]


@pytest.mark.long
def test_a_study_without_test_sets_or_that_has_not_ended_is_not_revealed(folder: Path) -> None:
    url = url_of(folder)
    with pytest.raises(StudyError, match="study 'open' has no test sets: no claim of its space says `on: test`"):
        reveal_study(url, "open", person="ada", version="1")
    raw(url, "UPDATE studies SET state = 'stopped' WHERE name = 'sealed'")
    with pytest.raises(StudyError, match="study 'sealed' is stopped: its test sets are opened once"):
        reveal_study(url, "sealed", person="ada", version="1")
    assert raw(url, "SELECT * FROM reveals") == []
