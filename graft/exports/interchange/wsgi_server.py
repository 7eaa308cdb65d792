"""A server of WSGI for pages that a person looks at on this machine."""

from __future__ import annotations

from socketserver import ThreadingMixIn
from typing import Any, final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from search.optuna_view.dashboard import Application
from spaces.errors import StudyError

LOOPBACK = "127.0.0.1"


@final
class ThreadingServer(ThreadingMixIn, WSGIServer):
    """Answers each request in its own thread: a figure may take seconds, and a page has several."""

    daemon_threads = True


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
        """Discard the message: the server prints no line for a request."""


def open_server(application: Application, port: int) -> WSGIServer:
    """Return a server on the loopback address; port 0: a free one. StudyError if it is taken."""
    try:
        return make_server(LOOPBACK, port, application, ThreadingServer, _QuietHandler)
    except OSError as error:
        raise StudyError(f"port {port} of {LOOPBACK}: {error.strerror}; name another one, 0 for any") from error
