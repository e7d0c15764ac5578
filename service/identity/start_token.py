"""The start token: what signs in as an admin until the first API key is created.

A service on a loopback address that has no key makes one, 256 random bits, and keeps it in a file
beside the database. A second file, in the user's state folder and named by address and port, says
where that file is, so that clients of the same user on the same machine find it by themselves.
They send the token to that address alone, and only while the process that wrote the second file
lives: at any other address, or later, another user's process may listen.
"""

import json
import os
import platform
import re
import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from service.errors import StartupError
from service.identity import secret_files
from service.identity.secret_files import SecretFileError
from service.settings import is_loopback

BYTES: Final = 32  # of randomness
FILE_BYTES_MAX: Final = 200
POINTER_BYTES_MAX: Final = 10_000
_FORM: Final = re.compile(r"[A-Za-z0-9._~-]{32,128}")
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")  # another one after each start of Linux
_LOCALHOST: Final = ("127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class StartToken:
    """A token and the file that holds it."""

    text: str = field(repr=False)
    path: Path

    @classmethod
    def load_or_create(cls, path: Path) -> "StartToken":
        """Read the token of a file, made first where there is none.

        Raises:
            StartupError: the file cannot be read or made, is open to other users, or holds no
                token.
        """
        try:
            if not path.exists():
                with suppress(FileExistsError):  # another process has just made it
                    secret_files.create(path, f"dpl_{secrets.token_urlsafe(BYTES)}")
            text = secret_files.read_secret(path, bytes_max=FILE_BYTES_MAX)
        except SecretFileError as error:
            raise StartupError(f"DPLEDGER_START_TOKEN_FILE: {error}.") from None
        except OSError as error:
            raise StartupError(
                f"DPLEDGER_START_TOKEN_FILE: {path}: {error.strerror}. There is no key yet: name a "
                "file that can be written, or create a key with `dpledger keys create --scope "
                "admin --name admin`."
            ) from None
        if not _FORM.fullmatch(text):
            raise StartupError(f"DPLEDGER_START_TOKEN_FILE: {path} holds no token; remove it.")
        return cls(text, path.absolute())


class FoundToken(NamedTuple):
    """A token, and the only address that it may be sent to."""

    url: str
    token: str


def publish(token: StartToken, address: str, port: int) -> Path:
    """Say in the user's state folder where the token of this process is; return that file.

    Args:
        token: of this process.
        address: that this process listens at, as numbers.
        port: that it listens at.

    Raises:
        OSError: it cannot be written.
    """
    path = _pointer(address, port)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # of a service that was killed
    said = {"machine": _machine(), "process": os.getpid(), "token": str(token.path)}
    secret_files.create(path, json.dumps(said))
    return path


def find_start_token(url: str) -> FoundToken | None:
    """The start token of the service at an address, where it is one of this user and machine."""
    given = urlsplit(url)
    host = given.hostname or ""
    if not is_loopback(host):
        return None
    port = given.port or (443 if given.scheme == "https" else 80)
    addresses = _LOCALHOST if host == "localhost" else (str(ip_address(host)),)
    for address in addresses:
        token = _read_pointer(_pointer(address, port))
        if token is not None:
            at = f"[{address}]" if ":" in address else address
            return FoundToken(given._replace(netloc=f"{at}:{port}").geturl(), token)
    return None


def _read_pointer(path: Path) -> str | None:
    try:
        pointer: Any = json.loads(secret_files.read_secret(path, bytes_max=POINTER_BYTES_MAX))
        if pointer["machine"] != _machine():
            return None
        os.kill(pointer["process"], 0)  # it lives, and is this user's
        return secret_files.read_secret(Path(pointer["token"]), bytes_max=FILE_BYTES_MAX)
    except (OSError, SecretFileError, ValueError, KeyError, TypeError, OverflowError):
        return None


def _pointer(address: str, port: int) -> Path:
    state = os.environ.get("XDG_STATE_HOME")
    folder = Path(state) if state else Path.home() / ".local" / "state"
    return folder / "dpledger" / "services" / f"{address}-{port}.json"


def _machine() -> list[str]:
    """What tells this machine from others that share the folder."""
    try:
        boot = _BOOT.read_text(encoding="ascii").strip()
    except OSError:
        boot = ""
    return [platform.node(), boot]
