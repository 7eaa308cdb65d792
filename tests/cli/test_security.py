"""What must not happen: writing through a query, a password that shows, a page or a terminal that a text steers."""

from __future__ import annotations

import re
import time
import traceback
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from graft.report.study import render
from spaces.errors import GraftError, StorageError, StudyError
from spaces.records import TrialResult
from storage import open_reader, open_store
from storage.frames import Reader
from tests.support import report
from tests.support.databases import Server, controlled, make_report, make_trial, new_study, raw
from tests.support.inside import called
from tests.support.launches import SPACE
from tests.support.launches import search as launched

TABLES = ("studies", "architectures", "trials", "metrics", "workers")
ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) "

Search = Callable[..., tuple[int, str]]


@pytest.fixture
def search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Search:
    """Run the program in an empty folder; its status, and all that it wrote."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SEARCH_STORAGE", raising=False)

    def run(*arguments: str) -> tuple[int, str]:
        code, out, error = called(monkeypatch, capfd, *arguments)
        return code, out + error

    return run


@pytest.fixture
def filled(url: str) -> str:
    with controlled(url) as study:
        study.start([make_trial(n) for n in range(3)], "w")
        study.record([make_report(n, 10) for n in range(3)])
    return url


@pytest.fixture
def reader(filled: str) -> Iterator[Reader]:
    with open_reader(filled, 5) as reader:
        yield reader


def everything(url: str) -> list[Any]:
    return [sorted(map(repr, raw(url, f"SELECT * FROM {table}"))) for table in TABLES]


# --- query is read-only

ACTING = {
    "sqlite": (
        "PRAGMA writable_schema = ON",
        "PRAGMA journal_mode = DELETE",
        "PRAGMA user_version = 5",
        "ATTACH '{place}' AS other",
        "VACUUM INTO '{place}'",
        "SELECT load_extension('{place}')",
        "SELECT writefile('{place}', 'x')",
        "SELECT fts3_tokenizer('simple')",
        "CREATE TEMP TABLE t (i)",
        "CREATE VIRTUAL TABLE t USING fts5(a)",
        "EXPLAIN DELETE FROM metrics",
        "REINDEX",
        "BEGIN IMMEDIATE",
    ),
    "postgresql": (
        "COPY (SELECT 1) TO PROGRAM 'touch {place}'",
        "COPY (SELECT 1) TO '{place}'",
        "COPY trials TO STDOUT",
        "COPY trials FROM STDIN",
        "DO $$ BEGIN EXECUTE 'COPY (SELECT 1) TO PROGRAM ''touch {place}'''; END $$",
        "SELECT pg_read_file('/etc/passwd')",
        "SELECT pg_read_binary_file('/etc/passwd')",
        "SELECT pg_ls_dir('/')",
        "SELECT lo_import('/etc/passwd')",
        "SELECT lo_export(1, '{place}')",
        "SELECT lo_from_bytea(0, 'x')",
        "SELECT set_config('transaction_read_only', 'off', true)",
        "SELECT set_config('role', 'none', true), pg_read_file('/etc/passwd')",
        "SELECT U&\"set\\005fconfig\"('role', 'none', true)",
        "SELECT query_to_xml('SELECT pg_read_file(''/etc/passwd'')', true, true, '')",
        "SELECT * FROM ts_stat('SELECT 1')",
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity",
        "SELECT pg_reload_conf()",
        "SELECT pg_advisory_lock(1)",
        "SELECT pg_notify('a', 'b')",
        "SELECT nextval('studies_id_seq')",
        "SELECT setval('studies_id_seq', 99)",
        "SELECT 1 INTO TEMP t",
        "SELECT * FROM trials FOR UPDATE",
        "LOCK TABLE trials IN ACCESS EXCLUSIVE MODE",
        "SET TRANSACTION READ WRITE",
        "SET statement_timeout = 0",
        "BEGIN READ WRITE",
        "CALL theirs()",
        "CHECKPOINT",
        "VACUUM",
        "LISTEN a",
        "EXPLAIN ANALYZE DELETE FROM metrics",
        "PREPARE p AS DELETE FROM metrics",
    ),
}
EVERYWHERE = (
    "DELETE FROM metrics",
    "INSERT INTO studies SELECT * FROM studies",
    "WITH gone AS (DELETE FROM metrics RETURNING 1) SELECT * FROM gone",
    "SELECT 1; DELETE FROM metrics",
    "SELECT 1; COMMIT; DELETE FROM metrics",
    "; DELETE FROM metrics",
    "TRUNCATE metrics",
    "ALTER TABLE metrics RENAME TO gone",
    "CREATE TABLE t (i int)",
    "ROLLBACK; DROP TABLE metrics",
)


def test_nothing_that_acts_can_be_sent_as_a_query(filled: str, reader: Reader, tmp_path: Path):
    before = everything(filled)
    path = tmp_path / "made"
    tmp_path.chmod(0o777)
    for statement in (*EVERYWHERE, *ACTING[filled.partition(":")[0]]):
        with pytest.raises(StorageError) as caught:
            reader.query(statement.replace("{place}", str(path)))
        assert "\n" not in str(caught.value)
        assert reader.query("SELECT count(*) AS n FROM metrics")["n"].to_list() == [6], statement
    assert everything(filled) == before
    assert not path.exists()


def test_a_condition_cannot_act_either(filled: str, reader: Reader):
    before = everything(filled)
    for statement in EVERYWHERE:
        for condition in (f"1 = 1); {statement}; --", f"1 = 1) ; {statement} /*", statement):
            with pytest.raises(StorageError):
                reader.study("study").trials(where=condition)
            with pytest.raises(StorageError):
                reader.study("study").trials(sort=condition)
    assert everything(filled) == before


def test_a_query_still_answers_what_it_should(reader: Reader):
    assert reader.query("SELECT count(*) AS n FROM trials")["n"].to_list() == [3]
    assert reader.query("WITH a AS (SELECT number FROM trials) SELECT max(number) AS m FROM a")["m"].to_list() == [2]
    assert reader.query("VALUES (1, 2)").rows() == [(1, 2)]
    assert reader.query(ENDLESS + "SELECT x FROM c LIMIT 5000").height == 5000
    assert reader.query("SELECT number FROM trials WHERE number > 7").rows() == []


def test_what_never_ends_is_ended(filled: str, search: Search):
    started = time.monotonic()
    with (
        open_reader(filled, 0.3) as reader,
        pytest.raises(StorageError, match="took longer than it may; ask for less"),
    ):
        reader.query(ENDLESS + "SELECT count(*) AS n FROM c")
    code, said = search("query", ENDLESS + "SELECT max(x) AS m FROM c", "--seconds", "0.3", "--storage", filled)
    assert (code, said.count("\n")) == (2, 1)
    assert time.monotonic() - started < 30


def test_an_endless_condition_is_ended(filled: str, search: Search, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("cli.commands.queries.SECONDS", 0.3)
    where = f"number = ({ENDLESS} SELECT count(*) FROM c)"
    code, said = search("trials", "study", "--where", where, "--storage", filled)
    assert code == 2
    assert "took longer than it may" in said


def test_an_answer_larger_than_its_limit_is_refused_before_it_is_held(reader: Reader, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("storage.frames.answers.LARGEST_ANSWER", 1 << 20)
    with pytest.raises(StorageError, match="the answer has more than 1 MiB; add a LIMIT"):
        reader.query(ENDLESS + "SELECT x FROM c")
    fifty = "replace('abcdefghij', 'j', '0123456789012345678901234567890123456789')"
    with pytest.raises(StorageError, match="more than 1 MiB"):
        reader.query(ENDLESS + f"SELECT {fifty} AS text FROM c")
    assert reader.query(ENDLESS + "SELECT x FROM c LIMIT 5000").height == 5000


@pytest.mark.parametrize("sql", ["zeroblob(1000000000)", "hex(zeroblob(400000000))", "printf('%*d', 90000000, 1)"])
def test_a_value_of_a_gigabyte_is_not_made(tmp_path: Path, sql: str):
    url = f"sqlite:///{tmp_path}/graft.db"
    open_store(url).close()
    with open_reader(url) as reader:
        try:
            assert reader.query(f"SELECT {sql} AS v")["v"].to_list() == [None]  # printf gives up in silence
        except StorageError as error:
            assert "a value has more than" in str(error)  # noqa: PT017


@pytest.mark.parametrize(
    "sql", ["SELECT '\udcff'", "SELECT 1 AS \ud800", "SELECT '\x00'", "", ";", "--", "(", "$1", "?"]
)
def test_odd_characters_in_a_query_are_told_of_in_one_line(filled: str, search: Search, sql: str):
    code, said = search("query", sql, "--storage", filled)
    assert code == 2
    assert said.startswith("error: ")
    assert said.count("\n") == 1


# --- passwords

SECRET = "p@ss/w:rd?#%25 'ä"
QUOTED = "p%40ss%2Fw%3Ard%3F%23%2525%20%27%C3%A4"
PIECES = ("p@ss", "w:rd", "p%40", "%2Fw", "rd%3F", "%2525")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("debug", [(), ("--debug",)])
@pytest.mark.parametrize(
    "address",
    [
        f"postgresql://me:{QUOTED}@127.0.0.1:1/db",
        f"postgresql://me:{QUOTED}@127.0.0.1:1/db?sslmode=nonsense&options={QUOTED}",
        f"postgresql://me@127.0.0.1:1/db?password={QUOTED}",
        f"postgresql://me:{QUOTED}@127.0.0.1:port/db",
        f"postgresql://me:{QUOTED}@[::1/db",
        f"postgresql+asyncpg://me:{QUOTED}@127.0.0.1:1/db",
        f"mysql://me:{QUOTED}@h/db",
        f"sqlite://me:{QUOTED}@h/db",
        "postgresql://me:p@ss/w:rd@127.0.0.1:1/db",
        "postgresql://me:p@ss@127.0.0.1:1/db",
        "me:p@ss/w:rd@h/db",
        "me:w:rd@h",
    ],
)
def test_a_password_is_never_shown(
    search: Search, capfd: pytest.CaptureFixture[str], debug: tuple[str, ...], address: str
):
    for command in (("status", "x"), ("launch", SPACE, "--trials", "1"), ("db", "check"), ("db", "upgrade")):
        if debug:
            with pytest.raises(GraftError) as caught:
                search(*debug, *command, "--storage", address)
            said = "".join(traceback.format_exception(caught.value)) + "".join(capfd.readouterr())
        else:
            code, said = search(*command, "--storage", address)
            assert code == 2
        assert not [piece for piece in PIECES if piece in said], said


@pytest.mark.long
def test_a_password_is_not_stored_and_not_told_to_the_server(postgres: Server, tmp_path: Path):
    with postgres.database() as address:
        url = address.replace("graft@", f"graft:{QUOTED}@")
        lines = launched(tmp_path, "launch", SPACE, "--trials", "2", "--workers", "1", "--storage", url)
        with open_store(url):
            [seen] = raw(address, "SELECT string_agg(application_name || query, ' ') FROM pg_stat_activity")
        written = repr((everything(address), lines, seen))
        assert "finished" in written
        assert not [piece for piece in (*PIECES, SECRET) if piece in written]


# --- pages, files and terminals

NASTY = (
    "\"'><img src=x onerror=alert(1)>",
    "]]><script>alert(1)</script>",
    "--><script>alert(1)</script><!--",
    "</title></style></svg><script>alert(1)</script>",
    "&lt;script&gt; &#0; javascript:alert(1)",
    "{title} {style} {body} %s $\\frac{1}{0}$ \\input{x}",
    "a\x00\x01\x07\x1b[31mred\x85b\ufffe\uffff",
    "\u202eright to left\u2028",
    "x" * 600,
)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("text", NASTY)
@pytest.mark.filterwarnings("ignore:Glyph:UserWarning")
def test_a_report_of_hostile_texts_is_a_whole_page_in_which_nothing_acts(tmp_path: Path, text: str):
    page = report.html(report.evil_study(text), tmp_path)
    report.assert_inert(page)
    written = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ufffe\uffff]", written)
    for figure in re.findall(r"<svg.*?</svg>", written, flags=re.DOTALL):
        ElementTree.fromstring(figure)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("text", NASTY)
@pytest.mark.filterwarnings("ignore:Glyph:UserWarning")
def test_figures_beside_a_markdown_report_are_xml_without_script(tmp_path: Path, text: str):
    render(report.evil_study(text), tmp_path / "page.md")
    assert not re.search(r"(?<!\\)<|\x1b|\x00", (tmp_path / "page.md").read_text(encoding="utf-8"))
    figures = list(tmp_path.glob("*.svg"))
    assert figures
    for path in figures:
        assert "script" not in {element.tag.rpartition("}")[2] for element in ElementTree.parse(path).iter()}


@pytest.mark.parametrize("name", ["", " ", "a b", "a\nb", "../x", "<b>", "\x1b[31m", "\ud800", "é", "-x", "x" * 101])
def test_a_study_has_a_name_that_can_stand_anywhere(url: str, name: str):
    with open_store(url) as store, pytest.raises(StudyError, match="must be a word of letters, digits"):
        new_study(store, name)


def test_the_name_of_a_launched_study_is_checked(search: Search, tmp_path: Path):
    code, said = search("launch", SPACE, "--trials", "1", "--study", "a\nb")
    assert code == 2
    assert "must be a word of letters" in said


def test_an_error_of_any_text_can_be_stored(url: str):
    with controlled(url) as study:
        study.start([make_trial(0)], "w")
        study.end([TrialResult(number=0, fence=1, state="failed", objective=None, error="a\x00b \ud800 \x1b[31m")])
    assert raw(url, "SELECT error FROM trials") == [("a b \\ud800 \x1b[31m",)]


def test_an_error_message_does_not_steer_the_terminal(filled: str, search: Search):
    text = "\x1b[31mred\x9b0m\x07"
    for command in (("status", text), ("query", text), ("trials", "study", "--where", text), ("space", "check", text)):
        code, said = search(*command, "--storage", filled) if command[0] != "space" else search(*command)
        assert code == 2
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", said)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("training.batch=2_147_483_647", "a pack of this space does not fit into the memory of cpu: "),
        ("training.batch=1e300", "must be an integer >= 1, at most 2,147,483,647"),
        ("search.trials=1e12", "must be an integer in [1, 1e+09]"),
        ("optimizer.learning_rate=1e12", None),  # all lanes diverge while they are timed
    ],
)
def test_an_estimate_of_what_no_machine_can_train_is_one_line(search: Search, setting: str, words: str | None):
    code, said = search("launch", SPACE, "--dry-run", "--device", "cpu", "--pack", "2", "--set", setting)
    assert code == (2 if words else 0), said
    assert (words or "model-steps/s") in said
    assert list(Path.cwd().iterdir()) == []
