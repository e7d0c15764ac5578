"""A real service at a fixed address, which tests stop and start again."""

import threading
import time
from pathlib import Path
from typing import Any, Final, Self

import dpledger_client as dp
import httpx
import pytest
import uvicorn
from dpledger_client import Client, Run
from dpledger_client.recording.sync import Synced

from benchmarks.servers import free_port
from service.app import create_app
from service.settings import Settings
from service.web.server import Server
from tests.conftest import AS_ADMIN

# Where the client is alone, it cannot matter which database the service is on.
ON_SQLITE: Final = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
BUDGET: Final = {"epsilon": 3.0, "delta": 1e-5, "orders": [8.0]}
WHAT: Final[dict[str, Any]] = {
    "mechanism": dp.gaussian(noise_multiplier=12.0),
    "sampling": dp.full(),
}


class Site:
    """In this process, so that it comes and goes in no time; over real HTTP."""

    def __init__(self, database_url: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._settings = Settings(database_url=database_url)
        self._server: Server | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def start(self) -> None:
        config = uvicorn.Config(
            create_app(self._settings), host="127.0.0.1", port=self.port, log_config=None
        )
        self._server = Server(config)
        self._thread = threading.Thread(target=self._server.run)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.002)

    def stop(self) -> None:
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join()
        self._server = self._thread = None

    def kill(self) -> None:
        self.stop()

    def answers(self) -> bool:
        return self._server is not None

    def restart(self) -> None:
        self.stop()
        self.start()

    def incidents(self, dataset: str) -> list[str]:
        found = httpx.get(f"{self.url}/v1/datasets/{dataset}/incidents", headers=AS_ADMIN).json()[
            "incidents"
        ]
        return [one["kind"] for one in found]

    def void(self, lease: str) -> None:
        path = f"{self.url}/v1/reservations/{lease}:void"
        httpx.post(
            path, json={"reason": "its trainer is believed dead"}, headers=AS_ADMIN
        ).raise_for_status()


class LosesAnswer(httpx.BaseTransport):
    """The first request to a path is served, the service restarted, and the answer lost."""

    def __init__(self, site: Site, path: str) -> None:
        self.inner = httpx.HTTPTransport()
        self.site = site
        self.path = path
        self.lost: list[Any] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = self.inner.handle_request(request)
        if request.url.path.endswith(self.path) and not self.lost:
            response.read()
            self.lost.append(response.status_code)
            response.close()
            self.site.restart()
            raise httpx.ReadError("The answer was lost.", request=request)
        return response

    def close(self) -> None:
        self.inner.close()


def create(client: Client, name: str = "data") -> None:
    client.create_dataset(
        name,
        dataset_size=1000,
        neighboring_relation="add_or_remove_one",
        privacy_unit="record",
        budget=BUDGET,
    )


def take(run: Run, steps: int) -> None:
    for _ in range(steps):
        run.step()


def die(run: Run) -> None:
    """What SIGKILL does to a run: nothing is sent, nothing returned, the spool is let go."""
    run._writer.close(complete=False)


def price(client: Client, steps: int) -> float:
    """What so many steps cost, told in one go to a dataset of the same budget."""
    name = f"plain-{steps}"
    create(client, name)
    with client.start_run(name, name, mode="observe", **WHAT) as run:
        run.step(steps=steps)
    spent: float = client.dataset(name)["spent"]
    return spent


def counted(client: Client) -> float:
    """What stands against the budget, whoever holds it."""
    dataset = client.dataset("data")
    total: float = dataset["spent"] + dataset["reserved"]
    return total


def synced(client: Client, *paths: Path, ended: bool = False) -> list[Synced]:
    """Sync all of it."""
    results = []
    for result in client.sync(*paths, ended=ended):
        assert isinstance(result, Synced), result
        results.append(result)
    return results
