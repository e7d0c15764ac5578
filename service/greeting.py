"""What `dpledger serve` says to the person who started it: where to open it, and how to sign in."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Final

import typer

from service import start_token
from service.auth import KeyRing

_LOGGER: Final = logging.getLogger("dpledger.app")
_NOT_FOUND: Final = (
    "clients on this machine will not find the start token by themselves (%s): set DPLEDGER_API_KEY"
)


@contextmanager
def greeting(host: str, port: int, keys: KeyRing) -> Iterator[Callable[[], None]]:
    """What to call when the service answers; in the end clients find no start token any more.

    Args:
        host: that it was told to listen on.
        port: that it listens on.
        keys: in force.
    """
    published: list[Path] = []

    def greet() -> None:
        token, address = keys.start_token, _address(host, port)
        lines = [f"Open {address} in a browser and sign in with an API key."]
        if token is not None:
            try:
                published.append(start_token.publish(token, host, port))
            except OSError as error:
                _LOGGER.warning(_NOT_FOUND, error)
            lines = [
                f"Open {address}/sign-in?token={token.text}",
                "The link signs a browser in as an admin. Its token is in",
                f"{token.path} and ends when the first API key is created.",
            ]
        with suppress(OSError):  # nobody reads it
            typer.echo("\n".join(lines))

    try:
        yield greet
    finally:
        for path in published:
            path.unlink(missing_ok=True)


def _address(host: str, port: int) -> str:
    """Where a browser on this machine finds the service."""
    try:
        parsed = ip_address(host)
    except ValueError:
        return f"http://{host}:{port}"
    if parsed.is_unspecified:
        return f"http://localhost:{port}"
    return f"http://[{parsed}]:{port}" if parsed.version == 6 else f"http://{parsed}:{port}"
