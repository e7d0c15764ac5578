"""The start token of a service that has no API key yet, found by clients on the same machine.

Such a service says in a file of its user's state folder, named by address and port, where the file
with its token is. The token is read only from files that belong to this user and that no other user
can open, and sent only where that service listens: to the very address that the file is named by,
while the process that wrote it lives. At any other address another user's process may listen.
"""

import ipaddress
import json
import os
import platform
import stat
from pathlib import Path
from typing import Any, Final, NamedTuple

POINTER_BYTES_MAX: Final = 10_000
TOKEN_BYTES_MAX: Final = 200
_OTHERS: Final = 0o077  # bits of group and others
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")  # another one after each start of Linux
_LOCALHOST: Final = ("127.0.0.1", "::1")


class Found(NamedTuple):
    """A token, and the only address that it may be sent to."""

    address: str
    token: str


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, by its name alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def find(host: str, port: int) -> Found | None:
    """Return the token of the service at a loopback address; None where none is to be found."""
    if not is_loopback(host):
        return None
    addresses = _LOCALHOST if host == "localhost" else (str(ipaddress.ip_address(host)),)
    for address in addresses:
        token = _pointed_to(_folder() / f"{address}-{port}.json")
        if token is not None:
            return Found(address, token)
    return None


def _pointed_to(pointer: Path) -> str | None:
    try:
        said: Any = json.loads(_read(pointer, POINTER_BYTES_MAX))
        if said["machine"] != _machine():
            return None
        os.kill(said["process"], 0)  # it lives, and is this user's
        token = _read(Path(said["token"]), TOKEN_BYTES_MAX).strip()
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None
    return token if token and token.isascii() and token.isprintable() else None


def _read(path: Path, bytes_max: int) -> str:
    """Read a file of this user that no other user can open.

    Raises:
        ValueError: it is another user's, others can open it, or it is too long or no file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        own = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
        data = file.read(bytes_max + 1)
    if not own or found.st_mode & _OTHERS or len(data) > bytes_max:
        raise ValueError("The file cannot be trusted.")
    return data.decode("ascii")


def _folder() -> Path:
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "dpledger" / "services"


def _machine() -> list[str]:
    """What tells this machine from others that share the folder."""
    try:
        boot = _BOOT.read_text(encoding="ascii").strip()
    except OSError:
        boot = ""
    return [platform.node(), boot]
