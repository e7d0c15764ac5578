"""The guide's balancers: a dataset at one replica, and datasets on several primaries."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest
from dpledger_client import Client, NotFound, gaussian, poisson
from dpledger_client.errors import DPLedgerError

from benchmarks.servers import START_TOKEN, free_port
from service.settings import Settings
from service.storage import migrations
from service.storage.engine import connect
from tests.conftest import AS_ADMIN, running
from tests.service.proxy import blocks_of_guide, nginx

Serve = Callable[..., AbstractContextManager[str]]
WITH_SERVER = "proxy_set_header Host $host; add_header X-Server $upstream_addr always;"
GIVEN: Any = {
    "budget": {"epsilon": 8.0, "delta": 1e-5},
    "neighboring_relation": "add_or_remove_one",
    "privacy_unit": "person",
}
NAMES = [f"data-{number}" for number in range(4)]


class Watched(httpx.HTTPTransport):
    """Keeps which server answered each request, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str | None, str, str]] = []  # the header, the path, the server

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        answer = super().handle_request(request)
        told, server = request.headers.get("x-ledger-dataset"), answer.headers["x-server"]
        self.seen.append((told, request.url.path, server))
        return answer


def blocks_of(heading: str, first: str, second: str, port: int) -> str:
    """The guide's nginx configuration below a heading, for two services and a port."""
    changed = {
        "127.0.0.1:8001": first.removeprefix("http://"),
        "127.0.0.1:8002": second.removeprefix("http://"),
        "proxy_set_header Host $host;": WITH_SERVER,
    }
    return blocks_of_guide(heading, port, changed)


def train(client: Client, name: str, dataset: str, steps: int) -> None:
    mechanism, sampling = gaussian(noise_multiplier=1.0), poisson(sampling_probability=0.01)
    with client.start_run(
        name, dataset, mode="strict", mechanism=mechanism, sampling=sampling
    ) as run:
        for _ in range(steps):
            run.step()


@pytest.fixture
def replicas(serve: Serve, tmp_path: Path) -> Iterator[tuple[Client, Watched]]:
    """A client of a balancer before two services on one database."""
    port, watched = free_port(), Watched()
    with (
        serve() as first,
        serve() as second,
        nginx(tmp_path, blocks_of("One replica for a dataset", first, second, port), port) as front,
        Client(front, START_TOKEN, transport=watched) as client,
    ):
        yield client, watched


def test_all_requests_of_a_runs_dataset_go_to_one_replica(
    replicas: tuple[Client, Watched],
) -> None:
    client, watched = replicas
    for name in NAMES:
        client.create_dataset(name, dataset_size=1000, **GIVEN)
        train(client, f"run-{name}", name, steps=3)
    servers = {name: {server for told, _, server in watched.seen if told == name} for name in NAMES}
    assert all(len(found) == 1 for found in servers.values()), servers
    unnamed = [path for told, path, _ in watched.seen if told is None]
    assert not [path for path in unnamed if path.startswith("/v1/runs")], unnamed
    assert {client.run(f"run-{name}")["next_step"] for name in NAMES} == {3}


def test_requests_that_name_no_dataset_go_to_both(replicas: tuple[Client, Watched]) -> None:
    client, watched = replicas
    for _ in range(60):  # all at one of the two: a chance of 2e-18
        list(client.datasets())
    assert len({server for _, _, server in watched.seen}) == 2


def test_datasets_are_divided_among_replicas(replicas: tuple[Client, Watched]) -> None:
    client, watched = replicas
    for number in range(60):
        list(client._transport.of_dataset(f"data-{number}").listed("/v1/datasets", "datasets"))
    assert len({server for _, _, server in watched.seen}) == 2


@pytest.fixture
def primaries(serve: Serve, tmp_path: Path) -> Iterator[tuple[Client, str, str]]:
    """A client of a balancer before two databases, and their own addresses."""
    other = f"sqlite:///{tmp_path / 'other.db'}"
    engine = connect(other)
    migrations.upgrade(engine)
    engine.dispose()
    port = free_port()
    with (
        serve() as first,
        running(Settings(database_url=other)) as second,
        nginx(tmp_path, blocks_of("Several primaries", first, second, port), port) as front,
        Client(front, START_TOKEN, transport=Watched()) as client,
    ):
        yield client, first, second


def names_at(address: str) -> set[str]:
    found = httpx.get(f"{address}/v1/datasets", headers=AS_ADMIN).json()["datasets"]
    return {one["name"] for one in found}


def test_each_family_is_on_its_own_primary(primaries: tuple[Client, str, str]) -> None:
    client, first, second = primaries
    client.create_dataset("photos", dataset_size=1000, **GIVEN)
    client.create_dataset("texts", dataset_size=1000, **GIVEN)
    client.create_dataset(
        "photos-faces", dataset_size=100, **GIVEN, parents=["photos"], rows_per_parent_record=1
    )
    assert names_at(first) == {"texts"}
    assert names_at(second) == {"photos", "photos-faces"}
    train(client, "on-photos", "photos-faces", steps=4)
    train(client, "on-texts", "texts", steps=2)
    for address, name, steps in ((first, "on-texts", 2), (second, "on-photos", 4)):
        found = httpx.get(f"{address}/v1/runs/{name}", headers=AS_ADMIN).json()
        assert (found["name"], found["next_step"]) == (name, steps)
    assert httpx.get(f"{first}/v1/runs/on-photos", headers=AS_ADMIN).status_code == 404
    spent = client.dataset("photos")["budget"]["share"]
    assert 0 < spent < 1, "the ancestor of the dataset is charged, at the same primary"


def test_a_family_does_not_spread(primaries: tuple[Client, str, str]) -> None:
    client, first, second = primaries
    client.create_dataset("photos", dataset_size=1000, **GIVEN)
    with pytest.raises(DPLedgerError) as refused:
        client.create_dataset(
            "faces", dataset_size=100, **GIVEN, parents=["photos"], rows_per_parent_record=1
        )
    assert refused.value.status == 404
    assert names_at(first) == set()
    assert names_at(second) == {"photos"}


def test_what_a_wrong_map_sends_elsewhere_is_not_recorded(
    primaries: tuple[Client, str, str],
) -> None:
    client, first, second = primaries
    with Client(second, START_TOKEN) as direct:  # as a map did that was changed since
        direct.create_dataset("texts", dataset_size=1000, **GIVEN)
    with pytest.raises(NotFound):
        train(client, "lost", "texts", steps=1)
    for address in (first, second):
        assert httpx.get(f"{address}/v1/runs/lost", headers=AS_ADMIN).status_code == 404
