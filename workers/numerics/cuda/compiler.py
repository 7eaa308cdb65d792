"""CUDA C++ compiled where it runs, once for each kind of GPU, and kept on disk.

The compiler is NVRTC of torch's CUDA builds (else `pip install nvidia-cuda-nvrtc`), without a GPU.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import hashlib
import importlib.util
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import torch

from workers.numerics.native import cache_folder

OPTIONS = ("--std=c++17", "--fmad=false")
"""Options of all kernels: products and sums are fused only where a source says so, as in torch."""


class CompilerError(RuntimeError):
    """There is no compiler, or it refuses a kernel; the message is its own, in one line."""


def load_cubin(source: Path, architecture: str, options: Sequence[str] = ()) -> bytes:
    """Return the result of `compile_cubin`, from the cache if it was made here before."""
    name = f"{source.stem}-{cubin_key(source, architecture, options)}.cubin"
    with suppress(OSError):
        return (cache_folder() / name).read_bytes()
    compiled = compile_cubin(source, architecture, options)
    with suppress(OSError):  # a home that cannot be written
        cache_folder().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache_folder()) as aside:
            made = Path(aside) / name
            made.write_bytes(compiled)
            made.replace(cache_folder() / name)  # so that no process reads half a file
    return compiled


def cubin_key(source: Path, architecture: str, options: Sequence[str] = ()) -> str:
    """Return a digest of source, headers, options, compiler and architecture."""
    texts = [f"{path.name}\0{path.read_text()}" for path in (*_headers(source), source)]
    key = "\0".join([*texts, *OPTIONS, *options, compiler_version(), architecture])
    return hashlib.sha256(key.encode()).hexdigest()[:16]


def compile_cubin(source: Path, architecture: str, options: Sequence[str] = ()) -> bytes:
    """Return the machine code of a source for GPUs such as `sm_90`; raises CompilerError.

    The source may include the headers beside it; `options` are NVRTC's, besides `OPTIONS`.
    """
    headers = _headers(source)
    program = ctypes.c_void_p()
    texts = (ctypes.c_char_p * len(headers))(*(path.read_bytes() for path in headers))
    names = (ctypes.c_char_p * len(headers))(*(path.name.encode() for path in headers))
    about = source.read_bytes(), source.name.encode(), len(headers), texts, names
    _call("nvrtcCreateProgram", ctypes.byref(program), *about)
    try:
        flags = [option.encode() for option in (*OPTIONS, *options, f"--gpu-architecture={architecture}")]
        try:
            _call("nvrtcCompileProgram", program, len(flags), (ctypes.c_char_p * len(flags))(*flags))
        except CompilerError as error:
            log = _read(program, "ProgramLog").decode(errors="replace").rstrip("\0\n")
            lines = [line for line in log.splitlines() if "error" in line]
            raise CompilerError(f"{error}: {lines[0] if lines else log.strip()[:200]}") from None
        return _read(program, "CUBIN")
    finally:
        _call("nvrtcDestroyProgram", ctypes.byref(program))


def compiler_version() -> str:
    """Return the compiler, such as `NVRTC 13.0`; raises CompilerError if there is none."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
    return f"NVRTC {major.value}.{minor.value}"


def _headers(source: Path) -> list[Path]:
    return sorted(source.parent.glob("*.hpp"))


def _read(program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    _call(f"nvrtcGet{what}", program, text)
    return text.raw


def _call(function: str, *arguments: object) -> None:
    library = _nvrtc()
    if status := getattr(library, function)(*arguments):
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        raise CompilerError(f"{function}: {library.nvrtcGetErrorString(status).decode()}")


@functools.cache
def _nvrtc() -> ctypes.CDLL:
    for path in _libraries():
        with suppress(OSError):
            folder = Path(path).parent if "/" in path else None
            for builtins in sorted(folder.glob("libnvrtc-builtins.so.*")) if folder else ():
                ctypes.CDLL(str(builtins))  # NVRTC opens it by name, without a path
            return ctypes.CDLL(path)
    raise CompilerError("there is no NVRTC, which compiles kernels; pip install nvidia-cuda-nvrtc")


def _libraries() -> Iterator[str]:
    """Yield where NVRTC may lie: in a package of NVIDIA's (`nvidia/cu13/lib`), or in the system.

    The one of torch's own CUDA comes first: a driver refuses the kernels of a newer compiler.
    """
    name = f"libnvrtc.so.{(torch.version.cuda or '').partition('.')[0]}"
    package = importlib.util.find_spec("nvidia")
    folders = (package.submodule_search_locations or []) if package else []
    paths = sorted(path for folder in folders for path in Path(folder).glob("*/lib/libnvrtc.so.*"))
    yield from (str(path) for path in paths if path.name == name)
    yield name
    yield from (str(path) for path in paths if path.name != name)
    if system := ctypes.util.find_library("nvrtc"):
        yield system
