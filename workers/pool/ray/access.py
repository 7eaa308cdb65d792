"""The check of access to a Ray cluster, before it is connected. Imports no ray."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path

from spaces.errors import StudyError

WHERE = "put the cluster's token there (chmod 600), or into RAY_AUTH_TOKEN"


def check_access(address: str | None, environment: Mapping[str, str] = os.environ) -> None:
    """Raise StudyError if others could reach a cluster without a token, or read its token.

    `address` None: a cluster that is started here, with a token of its own. RAY_AUTH_MODE=disabled
    is for a cluster that only this machine can reach. The token itself is not looked at, nor shown.
    """
    if environment.get("RAY_AUTH_MODE", "token").lower() == "disabled":
        if address is None:
            raise StudyError("RAY_AUTH_MODE=disabled: anyone on this machine could use the cluster; unset it")
        if not _is_loopback(address):
            raise StudyError(
                f"--ray-address: {address!r} with RAY_AUTH_MODE=disabled could be anybody's; unset it and give the "
                "cluster a token, or use an address of this machine alone, such as 127.0.0.1:6379"
            )
        return
    if address is None or environment.get("RAY_AUTH_TOKEN"):
        return
    named = environment.get("RAY_AUTH_TOKEN_PATH")
    file = Path(named) if named else Path.home() / ".ray" / "auth_token"  # where Ray looks for it
    try:
        status = file.stat()
    except OSError:
        raise StudyError(f"--ray-address: {address!r} needs a token, and there is none at {file}; {WHERE}") from None
    if status.st_mode & 0o077:
        raise StudyError(f"--ray-address: the token file {file} can be read by others; chmod 600 {file}")
    if not status.st_size:
        raise StudyError(f"--ray-address: {address!r} needs a token, and {file} is empty; {WHERE}")


def stay_on_loopback() -> None:
    """Make Ray's clusters here listen on 127.0.0.1 alone, as on macOS; call before `import ray`."""
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"


def _is_loopback(address: str) -> bool:
    """Return True if a host:port is written as this machine's; `auto` may be anywhere."""
    host = address.rpartition("://")[2].rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
