"""What a PostgreSQL server has committed is there after each of its deaths."""

from __future__ import annotations

import threading

import psycopg
import pytest

from tests.support.faults.server import MortalServer, mortal_server


@pytest.fixture(scope="module")
def mortal():
    with mortal_server() as mortal:
        mortal.server.execute("CREATE TABLE seen (word text)")
        yield mortal


def count(mortal: MortalServer) -> int:
    with psycopg.connect(f"host={mortal.server.folder} user=graft dbname=postgres") as connection:
        return len(connection.execute("SELECT word FROM seen").fetchall())


@pytest.mark.long
@pytest.mark.parametrize("death", [MortalServer.stop_at_once, MortalServer.kill])
def test_after_a_death_it_has_what_was_committed_and_nothing_else(mortal: MortalServer, death) -> None:
    before = count(mortal)
    with psycopg.connect(f"host={mortal.server.folder} user=graft dbname=postgres") as connection:
        mortal.server.execute("INSERT INTO seen VALUES ('committed')")
        connection.execute("INSERT INTO seen VALUES ('open')")
        death(mortal)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError):
        count(mortal)
    mortal.start()
    assert count(mortal) == before + 1


def test_frozen_it_says_nothing_and_thawed_it_goes_on(mortal: MortalServer) -> None:
    before = count(mortal)
    late = threading.Thread(target=mortal.server.execute, args=("INSERT INTO seen VALUES ('late')",))
    mortal.freeze()
    late.start()
    late.join(0.3)
    assert late.is_alive()
    mortal.thaw()
    late.join(120)
    assert count(mortal) == before + 1
