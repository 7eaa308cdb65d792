"""The sources of the native steps are compiled to one shared library; needs a compiler and nothing else."""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FLAGS = ("-O3", "-std=c++17", "-fPIC", "-Wno-psabi", "-fno-math-errno", "-ffp-contract=off")
"""Without errno square roots are vectors' too; their bits are the same. Products and sums are rounded together where
the source says so (fused.hpp), and nowhere else."""
SOURCES = Path(__file__).parent


def flags(processor: str = "native") -> list[str]:
    """The compiler's flags for a processor that it knows; the last are the user's own, `$CXXFLAGS`."""
    return [*FLAGS, f"-march={processor}", *shlex.split(os.environ.get("CXXFLAGS", ""))]


def digest(options: list[str], *others: str) -> str:
    """16 hexadecimal digits of the sources, the compiler's flags and whatever else the library depends on."""
    sources = [path.read_text(encoding="utf-8") for path in sorted(SOURCES.glob("*.[ch]pp"))]
    return hashlib.sha256("\0".join([*sources, *options, *others]).encode()).hexdigest()[:16]


def version(compiler: list[str]) -> str:
    """What the compiler says of itself; raises OSError or subprocess's errors where it does not work."""
    return subprocess.run([*compiler, "--version"], check=True, capture_output=True, text=True).stdout


def build(compiler: list[str], options: list[str], library: Path) -> Path:
    """Compile beside `library` and rename, so that processes that start together never load half a file.

    The sources are compiled side by side, as many as there are cores.
    """
    with tempfile.TemporaryDirectory(dir=library.parent) as aside:
        sources = sorted(SOURCES.glob("*.cpp"))
        objects = [str(Path(aside) / f"{source.stem}.o") for source in sources]
        commands = [["-c", str(source), "-o", made] for source, made in zip(sources, objects, strict=True)]

        def run(arguments: list[str]) -> None:
            subprocess.run([*compiler, *options, *arguments], check=True, capture_output=True, text=True)

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(run, commands))
        made = Path(aside) / library.name
        run(["-shared", *objects, "-o", str(made)])
        return made.replace(library)


def build_text(compiler: list[str], options: list[str], text: str, library: Path) -> Path:
    """Compile a generated text, which includes headers of this folder, to a library of its own."""
    with tempfile.TemporaryDirectory(dir=library.parent) as aside:
        source, made = Path(aside) / "generated.cpp", Path(aside) / library.name
        source.write_text(text, encoding="utf-8")
        command = [*compiler, *options, "-I", str(SOURCES), "-shared", str(source), "-o", str(made)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        return made.replace(library)
