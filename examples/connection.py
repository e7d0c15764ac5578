"""A client for the examples: of a running service, or of one that lives as long as they do."""

import math
import os
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import httpx
from dpledger_client import Client, DPLedgerError

TIMEOUT_SECONDS: Final = 60.0  # of an answer; all runs of a dataset take a few seconds to compose


def add_arguments(parser: ArgumentParser) -> None:
    """Where the service is."""
    parser.add_argument("--url", help="of a service; by default a temporary one is started")
    parser.add_argument("--key", help="API key, admin scope; by default DPLEDGER_API_KEY")


@contextmanager
def connected(arguments: Namespace) -> Iterator[Client]:
    """A client of the service at --url, or of a temporary one on a SQLite file.

    A refusal of the service ends the example with the reason, and exit code 1.
    """
    try:
        with _given(arguments) if arguments.url else _temporary() as client:
            yield client
    except DPLedgerError as error:
        raise SystemExit(f"dpledger: {error}") from error


def _given(arguments: Namespace) -> Client:
    return Client(arguments.url, arguments.key, timeout_seconds=TIMEOUT_SECONDS)


@contextmanager
def _temporary() -> Iterator[Client]:
    from service.cli.demo import running_service  # a trainer with --url needs the client only

    # A transport of our own, because httpx's would ask a proxy named in the environment.
    transport = httpx.HTTPTransport()
    with (
        TemporaryDirectory(prefix="dpledger-example-") as folder,
        running_service(Path(folder)) as url,
        Client(url, timeout_seconds=TIMEOUT_SECONDS, transport=transport) as client,
    ):
        # Spools of a service that is gone would be of no use to anybody.
        os.environ["DPLEDGER_SPOOL"] = folder
        yield client


def rounded_up(epsilon: float) -> float:
    """To four decimals, so that what is printed is an upper bound, too."""
    return math.ceil(epsilon * 1e4) / 1e4
