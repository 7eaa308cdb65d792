"""Files that stand alone, run where they were written, so that what they lack is known at once."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spaces.errors import StudyError


@contextmanager
def open_file(path: Path) -> Generator[Any]:
    """Yield a file as a module that no import finds; raises StudyError if it does not run."""
    name = "graft_file_that_stands_alone"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec, "it is a Python file"
    assert spec.loader, "it is a Python file"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look for the names of their annotations
    try:
        spec.loader.exec_module(module)
        yield module
    except (NameError, AttributeError, ImportError, TypeError) as error:
        fault = "the code taken out of Graft does not run by itself"
        needs = "what a plug-in needs must be imports, definitions and plain assignments"
        raise StudyError(f"{fault}: {type(error).__name__}: {error}; {needs}") from error
    finally:
        del sys.modules[name]
