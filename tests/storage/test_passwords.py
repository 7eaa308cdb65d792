"""Where a database's password comes from: a file or the environment; from a URL it is taken with a warning."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spaces.errors import StorageError
from storage import has_password, open_store
from storage.databases import file_of, find_database
from storage.peeking import may_know_task
from tests.support.databases import Server
from tests.support.inside import called

WORD = "correct horse"
QUOTED = "correct%20horse"
VARIABLES = ("PGPASSFILE", "PGPASSWORD", "SEARCH_STORAGE")


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def guarded(postgres: Server) -> Iterator[str]:
    """Yield a database whose owner must give a password."""
    rules = postgres.folder / "data" / "pg_hba.conf"
    before = rules.read_text()
    postgres.execute(f"CREATE ROLE guarded LOGIN PASSWORD '{WORD}'")
    rules.write_text(f"local all guarded scram-sha-256\n{before}")
    postgres.execute("SELECT pg_reload_conf()")
    with postgres.database() as url:
        name = url.partition("@/")[2].partition("?")[0]
        postgres.execute(f"ALTER DATABASE {name} OWNER TO guarded")
        postgres.execute("GRANT ALL ON SCHEMA public TO guarded", name)
        yield url.replace("graft@", "guarded@")
    rules.write_text(before)
    postgres.execute("SELECT pg_reload_conf()")
    postgres.execute("DROP ROLE guarded")


def test_a_password_comes_from_a_file_or_the_environment(guarded: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(StorageError, match="no password supplied"):
        open_store(guarded)
    with monkeypatch.context() as patch:
        patch.setenv("PGPASSWORD", WORD)
        open_store(guarded).close()
        patch.setenv("PGPASSWORD", "another one")
        with pytest.raises(StorageError, match="password authentication failed") as caught:
            open_store(guarded)
        assert "another one" not in str(caught.value)
    file = tmp_path / "passwords"
    file.write_text(f"*:*:*:guarded:{WORD}\n")
    file.chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(file))
    open_store(guarded).close()


Search = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Search:
    """Run the program; its status, and its lines on stderr."""

    def run(*arguments: str) -> tuple[int, list[str]]:
        code, _, error = called(monkeypatch, capfd, *arguments)
        return code, error.splitlines()

    return run


@pytest.mark.parametrize("form", ["graft:{}@", "graft@?password={}"])
def test_a_password_in_a_url_of_the_command_line_is_warned_of_in_a_line_without_it(
    postgres: Server, search: Search, monkeypatch: pytest.MonkeyPatch, form: str
):
    with postgres.database() as url:
        open_store(url).close()
        plain = url
        if "?" in form:
            url += f"&password={QUOTED}"
        else:
            url = url.replace("graft@", f"graft:{QUOTED}@")
        code, lines = search("studies", "--storage", url)
        assert code == 0
        [line] = lines
        assert line.startswith("note: others can read a password in --storage in the list of processes; leave it out")
        assert "horse" not in line
        assert search("studies", "--storage", plain) == (0, [])
        monkeypatch.setenv("SEARCH_STORAGE", url)
        assert search("studies") == (0, []), "the environment is nobody else's"


def test_which_urls_hold_a_password():
    assert has_password("postgresql://me:secret@host/db")
    assert has_password("postgresql://me@host/db?password=secret")
    assert has_password("postgresql://me@host/db?sslpassword=secret")
    assert not has_password("postgresql://me@host/db?sslmode=require")
    assert not has_password("sqlite:///graft.db")


@pytest.mark.parametrize("name", ["run?lr=1.db", "me@corp.db", "100%25.db", "a b#c.db"])
def test_a_file_of_any_name_is_the_one_that_its_url_names(name: str, tmp_path: Path):
    url = f"sqlite:///{tmp_path / name}"
    assert find_database(url).name == file_of(url) == str(tmp_path / name)
    open_store(url).close()
    assert (tmp_path / name).is_file()
    assert may_know_task(url, "copying") is False


def test_a_url_with_a_query_is_refused_where_the_file_without_it_exists(tmp_path: Path):
    open_store(f"sqlite:///{tmp_path}/graft.db").close()
    with pytest.raises(StorageError, match=r"there is no .*graft.db\?timeout=30, but .*graft.db: "):
        open_store(f"sqlite:///{tmp_path}/graft.db?timeout=30")
