"""The settings of a server: how it is reached, and what it allows."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, field, fields

from spaces.bounds import LARGEST_INTEGER
from spaces.errors import GraftError

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


class QuotaError(GraftError):
    """A person asks for more than they may have."""


class AddressError(GraftError):
    """A server cannot listen where it is asked to, or must not without tokens."""


@dataclass(frozen=True, kw_only=True)
class Quotas:
    """The most that a person whose role is submit may ask for; the role admin may ask for all."""

    trials: float = 10_000
    """Trials of a study."""
    steps: float = 1_000_000
    """Steps of a trial."""
    parameters: float = 20_000_000
    """Parameters of a trial."""
    lanes: float = 1_000
    """Lanes of a study, at once."""
    studies: float = 20
    """Studies in the queue, at once."""
    priority: float = 0
    """The highest priority class."""
    weight: float = 1
    """The largest share among the studies of a class."""
    disk: float = 20e9
    """Bytes that a study may leave, as estimated: rows of the database, and checkpoints."""

    @classmethod
    def parse(cls, settings: Iterable[str]) -> Quotas:
        """Return the quotas of `trials=500` and the like; raises AddressError for what is none."""
        known = {quota.name for quota in fields(cls)}
        values: dict[str, float] = {}
        for setting in settings:
            name, _, number = setting.partition("=")
            try:
                values[name] = float(number)
            except ValueError:
                name = ""
            if name not in known or not abs(values[name]) <= LARGEST_INTEGER:
                raise AddressError(f"--quota {setting}: write NAME=NUMBER, NAME one of {', '.join(sorted(known))}")
        return cls(**values)

    def check(self, name: str, value: float) -> None:
        """Raise QuotaError if more is asked for than a person may have."""
        most = getattr(self, name)
        if value > most:
            what = "bytes of disk" if name == "disk" else name
            raise QuotaError(f"{what}: {value:,.15g} are asked for, and a person may have {most:,.15g} here")

    def describe(self) -> str:
        """Return all of them in a line."""
        return ", ".join(f"{quota.name} {getattr(self, quota.name):,.15g}" for quota in fields(self))


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of an application, which are decided when it is made."""

    database: str
    """URL of the database."""
    hosts: frozenset[str] = LOOPBACK_NAMES
    """Names, without a port, by which requests may call the server (against DNS rebinding)."""
    needs_token: bool = False
    """True if a request without a token is refused."""
    plugins: frozenset[str] = frozenset()
    """Entries that the section `plugins` of a submitted space may have."""
    resources: frozenset[str] = frozenset()
    """Paths of a space that may name a file, a data set or code, such as `task.corpus.dataset`."""
    quotas: Quotas = field(default_factory=Quotas)
    check_seconds: float = 6.5
    """Seconds that the check of a submission may take; it may wait half as long for its turn."""
    proxies: tuple[str, ...] = ()
    """Addresses of proxies, which say for whom they ask and whether over TLS."""
    rate: float = 50.0
    """Requests per second that a client may make in the long run; it may make `burst` at once."""
    burst: int = 200
    largest_body: int = 1 << 20
    """Bytes of a request."""
    body_seconds: float = 10.0
    """Seconds that a client may take to send them, and before that the head of the request."""
    answer_seconds: float = 20.0
    """Seconds that the database may work on one answer."""
    streams: int = 256
    """Event streams that are open at one time."""
    streams_each: int = 32
    """Event streams of one person, and of one address."""
    connections_each: int = 100
    """Connections of one address that are open at one time."""
    answers_each: int = 4
    """Answers made at one time for one person, or one address without tokens; others wait."""
    waiting_each: int = 200
    """Requests that wait so; more are refused."""
    processor: float | None = None
    """Cores that answers may take in the long run while studies train; any number if None."""
    processor_burst: float = 2.0
    """Processor seconds that they may take at once."""


def is_loopback(host: str) -> bool:
    """Return True if only this machine reaches an address; AddressError for what is no address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        raise AddressError(f"--host {host}: must be an IP address such as 127.0.0.1 or 0.0.0.0, or localhost") from None
