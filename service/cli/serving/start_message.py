"""What `dpledger serve` says to the person who started it: where to open it, and how to sign in."""

import logging
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Final

import typer

from service.identity import start_token
from service.identity.authentication import KeyRing
from service.identity.start_token import StartToken

_LOGGER: Final = logging.getLogger("dpledger.app")
_NOT_FOUND: Final = (
    "clients on this machine will not find the start token by themselves (%s): set DPLEDGER_API_KEY"
)


class Greeting:
    """What is said when the service answers; from its end on, clients find no start token."""

    def __init__(self, host: str, addresses: Sequence[tuple[str, int]], keys: KeyRing) -> None:
        """Keep what to say.

        Args:
            host: that the service was told to listen on.
            addresses: that it listens at, as numbers, each with its port.
            keys: in force.
        """
        self._host, self._addresses, self._keys = host, addresses, keys
        self._published: list[Path] = []

    def begin(self) -> None:
        """Say where to open it; let clients on this machine find its start token."""
        token = self._keys.start_token
        (address, port), *_ = self._addresses
        if token is None:
            at = _url(self._host, port)
            lines = [f"Open {at} in a browser and sign in with an API key."]
        else:
            self._publish(token)
            lines = [
                # By numbers: at another address of the same name another user may listen.
                f"Open {_url(address, port)}/sign-in?token={token.text}",
                "The link signs your browser in as an admin. Its token is in",
                f"{token.path} and ends when the first API key is created.",
            ]
        with suppress(OSError):  # standard output is closed
            # On a terminal, lines of the log are above and soon below.
            typer.echo("\n".join(["", "dpledger is ready.", *lines, ""]))

    def end(self) -> None:
        """Let no client find the start token; to be called before an address is given up."""
        while self._published:
            self._published.pop().unlink(missing_ok=True)

    def _publish(self, token: StartToken) -> None:
        try:
            for address, port in self._addresses:
                self._published.append(start_token.publish(token, address, port))
        except OSError as error:
            _LOGGER.warning(_NOT_FOUND, error)


def _url(host: str, port: int) -> str:
    """Where a browser on this machine finds the service."""
    try:
        parsed = ip_address(host)
    except ValueError:
        return f"http://{host}:{port}"
    if parsed.is_unspecified:
        return f"http://localhost:{port}"
    return f"http://[{parsed}]:{port}" if parsed.version == 6 else f"http://{parsed}:{port}"
