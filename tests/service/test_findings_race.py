"""Findings that are sent at the same moment: none is lost, doubled or left untold."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.conftest import AS_ADMIN
from tests.service.samples import BATCH_SIZES, RANK, SAMPLING, Json, run, setup
from tests.service.test_findings import OTHER, alarms, find

TURNS = 20
Both = Callable[[Json, Json, str], list[int]]


@pytest.fixture
def both(address: str) -> Iterator[Both]:
    """Two clients that send at the same moment."""
    with (
        httpx.Client(base_url=address, timeout=60, headers=AS_ADMIN) as one,
        httpx.Client(base_url=address, timeout=60, headers=AS_ADMIN) as two,
        ThreadPoolExecutor(2) as pool,
    ):

        def send_both(first: Json, second: Json, name: str) -> list[int]:
            gate = threading.Barrier(2)

            def send(client: httpx.Client, finding: Json) -> int:
                gate.wait()
                return find(client, finding, run=name).status_code

            return sorted(pool.map(send, (one, two), (first, second)))

        yield send_both


def test_ranks_that_disagree_at_the_same_moment_are_never_missed(
    api: httpx.Client, both: Both
) -> None:
    setup(api)
    for turn in range(TURNS):
        name = f"run{turn}"
        assert api.post("/v1/runs", json=run(name)).status_code == 201
        second = RANK | {"rank": 1, "fingerprint": OTHER}
        assert both(RANK, second, name) == [201, 201]
        assert len(api.get(f"/v1/runs/{name}/findings").json()["findings"]) == 2
    told = Counter(one["run"] for one in alarms(api))
    assert told == {f"run{turn}": 1 for turn in range(TURNS)}


def test_the_same_finding_at_the_same_moment_is_kept_once(api: httpx.Client, both: Both) -> None:
    setup(api)
    for turn in range(TURNS):
        name = f"run{turn}"
        api.post("/v1/runs", json=run(name))
        finding = SAMPLING | {"status": "contradicted"}
        assert both(finding, finding, name) == [200, 201]
    assert len(alarms(api)) == TURNS


def test_two_verdicts_at_the_same_moment_are_one(api: httpx.Client, both: Both) -> None:
    setup(api)
    for turn in range(TURNS):
        name = f"run{turn}"
        api.post("/v1/runs", json=run(name))
        assert both(BATCH_SIZES, BATCH_SIZES | {"level": 1e-3}, name) == [201, 409]
        assert len(api.get(f"/v1/runs/{name}/findings").json()["findings"]) == 1
