"""A server of a database in a thread of the test, on a port that is free."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

import uvicorn

from graft.web.server import configure
from graft.web.settings import Settings


@contextmanager
def serving(settings: Settings, port: int = 0) -> Generator[str]:
    """Yield the address of a server that answers until the end of the block; on any port that is free for 0."""
    listener = socket.create_server(("127.0.0.1", port))
    config = configure(settings)
    config.timeout_graceful_shutdown = 1
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
