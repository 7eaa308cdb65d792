"""Imports modules of bundles from their texts, and explains a failed import in one line."""

from __future__ import annotations

import builtins
import importlib
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from spaces.errors import GraftError, PluginError
from spaces.messages import shorten
from spaces.plugins.bundles import PREFIX, Bundle, Member, Source

_known: dict[str, Bundle] = {}
"""Package -> the bundle that is imported as it."""


def import_member(bundle: Bundle, member: Member) -> ModuleType:
    """Return a plug-in's module; PluginError, one line with file and line, if its import fails."""
    register(bundle)
    try:
        return importlib.import_module(f"{bundle.package}.{member.module}")
    except (Exception, SystemExit) as error:
        raise PluginError(f"{member.title} cannot be imported: {_describe(error)}") from error


def register(bundle: Bundle) -> None:
    """Make a bundle's modules importable in this process."""
    _known[bundle.package] = bundle
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())


def explain(error: BaseException) -> PluginError | None:
    """Return an error inside an outside plug-in in one line; None for ours, or one elsewhere."""
    if isinstance(error, GraftError) or not _innermost(error):
        return None
    return PluginError(f"a plug-in failed: {_describe(error)}")


def _describe(error: BaseException) -> str:
    kind = type(error).__name__
    what = shorten(f"{kind}: {error}" if str(error) else kind, limit=300)
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}: SyntaxError: {error.msg}"
    where = _innermost(error)
    return f"{where}: {what}" if where else what


def _innermost(error: BaseException) -> str | None:
    """Return `file:line` of the last frame that is in a bundle's file."""
    location = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        if str(frame.f_globals.get("__name__", "")).startswith(PREFIX):
            location = f"{frame.f_code.co_filename}:{line}"
    return location


class _Finder(MetaPathFinder):
    """Finds `graft_plugins_<hash>.mine` among the registered bundles."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, module = fullname.partition(".")
        bundle = _known.get(package)
        if bundle is None:
            return None
        source = bundle.by_module.get(module)
        if source:
            loader = _Loader(bundle, source)
            return ModuleSpec(fullname, loader, origin=source.path, is_package=source.is_package)
        if not module or any(name.startswith(f"{module}.") for name in bundle.by_module):
            return ModuleSpec(fullname, None, is_package=True)  # a folder of modules
        return None


class _Loader(InspectLoader):
    """Runs the text of one file."""

    def __init__(self, bundle: Bundle, source: Source) -> None:
        self._bundle = bundle
        self._source = source

    def get_source(self, fullname: str) -> str:
        """Return the text, for tracebacks and `inspect`."""
        return self._source.text

    def is_package(self, fullname: str) -> bool:
        """Return True for an `__init__.py`."""
        return self._source.is_package

    def get_code(self, fullname: str) -> CodeType:
        """Return the compiled text; tracebacks say if the file has changed since."""
        path, text = self._source.path, self._source.text
        try:
            is_same = Path(path).read_bytes() == text.encode()
        except OSError:
            is_same = False
        name = path if is_same else f"{path} (as stored, {self._source.sha256[:8]})"
        return compile(text, name, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        """Run it with an import statement that finds the bundle's modules by their names in it."""
        module.__file__ = self._source.path
        own_import = _LocalImport(self._bundle)
        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": own_import}
        exec(self.get_code(module.__name__), module.__dict__)


class _LocalImport:
    """`__import__` in the modules of a bundle, where `import helper` is the bundle's own helper."""

    def __init__(self, bundle: Bundle) -> None:
        self._package = bundle.package
        self._local = {module.partition(".")[0] for module in bundle.by_module}

    def __call__(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,  # noqa: A002 - Python's own names
        locals: Mapping[str, Any] | None = None,  # noqa: A002
        fromlist: Sequence[str] = (),
        level: int = 0,
    ) -> ModuleType:
        top = name.partition(".")[0]
        if level or top not in self._local:
            return builtins.__import__(name, globals, locals, fromlist, level)
        name = f"{self._package}.{name}"
        module = builtins.__import__(name, globals, locals, fromlist or ("__name__",), 0)
        return module if fromlist else sys.modules[f"{self._package}.{top}"]
