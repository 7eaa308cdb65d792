"""Messages that must not end their reader."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tests.support.queue import with_value


def written(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(text, errors="surrogatepass")


POISON: dict[str, Callable[[Path], object]] = {
    "an integer beyond SQL's": written(with_value(10**30, "terms", "max_lanes")),
    "a seed beyond SQL's": written(with_value(2**63, "row", "seed")),
    "trials beyond the most": written(with_value(10**9 + 1, "row", "trials")),
    "numerics beyond an INTEGER": written(with_value(2**31, "row", "numerics")),
    "a line beyond SQL's": written(with_value(10**40, "bundles", 0, "members", 0, "line")),
    "a truth value as a number": written(with_value(True, "terms", "priority")),
    "no direction": written(with_value("sideways", "row", "direction")),
    "no state of a new study": written(with_value("ready", "row", "state")),
    "half a character": written(with_value("caf\udce9", "row", "space")),
    "a NUL": written(with_value("a\0b", "row", "space")),
    "an owner that is none": written(with_value(["ann"], "by")),
    "a folder": lambda path: path.mkdir(),
    "a link that leads nowhere": lambda path: path.symlink_to("nowhere"),
    "a link": lambda path: path.symlink_to("/etc/hostname"),
    "a pipe": lambda path: os.mkfifo(path),
    "nothing": written(""),
}
