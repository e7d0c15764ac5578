"""A client of a service in memory, whose waits take no time, and a process that ends well."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from dpledger_client import Client

from tests.client.fake_service import FakeService

Waiter = Callable[[Callable[[], object]], None]


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits between retries, in seconds; none of them happens."""
    waited: list[float] = []
    for module in ("transport", "recording.branch_writer", "training.distributed"):
        monkeypatch.setattr(f"dpledger_client.{module}.sleep", waited.append)
    monkeypatch.setattr("dpledger_client.recording.branch_writer.PAUSE_SECONDS_MAX", 0.001)
    return waited


@pytest.fixture(autouse=True)
def spool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of the spools: never the user's own, and no job's environment around it."""
    for name in ("DPLEDGER_URL", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "spool"
    monkeypatch.setenv("DPLEDGER_SPOOL", str(folder))
    return folder


class AtExit:
    """What a process does when it ends in good order, done when a test says so."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def register(self, function: Callable[[], None]) -> None:
        """As of the standard library."""
        self.waiting.append(function)

    def unregister(self, function: Callable[[], None]) -> None:
        """As of the standard library."""
        self.waiting = [each for each in self.waiting if each != function]

    def run(self) -> None:
        """The process ends."""
        for function in reversed(list(self.waiting)):
            function()


@pytest.fixture(autouse=True)
def at_exit(monkeypatch: pytest.MonkeyPatch) -> Iterator[AtExit]:
    """What open runs leave to the end of the process; it happens after each test."""
    process = AtExit()
    monkeypatch.setattr("dpledger_client.recording.branch_writer.atexit", process)
    yield process
    process.run()


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def client(service: FakeService) -> Iterator[Client]:
    with Client(transport=httpx.MockTransport(service), retries=3) as client:
        yield client


@pytest.fixture
def eventually() -> Waiter:
    """Waits for what a thread does in the background."""

    def wait(holds: Callable[[], object]) -> None:
        end = time.monotonic() + 60
        while not holds():
            assert time.monotonic() < end, "it never happened"
            time.sleep(0.001)

    return wait
