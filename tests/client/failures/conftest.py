"""A service that comes and goes, and clients whose waits are short."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from dpledger_client import Client

from tests.client.failures.site import Site, create


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpledger_client.transport.BACKOFF_SECONDS", 0.01)
    monkeypatch.setattr("dpledger_client.recording.branch_writer.WAIT_SECONDS", 0.02)
    monkeypatch.setattr("dpledger_client.recording.branch_writer.PAUSE_SECONDS_MAX", 0.05)


@pytest.fixture
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DPLEDGER_SPOOL", str(tmp_path / "spool"))
    return tmp_path / "spool"


@pytest.fixture
def site(database_url: str, spool: Path) -> Iterator[Site]:
    with Site(database_url) as site:
        yield site


@pytest.fixture
def client(site: Site) -> Iterator[Client]:
    with Client(site.url, retries=2) as client:
        create(client)
        yield client
