"""The start token of a service that has no API key yet, found by clients on the same machine.

Such a service says in a file of its user's state folder, named by host and port, where the file
with its token is. The token is sent to a loopback address alone, and read only from files that
belong to this user and that no other user can open.
"""

import ipaddress
import json
import os
import platform
import stat
from pathlib import Path
from typing import Any, Final

POINTER_BYTES_MAX: Final = 10_000
TOKEN_BYTES_MAX: Final = 200
_OTHERS: Final = 0o077  # bits of group and others
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")  # another one after each start of Linux
_LOCAL_NAMES: Final = ("localhost", "127.0.0.1", "::1")


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, by its name alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def find(host: str, port: int) -> str | None:
    """Return the token of the service at a loopback address; None where none is to be found."""
    if not is_loopback(host):
        return None
    names = dict.fromkeys((host, *_LOCAL_NAMES) if host in _LOCAL_NAMES else (host,))
    found = (_pointed_to(_folder() / f"{name}-{port}.json") for name in names)
    return next((token for token in found if token is not None), None)


def _pointed_to(pointer: Path) -> str | None:
    try:
        said: Any = json.loads(_read(pointer, POINTER_BYTES_MAX))
        if said["machine"] != _machine():
            return None
        token = _read(Path(said["token"]), TOKEN_BYTES_MAX).strip()
    except (OSError, ValueError, KeyError, TypeError):
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
