"""Fixtures for every test, and one thread for every test process, as the pools set it for their workers.

Threads that meet at the end of every tiny operation wait for the scheduler where cores are shared: a test of two
seconds can take minutes.
"""

import importlib.util
import os
import random
import sys
from pathlib import Path

# Before anything imports torch and Polars; inherited by the processes that tests start.
os.environ["OMP_NUM_THREADS"] = os.environ["POLARS_MAX_THREADS"] = "1"
# So that these processes find the code under test, and what they are forked from, wherever they start.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH"))))
# Without bytecode each of these processes, and each of `-n`, would compile all of the packages and the tests again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import pytest
from hypothesis import settings

sys.dont_write_bytecode = False

# On a bare GPU machine, with torch, numpy, PyYAML, pytest and hypothesis alone, `-m gpu` runs without databases.
if importlib.util.find_spec("psycopg"):
    from tests.support.databases import postgres, url

    __all__ = ["postgres", "url"]

# The cores may be shared: a slow example is no failure. The gate tries the same examples each time, so that what passed
# passes again; elsewhere each run tries others.
settings.register_profile("untimed", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("untimed")


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Seed what a test draws without a seed of its own, so that it does not depend on which tests ran before."""
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Each process of `-n` gets neighbouring tests, which share fixtures and recordings, and steals at the end."""
    if getattr(config.option, "numprocesses", None) and config.option.dist == "no":
        config.option.dist = "worksteal"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return a process more than there are cores: for part of the time tests wait for processes and servers."""
    asked = os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS")
    return int(asked) if asked else len(os.sched_getaffinity(0)) + 1


TEXTS = {
    "fast and not long": ("mark.fast",),
    "gpu": ("mark.gpu",),
    "long and not slow": ("mark.long", "mark.sampled", "url: str"),
}
"""What `-m` says -> texts of which a module must have one; a module without them is not imported."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import only the modules that `-m` asks for: all take 19 s of a core, and need all extras."""
    texts = TEXTS.get(config.option.markexpr)
    if texts and collection_path.suffix == ".py" and collection_path.name.startswith("test_"):
        module = collection_path.read_text()
        return not any(text in module for text in texts) or None
    return None


def _is_fast(config: pytest.Config) -> bool:
    return config.option.markexpr == "fast and not long"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark as long what asks PostgreSQL, except for storage, and of `sampled(daily, most)` all after the first `daily`.

    Where `most` is given, so many run in all: those of the others lie evenly among them, and the rest is slow.
    `-m 'fast and not long'` starts no server.
    """
    if _is_fast(config):
        items[:] = [item for item in items if "[postgresql" not in item.nodeid and "postgres" not in item.fixturenames]
    sampled: dict[str, list[pytest.Item]] = {}
    for item in items:
        # What asks PostgreSQL is tested with storage; pages and commands over it, with the long tests.
        if "[postgresql" in item.nodeid and "tests/storage/" not in item.nodeid and "tests/faults/" not in item.nodeid:
            item.add_marker(pytest.mark.long)
        elif item.get_closest_marker("sampled"):
            sampled.setdefault(item.nodeid.split("[")[0], []).append(item)
    for several in sampled.values():
        daily, most = [*several[0].get_closest_marker("sampled").args, len(several)][:2]
        others = several[daily:]
        chosen = {len(others) * index // (most - daily) for index in range(most - daily)}
        for index, item in enumerate(others):
            item.add_marker(pytest.mark.long if index in chosen else pytest.mark.slow)
