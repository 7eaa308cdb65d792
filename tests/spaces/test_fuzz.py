"""Hostile and random input: an answer or one line, soon, in little memory, and nothing else on the disk."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spaces.bounds import LARGEST_COUNT, LARGEST_SIZE
from spaces.errors import GraftError, PluginError, SpaceError, StorageError
from spaces.grammar.expressions import compile_expression
from spaces.grammar.formulas import LanguageError, Scope
from spaces.plugins.rules import Rule
from spaces.settings import Search
from storage import open_reader
from storage.frames import Reader
from tests.support import studies
from tests.support.databases import Server
from tests.support.expressions import a_site
from tests.support.spaces import CONDITIONAL, parse

ROOT = Path(__file__).parents[2]

# --- bombs: each in a process that may hold 1 GiB, all of them together within a minute

BOMBS = """
import resource, sys, time

resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
from spaces.errors import GraftError
from tests.support.spaces import parse

laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x]\\n"
laughs += "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\\n" for i in range(1, 30))
bombs = {
    "laughs": laughs,
    "cycle": "&a [*a]",
    "cycle of mappings": "study: &a {x: *a}",
    "merge": "<<: &a {<<: *a}",
    "open lists": "[" * 500_000,
    "lists": "a: " + "[" * 400_000 + "]" * 400_000,
    "open mappings": "{a: " * 200_000,
    "dashes": "- " * 400_000,
    "questions": "? " * 400_000,
    "stairs": "\\n".join(" " * i + "a:" for i in range(1400)),
    "keys": "\\n".join(f"k{i}: 1" for i in range(90_000)),
    "items": "[" + "1," * 500_000 + "]",
    "mappings": "- a: 1\\n" * 100_000,
    "aliases": "- &a 1\\n" + "- *a\\n" * 200_000,
    "open calls": "[" + "(," * 300_000 + "]",
    "a call": "{a: f(" + "1," * 400_000,
    "scalar": "study: " + "x" * 1_000_000,
    "quotes": "'" * 1_000_000,
    "lines": "a: >\\n" + " \\n" * 400_000,
    "newlines": "\\n" * 1_000_000,
    "documents": "---\\n" * 250_000,
    "tag": "!!python/object/apply:os.system ['touch made']",
    "version": "%YAML 1." + "9" * 100_000 + "\\n--- a",
    "longer": "#" * 2_000_000,
}
for name, text in bombs.items():
    started = time.process_time()
    try:
        parse(text)
        print("taken", name)
    except GraftError as error:
        seconds = time.process_time() - started
        if "\\n" in str(error) or len(str(error)) > 1000 or seconds > 8:
            print("bad", name, f"{seconds:.1f}", len(str(error)))
