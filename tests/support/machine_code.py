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
    program = next((path for folder in folders if (path := Path(folder) / "cu13/bin" / tool).is_file()), None)
    if program is None:
        pytest.skip(f"no {tool} here: pip install nvidia-cuda-{tool}")
    program.chmod(0o755)
    return subprocess.run([str(program), option, str(cubin)], check=True, capture_output=True, text=True).stdout


def count(loop: list[str], operation: str) -> int:
    """Return how many instructions are of an operation, a pattern of their names."""
    return sum(bool(re.match(rf"(@!?U?P\d+ )?{operation}\b", instruction)) for instruction in loop)


def loops_of(text: str) -> list[list[str]]:
    """Return the instructions of each loop that has no other one in it."""
    instructions: list[str] = []
    labels: dict[str, int] = {}
    for line in text.splitlines():
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            labels[label[1]] = len(instructions)
        elif match := re.match(r"\s*/\*[0-9a-f]+\*/\s+(.*?)\s*;", line):
            instructions.append(match[1])
    jumps = (
        (labels.get(to[1], len(instructions)), end)
        for end, instruction in enumerate(instructions)
        if (to := re.search(r"BRA.*`\((\.L_x_\d+)\)", instruction))
    )
    loops = [(start, end) for start, end in jumps if start <= end]
    inner = [
        loop
        for loop in loops
        if not any(loop[0] <= other[0] <= other[1] <= loop[1] for other in loops if other != loop)
    ]
    return [instructions[start : end + 1] for start, end in inner]
