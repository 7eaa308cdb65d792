"""The largest numbers that Graft takes, alike in spaces, commands, HTTP, the queue, the tables."""

from __future__ import annotations

LARGEST_INTEGER = 2**63 - 1
"""The largest BIGINT of PostgreSQL and integer of SQLite."""
LARGEST_SIZE = 2**31 - 1
"""The largest INTEGER of PostgreSQL; also the bound of a tensor's size."""
LARGEST_COUNT = 2**53
"""The largest count: beyond it a float64 cannot tell all integers apart."""
MOST_TRIALS = 10**9
"""Trials of a study, by hand too; a trial's id is the study's id times this plus its number."""
PRIORITIES = range(-100, 101)
"""Priority classes of the queue."""
LARGEST_WEIGHT = 1000.0
"""The largest weight of a study among those of its class."""
MOST_LANES = 1_000_000
"""The largest `max_lanes` of a study in the queue."""
LONGEST_OWNER = 100
"""Characters of the name of a study's owner."""
