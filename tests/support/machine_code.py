"""The machine code of the fused step's kernel and the instructions of its loops; no GPU is needed."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from workers.numerics.cuda import compiler, minimal


def compiled_for(architecture: str, options: Sequence[str]) -> bytes:
    """Return the machine code; skips the test where there is no compiler."""
    try:
        return compiler.compile_cubin(minimal.SOURCE, architecture, options)
    except compiler.CompilerError as error:
        pytest.skip(str(error))


def say(tool: str, option: str, cubin: Path) -> str:
    """Return what a tool of NVIDIA's says of machine code; skips the test where it is not installed."""
    package = importlib.util.find_spec("nvidia")
    folders = (package.submodule_search_locations or []) if package else []
    found = next((path for folder in folders if (path := Path(folder) / "cu13/bin" / tool).is_file()), None)
    if found is None:
        pytest.skip(f"no {tool} here: pip install nvidia-cuda-{tool}")
    found.chmod(0o755)
    return subprocess.run([str(found), option, str(cubin)], check=True, capture_output=True, text=True).stdout


def count(loop: list[str], operation: str) -> int:
    """Return how many instructions are of an operation, a pattern of their names."""
    return sum(bool(re.match(rf"(@!?U?P\d+ )?{operation}\b", one)) for one in loop)


def loops_of(text: str) -> list[list[str]]:
    """Return the instructions of each loop that has no other one in it."""
    instructions: list[str] = []
    labels: dict[str, int] = {}
    for line in text.splitlines():
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            labels[label[1]] = len(instructions)
        elif found := re.match(r"\s*/\*[0-9a-f]+\*/\s+(.*?)\s*;", line):
            instructions.append(found[1])
    jumps = (
        (labels.get(to[1], len(instructions)), end)
        for end, one in enumerate(instructions)
        if (to := re.search(r"BRA.*`\((\.L_x_\d+)\)", one))
    )
    loops = [(start, end) for start, end in jumps if start <= end]
    inner = [own for own in loops if not any(own[0] <= one[0] <= one[1] <= own[1] for one in loops if one != own)]
    return [instructions[start : end + 1] for start, end in inner]
