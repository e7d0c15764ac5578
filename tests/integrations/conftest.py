"""A real service beside the real frameworks: each in an environment of its own."""

import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from dpledger_client import Client
from dpledger_client.wire_types import NeighboringRelation, TheoremStatus

from benchmarks.ports import free_port

ROOT = Path(__file__).parents[2]
COMMAND = os.environ.get("DPLEDGER_COMMAND", str(ROOT / ".venv" / "bin" / "dpledger"))
START_SECONDS = 60.0


class Service:
    """`dpledger serve` on a file; it can be killed and started again at the same address."""

    def __init__(self, database: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.database = database
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Serve, and wait until it answers."""
        words = [COMMAND, "serve", "--port", str(self.port)]
        words += ["--database", f"sqlite:///{self.database}"]
        with self.database.with_suffix(".log").open("ab") as log:
            self._process = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            try:
                if httpx.get(f"{self.url}/readyz", timeout=START_SECONDS).is_success:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        raise RuntimeError("The service did not start.")

    @property
    def token(self) -> str:
        """What signs in as an admin: the service has no key."""
        return Path(f"{self.database}.token").read_text(encoding="ascii").strip()

    def verified(self, certificate: Path) -> subprocess.CompletedProcess[str]:
        """What `dpledger verify` says: it has the file, the public key, and no service."""
        shown = subprocess.run(
            [COMMAND, "signing-key", "show", "--database", f"sqlite:///{self.database}"],
            capture_output=True, text=True, check=True, timeout=240,
        )  # fmt: skip
        words = [COMMAND, "verify", str(certificate), "--public-key", shown.stdout.split("\t")[0]]
        given = {name: text for name, text in os.environ.items() if "DPLEDGER" not in name}
        return subprocess.run(
            words, capture_output=True, text=True, check=False, timeout=240, env=given
        )

    def kill(self) -> None:
        """As the machine would: at once, whatever it is doing."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    service = Service(tmp_path_factory.mktemp("service") / "ledger.db")
    service.start()
    os.environ["DPLEDGER_API_KEY"] = service.token
    yield service
    service.kill()


@pytest.fixture(scope="session")
def service_url(service: Service) -> str:
    return service.url


@pytest.fixture
def spool(service_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where trainers of this test spool; DPLEDGER_SPOOL and DPLEDGER_URL are set."""
    monkeypatch.setenv("DPLEDGER_SPOOL", str(tmp_path / "spool"))
    monkeypatch.setenv("DPLEDGER_URL", service_url)
    return tmp_path / "spool"


@pytest.fixture
def client(service_url: str) -> Iterator[Client]:
    with Client(service_url) as client:
        yield client


@pytest.fixture
def dataset(client: Client) -> Callable[..., str]:
    """Creates a dataset, by default one of a name of its own."""

    def create(
        name: str | None = None,
        *,
        dataset_size: int,
        relation: NeighboringRelation = "add_or_remove_one",
        budget: dict[str, Any] | None = None,
        accept: list[TheoremStatus] | None = None,
    ) -> str:
        name = name or f"data-{secrets.token_hex(6)}"
        client.create_dataset(
            name,
            dataset_size=dataset_size,
            neighboring_relation=relation,
            privacy_unit="one record",
            budget=budget,
            accept=accept,
        )
        return name

    return create
