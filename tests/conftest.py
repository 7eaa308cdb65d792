"""Fixtures for every test, and one thread for every test process, as the pools set it for their workers.

Threads that meet at the end of every tiny operation wait for the scheduler where cores are shared: a test of two
seconds can take minutes.
"""

import os
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before anything imports torch; inherited by the processes that tests start
# So that these processes find the code under test, and what they are forked from, wherever they start.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH"))))

from tests.databases import postgres, url

__all__ = ["postgres", "url"]
