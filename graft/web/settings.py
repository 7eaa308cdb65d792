"""How a server is reached, and what it allows."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from spaces.errors import GraftError

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


class AddressError(GraftError):
    """A server cannot listen where it is asked to, or must not without tokens."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What of an application is decided when it is made."""

    database: str
    """Its URL."""
    hosts: frozenset[str] = LOOPBACK_NAMES
    """The names, without a port, by which requests may call the server: a page that a foreign name leads here with
    (DNS rebinding) has another one."""
    needs_token: bool = False
    """Whether a request without a token is refused."""
    plugins: frozenset[str] = frozenset()
    """Entries that the section `plugins` of a submitted space may have."""
    rate: float = 50.0
    """Requests per second that a client may make in the long run; it may make `burst` at once."""
    burst: int = 200
    largest_body: int = 1 << 20
    """Bytes of a request."""
    body_seconds: float = 10.0
    """How long a client may take to send them, and before that the head of the request."""
    answer_seconds: float = 20.0
    """How long the database may work on one answer."""
    streams: int = 64
    """Event streams that are open at one time."""
    processor: float | None = None
    """Cores that answers may take in the long run while studies train (`sparing`); None: any number."""
    processor_burst: float = 2.0
    """Processor seconds that they may take at once."""


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address; raises AddressError for what is no address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        raise AddressError(f"--host {host}: must be an IP address such as 127.0.0.1 or 0.0.0.0, or localhost") from None
