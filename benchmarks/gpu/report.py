"""The page of a GPU's first day: what each path is decided by, the rates beside those of peers, and what failed."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]
PATHS = {
    "traced step": ("as on a CPU",),
    "random numbers and updates by kernels": ("random numbers by kernels", "update by one kernel"),
    "fused step of minimal transformers": ("fused step of minimal",),
    "fused step in TF32": ("fused step in TF32",),
    "packs": ("packed as alone",),
    "the program": ("search ", "pytest"),
}
"""Each path that can be taken or left, and how the names of the rows begin that decide it."""
RIVALS = {"fused step": "traced step", "fused step in TF32": "fused step"}
"""Step -> the step that it must be faster than to be a go."""
_RATE = re.compile(r"(?P<case>.*): (?P<step>.*?)(?:, (?P<lanes>\d+) lanes)?")


def page(file: Path) -> str:
    """Return the rows of a file as a page in Markdown: a section for each device, of the rows that came last."""
    rows: defaultdict[str, dict[tuple[str, str], Row]] = defaultdict(dict)
    for row in map(json.loads, file.read_text().splitlines()):
        rows[f"{row['about']['device']}, torch {row['about']['torch']}"][row["command"], row["name"]] = row
    return "\n\n".join("\n\n".join(_section(name, [*section.values()])) for name, section in rows.items())


def _section(name: str, rows: Sequence[Row]) -> Iterator[str]:
    failed = sum(row["failure"] is not None for row in rows)
    yield f"## {name}"
    yield f"Measured by `python -m benchmarks.gpu`: {len(rows)} rows, {failed} of them failed."
    paths = [(path, *_decide(rows, names)) for path, names in PATHS.items()]
    yield _table(["path", "verdict", "by"], [line for line in (*paths, *_compare_steps(rows)) if line[1]])
    if rates := _rates(rows):
        lanes = sorted({width for widths in rates.values() for width in widths})
        heads = ["model-steps/s", *(f"{width:,} lanes" if width else "one model" for width in lanes)]
        cells = [[name, *(_number(widths.get(width)) for width in lanes)] for name, widths in rates.items()]
        yield _table(heads, cells)
    others = [[row["name"], _said(row)] for row in rows if "model-steps/s" not in row["value"]]
    yield _table(["row", "result"], others)


def _decide(rows: Sequence[Row], names: tuple[str, ...]) -> tuple[str, str]:
    """Return go or no-go for a path by its rows; empty where none was measured."""
    part = [row for row in rows if row["name"].startswith(names)]
    bad = [row["name"] for row in part if row["failure"]]
    verdict = ("no-go" if bad else "go") if part else ""
    return verdict, f"{len(part) - len(bad)} of {len(part)} rows passed" + (f"; not {', '.join(bad)}" if bad else "")


def _compare_steps(rows: Sequence[Row]) -> Iterator[tuple[str, str, str]]:
    """Yield for each case with a fused step whether it is faster than its rival, at the widest common pack."""
    rates = _rates(rows)
    for name, widths in rates.items():
        case, _, step = name.rpartition(": ")
        rival = RIVALS.get(step, "")
        others = rates.get(f"{case}: {rival}", {})
        if common := widths.keys() & others.keys():
            lanes = max(common)
            ratio = widths[lanes] / others[lanes]
            yield name, "go" if ratio > 1 else "no-go", f"{ratio:.2f} times the {rival}'s rate at {lanes:,} lanes"


def _rates(rows: Sequence[Row]) -> dict[str, dict[int, float]]:
    """Return what trains -> lanes -> model-steps per second; one model that is no pack has 0 lanes."""
    rates: defaultdict[str, dict[int, float]] = defaultdict(dict)
    for row in rows:
        if (rate := row["value"].get("model-steps/s")) and (parts := _RATE.fullmatch(row["name"])):
            rates[f"{parts['case']}: {parts['step']}"][int(parts["lanes"] or 0)] = rate
    return dict(rates)


def _said(row: Row) -> str:
    return row["failure"] or ", ".join(f"{key} {value}" for key, value in row["value"].items())


def _number(rate: float | None) -> str:
    return "" if rate is None else f"{rate:,.0f}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
