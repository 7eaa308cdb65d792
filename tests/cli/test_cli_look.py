"""The commands that look, through the program's own gate, on a database written with the storage API."""

from __future__ import annotations

import csv
import errno
import html.parser
import io
import json
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml

import graft
import spaces
from cli.options import database_name, storage_url
from graft.files import OutputError, writing
from spaces.plugins import names
from spaces.reading import catalogue
from storage.store import NewStudy, open_store
from tests.support import studies
from tests.support.databases import controlled, make_trial, raw
from tests.support.inside import called
from workers.training.schedules import Schedule


@dataclass(frozen=True)
class Answer:
    status: int
    out: bytes
    error: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Search = Callable[..., Answer]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("demo") / "graft.db"
    with studies.running(f"sqlite:///{path}"):
        yield path


@pytest.fixture
def search(
    demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Search:
    """Run the program in an empty folder, with the demo as its database; the answer's status must be as said."""
    monkeypatch.setenv("SEARCH_STORAGE", str(demo))
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, status: int = 0) -> Answer:
        code, out, error = called(monkeypatch, capfdbinary, *arguments)
        assert code == status, error.decode()
        return Answer(code, out, error.decode())

    return run


def rows(text: str) -> list[list[str]]:
    """Return the words of aligned text."""
    return [line.split() for line in text.splitlines()]


def test_studies_lists_each_with_its_progress_and_its_best(search: Search) -> None:
    [study] = search("studies", "--format", "json").json
    assert (study["name"], study["state"], study["ended"], study["trials"]) == ("demo", "running", 16, 24)
    assert (study["best"], study["best_number"]) == (pytest.approx(studies.tvd(0, 100)), 0)
    assert rows(search("studies").text)[1][:4] == ["demo", "running", "16", "24"]


def test_status_counts_trials_by_state_and_adds_up_their_steps(search: Search) -> None:
    [row] = search("status", "demo", "--format", "json").json
    counted = {state: row[state] for state in ("queued", "running", "finished", "pruned", "diverged", "failed")}
    assert counted == {"queued": 0, "running": 4, "finished": 13, "pruned": 1, "diverged": 1, "failed": 1}
    assert (row["steps"], row["ended"], row["planned"], row["best_number"]) == (16 * 200 + 4 * 100, 16, 24, 0)
    assert 0 <= row["eta_least_seconds"] <= row["eta_seconds"] <= row["eta_most_seconds"]


def test_status_tells_a_person_what_runs_and_what_is_best(search: Search) -> None:
    lines = dict(line.split(maxsplit=1) for line in search("status", "demo").text.splitlines())
    assert lines["state"] == "running"
    assert lines["trials"].startswith("16 of 24 ended: 1 diverged, 1 failed, 13 finished, 1 pruned, 4 running, 4 not")
    assert lines["best"] == "tvd/bema 0.1 (trial 0)"
    assert lines["running"] == "4 trials: 16, 17, 18, 19"
    assert {"rate", "ETA"} <= lines.keys()


def test_status_does_not_believe_a_study_without_a_controller_that_it_is_running(search: Search, url: str) -> None:
    with studies.running(url):
        assert search("status", "demo", "--storage", url, "--format", "json").json[0]["state"] == "running"
    [row] = search("status", "demo", "--storage", url, "--format", "json").json
    assert (row["state"], row["trials_per_minute"], row["steps_per_second"]) == ("interrupted", None, None)
    assert "search resume demo" in search("status", "demo", "--storage", url).text
    assert search("status", "demo", "--watch", "--storage", url).text.count("interrupted") == 1
    assert search("studies", "--storage", url, "--format", "json").json[0]["state"] == "interrupted"


def test_a_controller_of_one_study_does_not_hold_another(search: Search, url: str) -> None:
    with studies.running(url) as store:
        store.create_study(
            NewStudy(
                "other", space="", space_hash="", objective=studies.OBJECTIVE, seed=0, trials=5, version="0", numerics=1
            )
        )
        raw(url, "UPDATE studies SET state = 'running' WHERE name = 'other'")
        listed = search("studies", "--storage", url, "--format", "json").json
    assert [(study["name"], study["state"]) for study in listed] == [("demo", "running"), ("other", "interrupted")]