print("done")
"""


@pytest.mark.long
def test_no_bomb_of_yaml_takes_long_or_much_memory(tmp_path: Path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", BOMBS], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr[-2000:]
    assert list(tmp_path.iterdir()) == []


# --- expressions

NUMBERS = (
    "10",
    "0",
    "-1",
    "0.5",
    "1e308",
    "5e-324",
    "1e999",
    "9" * 40,
    "0x1F",
    "１",
    "²",
    "nan",
    "inf",
    "1_0",
    "$a",
    "1j",
)
EXPRESSIONS = st.recursive(
    st.sampled_from(NUMBERS) | st.integers().map(str) | st.floats(allow_nan=False).map(repr),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%", "**"]), inner).map(" ".join),
        st.tuples(st.sampled_from(["floor", "exp", "sqrt", "log", "round", "abs", "relu", "ceil"]), inner).map(
            lambda call: f"{call[0]}({call[1]})"
        ),
        st.tuples(st.sampled_from(["uniform", "log_uniform", "int", "log_int", "choice", "min"]), inner, inner).map(
            lambda call: f"{call[0]}({call[1]}, {call[2]})"
        ),
        inner.map(lambda text: f"({text})"),
        inner.map(lambda text: f"-{text}"),
    ),
    max_leaves=12,
)


@pytest.mark.long
@settings(max_examples=400, deadline=5000)
@given(EXPRESSIONS, st.floats(0, 1, exclude_max=True))
def test_an_expression_of_any_numbers_is_finite_or_refused(text: str, u: float):
    try:
        value = compile_expression(text, a_site(names={"a": 3})).evaluate(Scope(lambda _: u, {}))
    except (LanguageError, ArithmeticError, ValueError):
        return
    assert math.isfinite(value)


TOWERS = (
    "10 ** 10 ** 10",
    "9**9**9**9**9",
    "2**" * 100 + "2",
    "10**10**10 % 7",
    "floor(10**308) ** 2",
    "(" * 240 + ")" * 240,
)


@pytest.mark.parametrize(
    "text", [*TOWERS, "-" * 499 + "1", "1" + "+1" * 249, "'a' * 10**9", "[0] * 10**9", "a" * 10**6]
)
def test_a_tower_is_refused_at_once(text: str):
    with pytest.raises(LanguageError) as caught:
        compile_expression(text, a_site(names={}))
    assert len(str(caught.value)) < 500


# --- numbers of a space: what torch and SQL can take

HOSTILE = (
    "1e300",
    "10**18",
    "2**63",
    "9223372036854775808",
    "9" * 30,
    "-1",
    "0",
    "nan",
    ".inf",
    "1e-320",
    "true",
    "null",
)
VALUES = st.sampled_from(
    [*HOSTILE, "''", "[]", "{}", "１", "uniform(0, 1e308)", "int(0, 10**15)", '"\\0"', "&a [*a]", "1_"]
)
PATHS = st.sampled_from(
    [
        "training.steps",
        "training.batch",
        "search.trials",
        "search.group",
        "search.seed",
        "task.length",
        "model.width",
        "model.dropout",
        "optimizer.learning_rate",
        "study",
        "search.objective",
        "group.length",
        "training",
        "x.y",
        "trial",
    ]
)


@pytest.mark.long
@settings(max_examples=400, deadline=5000)
@given(st.dictionaries(PATHS, VALUES | st.text(max_size=20), min_size=1, max_size=3))
def test_whatever_is_set_a_space_that_is_taken_draws_numbers_in_bounds(overrides: dict[str, str]):
    try:
        space = parse(CONDITIONAL, overrides)
        trial = space.sample(0, lambda draw: 0.999)
    except SpaceError as error:
        assert "\n" not in str(error)  # noqa: PT017
        assert len(str(error)) < 1200  # noqa: PT017
        return
    assert space.search.trials <= 10**9
    assert 1 <= trial.config["training"]["steps"] <= LARGEST_COUNT
    assert all(1 <= trial.config["training"][name] <= LARGEST_SIZE for name in ("batch", "validate_every"))
    assert 0 <= trial.seed < 2**63


@given(st.integers() | st.floats() | st.just(10**400))
def test_an_integer_of_a_space_fits_into_sql_and_torch(value: float):
    for rule, most in (
        (Rule(kind="size", integer=True), LARGEST_SIZE),
        (Rule(kind="knob", integer=True), LARGEST_COUNT),
    ):
        try:
            taken = rule.check("x", value)
        except PluginError as error:
            assert len(str(error)) < 300  # noqa: PT017
            assert value != value or abs(value) > most or value != int(value)
        else:
            assert isinstance(taken, int)
            assert abs(taken) <= most


def test_a_study_has_no_more_trials_than_ids():
    with pytest.raises(PluginError, match="must be an integer in"):
        Search.__dataclass_fields__["trials"].metadata["rule"].check("search.trials", 10**9 + 1)


# --- SQL of a person

WORDS = (
    "SELECT",
    "FROM",
    "trials",
    "metrics",
    "studies",
    "WHERE",
    "AND",
    "OR",
    "NOT",
    "NULL",
    "IN",
    "(",
    ")",
    ",",
    "=",
    "<",
    "1",
    "'a'",
    "''",
    "'",
    '"',
    "number",
    "objective",
    "params.optimizer.learning_rate",
    "params.",
    "params.x.y.z",
    "params.x'",
    "DESC",
    "NULLS LAST",
    "--",
    "/*",
    "*/",
    ";",
    "DELETE",
    "UPDATE",
    "SET",
    "DROP TABLE metrics",
    "ATTACH 'made' AS m",
    "VACUUM INTO 'made'",
    "PRAGMA",
    "writable_schema",
    "COPY",
    "TO 'made'",
    "UNION ALL",
    "WITH",
    "AS",
    "*",
    "%",
    "%s",
    "?",
    ":a",
    "$1",
    "\\",
    "é",
    "\x00",
    "\udcff",
    "\u202e",
    "1e999",
    "99999999999999999999",
    "x'ff'",
    "CASE WHEN",
    "END",
    "group by",
    "limit -1",
    "json_extract(params,'$')",
)
SOUP = st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join) | st.text(max_size=30)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Reader]]:
    folder = tmp_path_factory.mktemp("fuzz")
    with studies.running(f"sqlite:///{folder}/graft.db"), open_reader(f"sqlite:///{folder}/graft.db", 5) as reader:
        yield folder, reader


@pytest.fixture(scope="module")
def server_demo(postgres: Server) -> Iterator[Reader]:
    with postgres.database() as url, studies.running(url), open_reader(url, 5) as reader:
        yield reader


def metric_positions(reader: Reader) -> list[int]:
    """Rows of each table; and that the reader still answers."""
    tables = ("studies", "trials", "metrics", "workers", "architectures")
    return [reader.query(f"SELECT count(*) AS n FROM {table}")["n"].item() for table in tables]


def asked(reader: Reader, sql: str, other: str) -> None:
    for ask in (
        lambda: reader.query(sql),
        lambda: reader.query(f"SELECT {sql}"),
        lambda: reader.study("demo").trials(where=sql, sort=other or None),
        lambda: reader.study(sql).trials(),
    ):
        try:
            assert isinstance(ask(), pl.DataFrame)
        except GraftError as error:
            assert "\n" not in str(error)  # noqa: PT017
    assert metric_positions(reader) == [1, 20, 112, 1, 0]


FUZZED = settings(max_examples=100, deadline=20_000, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.long
@FUZZED
@given(sql=SOUP, other=SOUP)
def test_any_sql_is_answered_or_refused_by_sqlite(
    demo: tuple[Path, Reader], monkeypatch: pytest.MonkeyPatch, sql: str, other: str
):
    folder, reader = demo
    monkeypatch.chdir(folder)
    before = {path.name for path in folder.iterdir()}
    asked(reader, sql, other)
    assert {path.name for path in folder.iterdir()} == before


@pytest.mark.long
@FUZZED
@given(sql=SOUP, other=SOUP)
def test_any_sql_is_answered_or_refused_by_postgresql(server_demo: Reader, sql: str, other: str):
    asked(server_demo, sql, other)


# --- the address of a database

PARTS = st.sampled_from(
    ["postgresql", "sqlite", "mysql", "://", ":", "//", "/", "@", "me", "s3cret", "[", "]", "?", "%", "%zz", "#", "1"]
)


@settings(max_examples=300, deadline=5000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(PARTS, max_size=9).map("".join) | st.text(max_size=20))
def test_any_address_is_taken_or_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str):
    from cli.options import database_name, storage_url

    monkeypatch.chdir(tmp_path)
    try:
        database_name(storage_url(address))
    except GraftError as error:
        assert "\n" not in str(error)  # noqa: PT017
    assert list(tmp_path.iterdir()) == []


def test_a_reader_of_a_hostile_path_is_refused(tmp_path: Path):
    for path in ("/dev/null", "/dev/zero", "/proc/self/mem", f"{tmp_path}", "\x00"):
        with pytest.raises((StorageError, ValueError)):
            open_reader(f"sqlite:///{path}", 5)
