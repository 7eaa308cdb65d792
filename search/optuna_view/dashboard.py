"""optuna-dashboard, for looking alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from search.optuna_view.storage import ReadOnlyStorage
from spaces.errors import StudyError

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
"""What a server of WSGI calls."""

READS = ("GET", "HEAD")
_HOSTS = ("localhost", "127.0.0.1")


def open_dashboard(storage: ReadOnlyStorage) -> Application:
    """Return the dashboard as an application of WSGI for this machine; a request that would write is answered 405.

    One that calls the machine by another name is answered 403: a page from elsewhere whose name was made to lead here.

    Raises StudyError where it is not installed.
    """
    try:
        from optuna_dashboard import wsgi
    except ImportError:
        raise StudyError("optuna-dashboard is not installed: pip install 'graft-search[optuna]'") from None
    dashboard: Any = wsgi(storage)

    def answer(environment: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if environment["REQUEST_METHOD"] not in READS:
            start("405 Method Not Allowed", [("Allow", ", ".join(READS)), ("Content-Type", "text/plain")])
            return [b"studies of Graft are only looked at here\n"]
        if environment.get("HTTP_HOST", _HOSTS[0]).partition(":")[0] not in _HOSTS:
            start("403 Forbidden", [("Content-Type", "text/plain")])
            return [b"this server is called localhost\n"]
        environment.setdefault("HTTP_ACCEPT_ENCODING", "identity")  # the dashboard fails where a client sends none
        return dashboard(environment, start)

    return answer