def test_status_watch_goes_on_until_the_study_is_no_longer_running(
    search: Search, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/own.db"
    with open_store(url) as store:
        study = studies.write_study(store)
        left = iter(["running", "finished"])
        monkeypatch.setattr(time, "sleep", lambda _: study.set_state(next(left)))  # type: ignore[arg-type]
        lines = search("status", "demo", "--watch", "--storage", url).text.splitlines()
    assert [line.split("; ")[0] for line in lines] == ["demo: running", "demo: running", "demo: finished"]


def test_status_watch_leaves_quietly_on_interruption(search: Search, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupt)
    answer = search("status", "demo", "--watch")
    assert answer.error == ""
    assert answer.text.count("\n") == 1


def test_trials_gives_programs_every_param_as_a_typed_column(search: Search) -> None:
    trials = search("trials", "demo", "--format", "json").json
    assert [trial["number"] for trial in trials] == list(range(20))
    for trial in trials:
        expected = {f"params.{path}": value for path, value in studies.trial(trial["number"]).params.items()}
        assert {
            key: value for key, value in trial.items() if key.startswith("params.") and value is not None
        } == expected


def test_trials_shows_people_only_the_params_that_differ(search: Search) -> None:
    header, first, *_ = rows(search("trials", "demo").text)
    assert header == ["number", "group", "state", "steps", "objective", "learning_rate", "scorer", "n", "error"]
    assert first == ["0", "0", "finished", "200", "0.1", "0.001", "ssa", "1.5"]


def test_a_param_that_is_called_as_a_column_is_shown_by_its_path(search: Search, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/paths.db"
    drawn = [{"training.steps": 10, "task.error": 1, "a.x": 1}, {"training.steps": 20, "task.error": 2, "a.x": 2}]
    with controlled(url) as study:
        study.start([replace(make_trial(number), params=params) for number, params in enumerate(drawn)], "w")
    header, *shown = rows(search("trials", "study", "--storage", url).text)
    assert header == ["number", "group", "state", "steps", "objective", "task.error", "x", "training.steps"]
    assert [row[-3:] for row in shown] == [["1", "1", "10"], ["2", "2", "20"]]


def test_trials_filters_sorts_and_cuts(search: Search) -> None:
    where = ("--where", "params.optimizer.learning_rate > 0.005 AND state = 'finished'")
    sorted_by = ("--sort", "params.optimizer.learning_rate DESC")
    trials = search("trials", "demo", *where, *sorted_by, "--top", "3", "--format", "json").json
    assert [trial["number"] for trial in trials] == [12, 11, 10]
    assert [trial["number"] for trial in search("trials", "demo", "--top", "2", "--format", "json").json] == [0, 1]


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_the_best_of_a_study_are_its_best_whatever_its_direction(
    search: Search, tmp_path: Path, direction: str
) -> None:
    url = f"sqlite:///{tmp_path}/best.db"
    with studies.running(url):
        raw(url, f"UPDATE studies SET direction = '{direction}'")
    known = pl.Series([studies.ending(number).objective for number in studies.ENDED]).drop_nulls()
    expected = known.sort(descending=direction == "maximize").head(3).to_list()
    for sort in (["--sort", "objective"], []):
        answer = search("trials", "demo", *sort, "--top", "3", "--format", "json", "--storage", url)
        assert [trial["objective"] for trial in answer.json] == expected
        assert answer.error == f"order: best first, {direction} tvd/bema\n"
    assert graft.open(url)["demo"].trials(sort="objective", top=3)["objective"].to_list() == expected
    assert "order:" not in search("trials", "demo", "--sort", "steps", "--storage", url).error


def test_what_the_best_trials_have_in_common_is_shown(search: Search) -> None:
    header, *shown = rows(
        search("trials", "demo", "--where", "params.model.scorer = 'softmax' AND state = 'finished'").text
    )
    column = header.index("scorer")
    assert {row[column] for row in shown} == {"softmax"}
    assert "length" not in header, "no trial of the study has another one"


def test_trials_without_a_match_is_a_header_and_no_error(search: Search) -> None:
    assert search("trials", "demo", "--where", "steps > 1000").text.count("\n") == 1
    assert search("trials", "demo", "--where", "steps > 1000", "--format", "json").json == []


def test_show_gives_configuration_draws_and_the_course_of_every_metric(search: Search) -> None:
    heading, config, draws, metrics = search("show", "demo", "3").text.split("\n\n")
    assert "trial 3 of demo: finished after 200 steps, group 0, seed 1003" in heading
    assert "tvd/bema 0.13" in heading
    assert yaml.safe_load(config) == studies.trial(3).config
    assert list(yaml.safe_load(config)) == ["task", "model", "optimizer", "averaging", "training"]
    assert rows(draws)[1:] == [["model.scorer", "0.25", "ssa"], ["optimizer.learning_rate", "0.03", "0.004"]]
    # value at steps 50, 100, 200: 0.26, 0.13, 0.143; raw is twice as much
    assert rows(metrics)[1] == ["tvd", "bema", "3", "0.13", "100", "0.26", "50", "0.143", "200"]
    assert rows(metrics)[2] == ["tvd", "raw", "3", "0.26", "100", "0.52", "50", "0.286", "200"]


def test_show_names_the_objective_of_a_trials_own_task(search: Search, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/own.db"
    with open_store(url) as store:
        studies.write_study(store)
    tasks = "{short: {space: {}, objective: {maximize: accuracy/raw}}, long: {space: {}}}"
    shared = "search: {objective: {minimize: tvd/bema}}"
    raw(url, f"UPDATE studies SET space = 'transfer: {{tasks: {tasks}}}\n{shared}'")
    raw(url, "UPDATE trials SET params = json_object('transfer.target', 'short') WHERE number = 3")
    raw(url, "UPDATE trials SET params = json_object('transfer.task', 'long') WHERE number = 4")
    assert "\naccuracy/raw 0.13\n" in search("show", "demo", "3", "--storage", "own.db").text
    assert "\ntvd/bema 0.14\n" in search("show", "demo", "4", "--storage", "own.db").text


def test_show_gives_programs_one_object_with_every_metric(search: Search) -> None:
    trial = search("show", "demo", "17", "--format", "json").json
    assert trial["config"] == studies.trial(17).config
    assert trial["draws"] == studies.trial(17).draws
    assert [(row["step"], row["variant"]) for row in trial["metrics"]] == [
        (50, "bema"),
        (50, "raw"),
        (100, "bema"),
        (100, "raw"),
    ]


def test_show_prints_an_error_on_one_line_without_what_steers_a_terminal(search: Search) -> None:
    text = search("show", "demo", str(studies.FAILED)).text
    assert "error: CUDA error [31mout of | memory <b>" in text
    assert "\x1b" not in text


def test_query_answers_a_select(search: Search) -> None:
    sql = "SELECT state, count(*) AS trials FROM trials GROUP BY state ORDER BY trials DESC, state LIMIT 2"
    assert search("query", sql, "--format", "csv").text == "state,trials\nfinished,13\nrunning,4\n"


def test_every_format_holds_the_same_table(search: Search) -> None:
    sql = "SELECT number, objective, error FROM trials WHERE number IN (0, 13) ORDER BY number"
    expected = [(0, 0.1, None), (13, None, "loss is not finite")]
    answers = {form: search("query", sql, "--format", form) for form in ("table", "csv", "json", "parquet", "md")}
    assert [tuple(row.values()) for row in answers["json"].json] == expected
    assert pl.read_parquet(io.BytesIO(answers["parquet"].out)).rows() == expected
    read = list(csv.reader(io.StringIO(answers["csv"].text)))
    assert read == [["number", "objective", "error"], ["0", "0.1", ""], ["13", "", "loss is not finite"]]
    assert answers["md"].text.splitlines()[1:] == [
        "| ---: | ---: | --- |",
        "| 0 | 0.1 |  |",
        "| 13 |  | loss is not finite |",
    ]
    assert (
        answers["table"].text == "number  objective  error\n     0        0.1\n    13             loss is not finite\n"
    )


def test_cells_escape_markdown_and_keep_their_line(search: Search) -> None:
    sql = f"SELECT error FROM trials WHERE number = {studies.FAILED}"
    assert search("query", sql, "--format", "md").text.splitlines()[2] == r"| CUDA error \[31mout of \| memory \<b> |"
    assert search("query", sql, "--format", "json").json == [{"error": studies.REASON}]


def test_cells_do_not_round_a_decay_to_one_and_show_bytes_as_hexadecimal(search: Search) -> None:
    text = search("query", "SELECT 0.99999998 AS a, 1.0 AS b, 123456.789 AS c, x'00ff' AS d").text
    assert rows(text)[1] == ["0.99999998", "1", "123457", "00ff"]


@pytest.mark.parametrize("ending", ["parquet", "csv", "json"])
def test_export_writes_trials_and_metrics(search: Search, tmp_path: Path, ending: str) -> None:
    search("export", "demo", "-o", f"out.{ending}")
    assert set(os.listdir(tmp_path)) == {f"out.{ending}", f"out.metrics.{ending}"}
    read = {"parquet": pl.read_parquet, "csv": pl.read_csv, "json": pl.read_json}[ending]
    trials, metrics = read(tmp_path / f"out.{ending}"), read(tmp_path / f"out.metrics.{ending}")
    assert trials["params.optimizer.learning_rate"].to_list() == [studies.rate(number) for number in range(20)]
    assert trials["params.model.scorer.n"].to_list() == [1.5 + n if n % 3 == 0 else None for n in range(20)]
    assert trials["params.task.length"].dtype == pl.Int64
    assert json.loads(trials["config"][4]) == studies.trial(4).config
    expected = {(n, step, name, variant, value) for n in range(20) for step in (50, 100, 200) if step < 200 or n < 16
                for name, variant, _, value in studies.metrics(n, step)}  # fmt: skip
    assert set(metrics.select("number", "step", "name", "variant", "value").rows()) == expected


def test_export_overwrites_only_when_forced(search: Search, tmp_path: Path) -> None:
    (tmp_path / "out.metrics.csv").write_text("mine")
    refused = search("export", "demo", "-o", "out.csv", status=2)
    assert "out.metrics.csv exists; overwrite it with --force" in refused.error
    assert os.listdir(tmp_path) == ["out.metrics.csv"]
    search("export", "demo", "-o", "out.csv", "--force")
    assert (tmp_path / "out.metrics.csv").read_text().startswith("number,step")


def test_export_that_fails_leaves_nothing_behind(
    search: Search, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("graft.stored.export.write_batches", refuse)
    refused = search("export", "demo", "-o", "out.csv", status=2)
    assert refused.error == "error: out.csv cannot be written: No space left on device\n"
    assert os.listdir(tmp_path) == []


def test_a_study_without_trials_is_shown_by_every_command(search: Search, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/empty.db"
    with open_store(url) as store:
        store.create_study(NewStudy(
            "new", space="", space_hash="", objective=studies.OBJECTIVE, seed=0, trials=5, version="0", numerics=1
        ))  # fmt: skip
    assert "0 of 5 ended: 5 not started" in search("status", "new", "--storage", url).text
    assert search("status", "new", "--storage", url, "--format", "json").json[0]["best"] is None
    assert search("trials", "new", "--storage", url, "--format", "json").json == []
    assert rows(search("studies", "--storage", url).text)[1][:3] == ["new", "stopped", "0"]
    assert "it has none yet" in search("show", "new", "0", "--storage", url, status=2).error
    search("export", "new", "-o", "new.parquet", "--storage", url)
    assert pl.read_parquet(tmp_path / "new.parquet").is_empty()


def test_the_same_commands_read_each_kind_of_database(search: Search, url: str) -> None:
    with studies.running(url):
        [row] = search("status", "demo", "--storage", url, "--format", "json").json
        assert (row["state"], row["ended"], row["steps"], row["running"]) == ("running", 16, 3600, 4)
        assert row["trials_per_minute"] > 0
        assert row["steps_per_second"] > 0
        assert (
            len(search("trials", "demo", "--storage", url, "--where", "params.model.scorer = 'ssa'").text.splitlines())
            == 8
        )
        assert search("show", "demo", "3", "--storage", url, "--format", "json").json["seed"] == 1003
        assert search("studies", "--storage", url, "--format", "json").json[0]["best_number"] == 0


PARAMS = "SELECT params FROM trials ORDER BY number"
BAD: dict[str, tuple[tuple[str, ...], str]] = {
    "unknown study": (("status", "nope"), "study 'nope' does not exist; there are demo"),
    "number out of range": (("show", "demo", "20"), "study 'demo' has no trial 20; the highest is 19"),
    "number beyond any integer": (("show", "demo", "9" * 40), "should be less than or equal to 9007199254740992"),
    "condition that is no SQL": (("trials", "demo", "--where", "objective <"), "syntax error"),
    "unknown column": (("trials", "demo", "--sort", "objektive"), "no such column: objektive"),
    "statement that writes": (("query", "DELETE FROM trials"), "only SELECT is allowed here"),
    "two statements": (("query", "SELECT 1; SELECT 2"), "only one statement"),
    "empty query": (("query", " "), "write one SELECT"),
    "unknown format": (("trials", "demo", "--format", "xml"), "'xml' must be one of table, csv, json, parquet, md"),
    "format that cannot nest": (("show", "demo", "1", "--format", "csv"), "'csv' must be one of table, json"),
    "watch for programs": (("status", "demo", "--watch", "--format", "json"), "leave out --format json"),
    "no database": (("studies", "--storage", "none.db"), "there is no such database"),
    "not a database": (("studies", "--storage", __file__), "not a Graft database"),
    "database of another kind": (("studies", "--storage", "mysql://host/db"), "not supported"),
    "unknown ending": (("export", "demo", "-o", "out.xlsx"), "the ending must be one of .parquet, .csv, .json"),
    "export without a folder": (("export", "demo", "-o", "no/out.csv"), "the folder no does not exist"),
    "export of an unknown study": (("export", "nope", "-o", "out.csv"), "study 'nope' does not exist"),
    "report of an unknown ending": (("report", "study", "demo", "-o", "out.pdf"), "must be one of .html, .md"),
    "report without a folder": (("report", "study", "demo", "-o", "no/out.md"), "the folder no does not exist"),
    "no such space": (("space", "describe", "nope"), "'nope' is no packaged space"),
    "value of no number": (("show", "demo", "x"), "Invalid value for 'N': 'x' should be a valid integer"),
    "value out of range": (("trials", "demo", "--top", "0"), "'0' should be greater than or equal to 1"),
    "value beyond any integer": (("trials", "demo", "--top", "9" * 40), "should be less than or equal to 1000000000"),
    "command almost known": (("lauch",), "No such command 'lauch'. Did you mean 'launch'? See `search --help`"),
    "database in memory": (("studies", "--storage", ":memory:"), "needs a file that outlives the process"),
    "database that is a device": (("studies", "--storage", "/dev/null"), "/dev/null is a device or a pipe"),
    "address without a port": (("serve", "--http", "nope"), "--http nope: write ADDRESS:PORT"),
    "copy of an unknown study": (("db", "copy", "{demo}", "new.db", "--study", "x"), "study 'x' does not exist"),
    "name of no plug-in": (("plugin", "new", "task", "copy.py"), "Python or Graft has a module 'copy' of its own"),
    "unknown family": (("list", "plants"), "'plants' must be one of tasks, models"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_status_two(search: Search, case: str, demo: Path, tmp_path: Path) -> None:
    arguments, words = BAD[case]
    answer = search(*(argument.format(demo=demo) for argument in arguments), status=2)
    assert words in answer.error
    assert answer.error.startswith("error: ")
    assert answer.error.count("\n") == 1
    assert answer.out == b""
    assert not list(tmp_path.iterdir())


def test_a_group_without_a_command_shows_its_commands(search: Search) -> None:
    answer = search("db", status=2)
    assert answer.error == "error: search db needs a command, one of upgrade, check, backup, copy\n"
    assert "Usage: search db" in answer.text


def test_a_circle_of_links_is_no_database_and_no_plug_in(search: Search, tmp_path: Path) -> None:
    for name in ("loop.db", "loop.py"):
        (tmp_path / name).symlink_to(name)
    assert "links go in a circle" in search("studies", "--storage", "loop.db", status=2).error
    assert "plug-in 'loop.py'" in search("list", "scorers", "--plugins", "loop.py", status=2).error


def test_a_param_has_its_name_with_dots_in_a_query(search: Search) -> None:
    """The key of a dotted name, which SQLite 3.40 takes for a path where it is not quoted."""
    written = [json.loads(row["params"])["model.scorer"] for row in search("query", PARAMS, "--format", "json").json]
    asked = "SELECT params->>'model.scorer' AS a, params -> 'model.scorer' AS b FROM trials ORDER BY number"
    records = search("query", asked, "--format", "json").json
    assert [row["a"] for row in records] == written
    assert [json.loads(row["b"]) for row in records] == written
    others = """SELECT '{"a": {"b.c": 7}}'->'a'->>'b.c' AS a, '{"a": {"b": 2}}'->>'$.a.b' AS b, '[5, 6]'->>1 AS c"""
    assert search("query", others, "--format", "json").json == [{"a": 7, "b": 2, "c": 6}]


def test_export_into_a_folder_is_refused(search: Search, tmp_path: Path) -> None:
    (tmp_path / "out.csv").mkdir()
    assert "out.csv is a folder" in search("export", "demo", "-o", "out.csv", "--force", status=2).error


def test_storage_is_a_url_or_a_path_or_the_default() -> None:
    assert storage_url(None) == f"sqlite:///{Path.cwd()}/graft.db"
    assert storage_url("runs/a.db") == storage_url("sqlite:///runs/a.db") == f"sqlite:///{Path.cwd()}/runs/a.db"
    assert storage_url("/runs/a.db") == "sqlite:////runs/a.db"
    assert storage_url("postgresql://host/db") == "postgresql://host/db"


def test_a_database_is_named_without_its_password() -> None:
    assert database_name("postgresql://me:secret@host/db?password=secret").count("secret") == 0


def test_space_check_goes_through_all_files_and_names_each_fault(search: Search, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("study: bad\n")
    answer = search("space", "check", "bad.yaml", "quick/set_complement", "none.yaml", status=2)
    assert answer.text.startswith("quick/set_complement: good; quick-set-complement: ")
    assert [line.split(":")[:2] for line in answer.error.splitlines()] == [
        ["error", " bad.yaml"],
        ["error", " none.yaml"],
    ]
    assert search("space", "check", "set_complement").error == ""


def test_space_describe_says_what_is_drawn_for_whom(search: Search) -> None:
    text = search("space", "describe", "set_complement").text
    assert "260,000 trials in 260 groups of up to 1,000" in text
    assert "10,000,000 steps each, 1,000 validations every 10,000, minimize tvd/bema" in text
    described = {row["path"]: row for row in search("space", "describe", "set_complement", "--format", "json").json}
    assert described["group.key_width"] == {
        "path": "group.key_width",
        "value": "floor(uniform(1, $width))",
        "drawn": "per group",
        "range": "[1, $width)",
        "condition": None,
    }
    assert described["optimizer.learning_rate"]["drawn"] == "per trial"
    assert described["training.batch"]["drawn"] is None


def test_space_describe_shows_conditions_where_there_are_any(search: Search, tmp_path: Path) -> None:
    (tmp_path / "choice.yaml").write_text(CHOICE)
    text = search("space", "describe", "choice.yaml").text
    assert "2 groups of up to 3" in text
    assert "floor(uniform(10, 20)) steps each, validated every 5" in text
    conditional = [line.split() for line in text.splitlines() if line.startswith("optimizer.schedule.end_multiplier")]
    assert conditional[0][-1] == "optimizer.schedule=linear"


def test_space_sample_gives_the_trials_that_a_launch_starts(search: Search, tmp_path: Path) -> None:
    (tmp_path / "choice.yaml").write_text(CHOICE)
    whole = search("space", "sample", "choice.yaml", "-n", "100", "--format", "json").json
    assert [trial["number"] for trial in whole] == [0, 1, 2, 3, 4]
    assert [trial["group"] for trial in whole] == [0, 0, 0, 1, 1]
    spread = search("space", "sample", "choice.yaml", "-n", "2", "--format", "json").json
    assert spread == [whole[0], whole[2]]
    assert whole[0]["config"]["task"] == {"name": "set_complement", "length": 3, "vocabulary": 6}
    other = search("space", "sample", "choice.yaml", "-n", "2", "--seed", "5", "--format", "json").json
    assert other[0]["params"] != whole[0]["params"]
    flat = search("space", "sample", "choice.yaml", "-n", "2", "--format", "csv").text.splitlines()
    assert len(flat) == 3
    table = rows(search("space", "sample", "choice.yaml", "-n", "2").text)
    assert table[0] == ["trial", "0", "trial", "2"]
    assert ["training.steps", *(str(trial["params"]["training.steps"]) for trial in spread)] in table


CHOICE = """
# One choice with a draw under it.
study: choice
task: {name: set_complement, length: 3, vocabulary: 6}
model: {name: minimal, width: 6, key_width: 2, value_width: 5}
optimizer:
  name: adamw
  learning_rate: {log_uniform: [1.0e-4, 0.1]}
  schedule: {choice: [constant, {linear: {end_multiplier: uniform(0, 1)}}]}
training: {steps: "floor(uniform(10, 20))", validate_every: 5}
search: {trials: 5, group: 3, objective: {minimize: tvd/raw}}
"""


def test_space_list_names_the_packaged_spaces(search: Search) -> None:
    listed = {row["name"]: row["about"] for row in search("space", "list", "--format", "json").json}
    assert {"set_complement", "quick/set_complement"} <= listed.keys()
    assert all(listed.values())


def is_checked_slowly(name: str) -> bool:
    """Whether the check of a packaged space takes seconds, or half a minute: many shapes, a corpus made into tokens."""
    slow = r"corpus:|space: language/|max_retrieval|othello"
    return name.startswith("in_context/") or ("quick/" not in name and bool(re.search(slow, catalogue.read_text(name))))


@pytest.mark.sampled(12, 40)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.long] * is_checked_slowly(name)) for name in spaces.packaged_spaces()],
)
def test_every_packaged_space_passes_its_check(search: Search, name: str) -> None:
    search("space", "check", name)


FAMILIES = (
    *("tasks", "models", "scorers", "activations", "positions"),
    *("optimizers", "schedules", "averaging", "samplers", "stopping", "diagnostics", "corpora", "tokenizers"),
)


@pytest.mark.parametrize("family", FAMILIES)
def test_list_has_a_sentence_on_every_plugin(search: Search, family: str) -> None:
    listed = search("list", family, "--format", "json").json
    assert listed
    assert all(row["about"].endswith(".") and not row["about"].endswith(" .") for row in listed), listed


def test_list_says_each_fields_rule_and_default(search: Search) -> None:
    fields = {
        row["field"]: (row["rule"], row["default"]) for row in search("list", "optimizers", "--format", "json").json
    }
    assert fields["beta2"] == ("a number in [0, 1)", "0.999")
    assert fields["schedule"] == (f"schedule: one of {', '.join(names(Schedule))}", "linear")
    (vocabulary,) = (row for row in search("list", "tasks", "--format", "json").json if row["field"] == "vocabulary")
    assert vocabulary["default"] == "required"
    lines = search("list", "schedules").text.splitlines()
    assert lines[0].startswith("constant: ")
    assert any(line.split()[:4] == ["warmup", "an", "integer", ">="] for line in lines)


@pytest.mark.long
@pytest.mark.parametrize("ending", ["html", "md"])
def test_report_writes_a_page(search: Search, tmp_path: Path, ending: str) -> None:
    search("report", "study", "demo", "-o", f"page.{ending}")
    page = (tmp_path / f"page.{ending}").read_text()
    assert "demo" in page
    if ending == "html":
        html.parser.HTMLParser().feed(page)
    refused = search("report", "study", "demo", "-o", f"page.{ending}", status=2)
    assert "--force" in refused.error


PROGRAM = "from cli.main import main; main()"


@pytest.mark.long
def test_commands_that_look_never_import_torch(demo: Path, tmp_path: Path) -> None:
    code = """
import sys
from cli.main import app
for arguments in (["studies"], ["status", "demo"], ["trials", "demo"], ["show", "demo", "1"], ["query", "SELECT 1"],
                  ["export", "demo", "-o", sys.argv[1]], ["space", "list"]):
    app(arguments, standalone_mode=False)
heavy = {"torch", "optuna", "ray", "scipy", "matplotlib"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "out.csv")],
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "SEARCH_STORAGE": str(demo)},
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "unused"),
    [
        (["--help"], ["numpy", "polars", "pydantic", "sqlalchemy", "torch", "yaml"]),
        (
            ["space", "check", "quick/set_complement"],
            ["matplotlib", "optuna", "polars", "scipy", "sqlalchemy", "sympy"],
        ),
        (["launch", "quick/set_complement", "--dry-run"], ["alembic", "matplotlib", "optuna", "ray", "scipy"]),
    ],
)
def test_a_command_imports_no_library_that_it_does_not_use(
    arguments: list[str], unused: list[str], tmp_path: Path
) -> None:
    """Each of them takes a tenth of a second or more, of the one to four that these commands take."""
    code = f"""
import sys
from cli.main import main
sys.argv = ["search", *{arguments!r}]
try:
    main()
except SystemExit as end:
    assert not end.code
found = sorted(set(sys.modules) & set({unused!r}))
assert not found, found
"""
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL, cwd=tmp_path)


def on_terminal(demo: Path, *arguments: str, columns: int) -> tuple[int, str, str]:
    """Status, stdout and stderr of the program when its stdout is a terminal of that width."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        stdout=theirs,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "SEARCH_STORAGE": str(demo), "COLUMNS": str(columns), "TERM": "xterm"},
    )
    os.close(theirs)
    seen = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # how Linux says that the other side has closed
            break
        if not part:
            break
        seen += part
    os.close(ours)
    error = process.communicate(timeout=240)[1]
    return process.returncode, re.sub(r"\x1b\[\d*m", "", seen.decode()), error


@pytest.mark.long
def test_a_terminal_gets_the_columns_that_fit_and_hears_of_the_others(demo: Path) -> None:
    status, out, error = on_terminal(demo, "trials", "demo", "--top", "2", columns=62)
    assert status == 0
    lines = [line.rstrip() for line in out.splitlines()]
    assert lines[0].split() == ["number", "group", "state", "steps", "objective", "learning_rate"]
    assert lines[2].split() == ["0", "0", "finished", "200", "0.1", "0.001"]
    assert max(map(len, lines)) <= 62
    assert error == "2 more columns: scorer, n\norder: best first, minimize tvd/bema\n"


@pytest.mark.long
def test_a_terminal_is_not_sent_parquet(demo: Path) -> None:
    status, out, error = on_terminal(demo, "studies", "--format", "parquet", columns=80)
    assert (status, out) == (2, "")
    assert error.startswith("error: --format parquet is not for terminals")
    assert error.count("\n") == 1


@pytest.mark.long
@pytest.mark.parametrize("words", ["trials demo --format table", "trials demo --format csv", "--version", "--help"])
def test_a_full_disk_behind_stdout_is_one_line(demo: Path, words: str) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *words.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "SEARCH_STORAGE": str(demo)},
        )
    assert (done.returncode, done.stderr) == (2, "error: stdout cannot be written: No space left on device\n")


@pytest.mark.long
@pytest.mark.parametrize("form", ["table", "csv"])
def test_a_reader_that_leaves_and_a_stdout_that_is_closed_are_no_errors(demo: Path, form: str) -> None:
    environment = {**os.environ, "SEARCH_STORAGE": str(demo)}
    command = f"{sys.executable} -c '{PROGRAM}' trials demo --format {form}"
    for shell in (f"{command} >&-", f"exec 3>&1; {{ {command}; }} | exec 1>&-"):
        done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, env=environment)
        assert (done.stdout, done.stderr) == ("", ""), shell


def test_a_file_that_could_not_be_written_is_not_left(tmp_path: Path) -> None:
    def write_half(path: Path) -> None:
        with writing(path):
            path.write_text("half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "old").write_text("old")
    for name, left in (("new", False), ("old", True)):
        with pytest.raises(OutputError, match=f"{name} cannot be written: No space left"):
            write_half(tmp_path / name)
        assert (tmp_path / name).exists() == left
