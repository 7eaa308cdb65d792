"""A check that this process's memory limit is enough for a launch."""

from __future__ import annotations

import os
import resource

from spaces.errors import StudyError

BASE_BYTES, WORKER_BYTES = 3 << 29, 1 << 28
"""Bytes of address space for the libraries, and for each worker's thread; measured on a CPU."""


def usable_cores() -> int:
    """Return the number of cores that this process may use; on macOS, all of the machine's."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_address_space(workers: int | None) -> None:
    """Raise StudyError if `ulimit -v` is too low for so many workers (None: one per core)."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    workers = workers or usable_cores()
    needed = BASE_BYTES + workers * WORKER_BYTES
    if limit != resource.RLIM_INFINITY and limit < needed:
        raise StudyError(
            f"ulimit -v: {limit >> 10} kB of address space are too few for {workers} workers; "
            f"allow {needed >> 10}, or `ulimit -v unlimited`"
        )


def describe_shortage(error: BaseException) -> str | None:
    """Return a line for an error that says that memory ran out; None for any other error."""
    text = str(error)
    is_short = (
        isinstance(error, MemoryError)
        or (isinstance(error, OSError) and error.errno == 12)
        or (isinstance(error, ImportError) and ("failed to map" in text or "allocate memory" in text))
        or (isinstance(error, RuntimeError) and ("start new thread" in text or "allocate memory" in text))
        or (isinstance(error, SystemError) and "without exception set" in text)  # no memory for an error
    )
    if not is_short:
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    cause = "" if limit == resource.RLIM_INFINITY else f" (ulimit -v is {limit >> 10} kB)"
    return f"memory ran out{cause}: {text or type(error).__name__}"
