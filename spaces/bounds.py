"""The largest numbers that Graft takes at every door alike: spaces, the command line, HTTP, the queue, the tables."""

from __future__ import annotations

LARGEST_INTEGER = 2**63 - 1
"""Of a BIGINT, and of an integer of SQLite."""
LARGEST_SIZE = 2**31 - 1
"""Of an INTEGER of PostgreSQL, and of a size of a tensor."""
LARGEST_COUNT = 2**53
"""Beyond it not every integer is a float of its own."""
MOST_TRIALS = 10**9
"""Of a study, trials by hand included: numbers of trials are below it, so that ids can tell studies apart."""
PRIORITIES = range(-100, 101)
"""Classes of the queue."""
LARGEST_WEIGHT = 1000.0
"""Share of a study among those of its class."""
MOST_LANES = 1_000_000
"""Lanes that a study may have at once."""
LONGEST_OWNER = 100
"""Characters of the name of a study's owner."""
