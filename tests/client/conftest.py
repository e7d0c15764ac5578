"""A client of a service in memory, whose waits take no time."""

from collections.abc import Iterator

import httpx
import pytest
from dpledger_client import Client

from tests.client.fake_service import FakeService


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits between retries, in seconds; none of them happens."""
    waited: list[float] = []
    monkeypatch.setattr("dpledger_client.transport.sleep", waited.append)
    monkeypatch.delenv("DPLEDGER_URL", raising=False)
    monkeypatch.delenv("DPLEDGER_API_KEY", raising=False)
    return waited


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def client(service: FakeService) -> Iterator[Client]:
    with Client(transport=httpx.MockTransport(service), retries=3) as client:
        yield client
