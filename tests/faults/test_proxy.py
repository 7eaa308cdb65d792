"""The proxy before PostgreSQL does to a connection what it is told, and the server's own account says so."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psycopg
import pytest

from tests.support.databases import Server
from tests.support.faults.proxy import Loss, Proxy

Connection = psycopg.Connection[tuple[int, ...]]


@pytest.fixture
def proxy(postgres: Server) -> Iterator[Proxy]:
    with Proxy(postgres.folder / ".s.PGSQL.5432") as proxy:
        postgres.execute("CREATE TABLE seen (word text)")
        yield proxy
        postgres.execute("DROP TABLE seen")


def connected(proxy: Proxy) -> Connection:
    return psycopg.connect(f"host=127.0.0.1 port={proxy.port} user=graft dbname=postgres connect_timeout=2")


def words(postgres: Server) -> set[str]:
    """Return what is committed, asked past the proxy."""
    with psycopg.connect(f"host={postgres.folder} user=graft dbname=postgres") as connection:
        return {word for (word,) in connection.execute("SELECT word FROM seen")}


def write(connection: Connection, word: str) -> None:
    connection.execute("INSERT INTO seen VALUES (%s)", (word,))
    connection.commit()


def test_what_passes_is_left_as_it_is(postgres: Server, proxy: Proxy) -> None:
    long = "COMMIT" * 100_000
    with connected(proxy) as connection:
        write(connection, long)
        assert connection.execute("SELECT word FROM seen").fetchall() == [(long,)]
    assert words(postgres) == {long}


@pytest.mark.parametrize(("loss", "kept"), [("answer", {"first", "second"}), ("request", {"first"})])
def test_a_lost_commit_is_on_the_server_or_not_and_the_client_hears_nothing(
    postgres: Server, proxy: Proxy, loss: Loss, kept: set[str]
) -> None:
    with connected(proxy) as connection, connected(proxy) as other:
        write(connection, "first")
        proxy.lose(loss)
        connection.execute("SELECT 'COMMIT'")
        assert not proxy.lost
        with pytest.raises(psycopg.OperationalError):
            write(connection, "second")
        assert proxy.lost == {loss: 1}
        assert words(postgres) == kept
        write(other, "third")
    assert words(postgres) == kept | {"third"}


def test_a_cut_closes_and_refuses_until_it_is_restored(postgres: Server, proxy: Proxy) -> None:
    with connected(proxy) as connection:
        proxy.cut()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError, match="refused"):
        connected(proxy)
    port = proxy.port
    proxy.restore()
    with connected(proxy) as connection:
        write(connection, "again")
    assert proxy.port == port
    assert words(postgres) == {"again"}


@pytest.mark.long
def test_a_frozen_network_holds_everything_back_and_loses_nothing(postgres: Server, proxy: Proxy) -> None:
    with connected(proxy) as connection:
        proxy.freeze()
        with pytest.raises(psycopg.OperationalError, match="timeout"):
            connected(proxy)
        late = threading.Thread(target=write, args=(connection, "late"))
        late.start()
        late.join(0.2)
        assert late.is_alive()
        assert words(postgres) == set()
        proxy.restore()
        late.join(120)
        assert words(postgres) == {"late"}
