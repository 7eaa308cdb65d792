"""optuna-dashboard, read-only."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from search.optuna_view.storage import ReadOnlyStorage
from spaces.errors import StudyError

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

READS = ("GET", "HEAD")
_HOSTS = ("localhost", "127.0.0.1")


def open_dashboard(storage: ReadOnlyStorage) -> Application:
    """Return the dashboard as a WSGI application for this machine, which answers writes with 405.

    A request that calls the machine by another name gets 403, as it may come from a page elsewhere.
    Raises StudyError if optuna-dashboard is not installed.
    """
    try:
        from optuna_dashboard import wsgi
    except ImportError:
        raise StudyError("optuna-dashboard is not installed: pip install 'graft-search[optuna]'") from None
    dashboard: Any = wsgi(storage)

    def answer(environment: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if environment["REQUEST_METHOD"] not in READS:
            headers = [("Allow", ", ".join(READS)), ("Content-Type", "text/plain")]
            start("405 Method Not Allowed", headers)
            return [b"studies of Graft are only looked at here\n"]
        if environment.get("HTTP_HOST", _HOSTS[0]).partition(":")[0] not in _HOSTS:
            start("403 Forbidden", [("Content-Type", "text/plain")])
            return [b"this server is called localhost\n"]
        # The dashboard fails if a client sends no such header.
        environment.setdefault("HTTP_ACCEPT_ENCODING", "identity")
        return dashboard(environment, start)

    return answer
