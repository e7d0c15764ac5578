"""Many clients at once, and a killed service: nothing lost, nothing counted twice."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx
import pytest
from sqlalchemy import Engine, select

from accounting.event_counts import EventCounts
from benchmarks.servers import free_port
from service.guarantees.event_counts import dataset_counts, run_counts
from service.guarantees.recorded_facts import refold_run
from service.ledger.lookups import find_dataset, find_run
from service.storage.engine import snapshot
from service.storage.tables import entries
from tests.conftest import AS_ADMIN
from tests.service.samples import BUDGET, append, event, run, setup
from tests.service.sse import until

CLIENTS = 8
APPENDS = 25


def branch_of(worker: int) -> dict[str, object]:
    return {"name": f"b{worker}", "writer": f"writer-number-{worker:04}", "from_step": 0}


def worker_of(address: str, worker: int, *, run_name: str, branch: str) -> int:
    """Append steps one by one, each request twice as after a lost reply; how many were new."""
    accepted = 0
    with httpx.Client(base_url=address, timeout=60, headers=AS_ADMIN) as api:
        for step in range(APPENDS):
            mechanism = {"kind": "gaussian", "noise_multiplier": 1.0 + (worker + step) % 3}
            for _ in range(2):
                answer = append(
                    api, event(step, 1, mechanism=mechanism), run=run_name, branch=branch
                )
                assert answer.status_code in (200, 201), answer.text
                accepted += answer.json()["accepted"]
    return accepted


def check_ledger(engine: Engine, runs: list[str], steps: int) -> None:
    """Sequences without gaps, and balances equal to the fold over the entries."""
    with snapshot(engine) as connection:
        found = find_dataset(connection, "data")
        sequences = list(
            connection.scalars(select(entries.c.sequence).order_by(entries.c.sequence))
        )
        assert sequences == list(range(1, found.head_sequence + 1))
        total: dict[object, int] = {}
        for name in runs:
            row = find_run(connection, name)
            counts = run_counts(connection, row.id, found.dataset_size)
            assert counts == refold_run(connection, row, found.dataset_size)
            for key, count in counts.steps.items():
                total[key] = total.get(key, 0) + count
        assert dataset_counts(connection, found) == EventCounts(steps=total)  # type: ignore[arg-type]
        assert sum(total.values()) == steps


def test_eight_clients_on_branches_of_one_run_lose_nothing(
    address: str, api: httpx.Client, engine: Engine
) -> None:
    setup(api)
    for worker in range(CLIENTS):
        assert api.post("/v1/runs/run/branches", json=branch_of(worker)).status_code == 201
    with ThreadPoolExecutor(CLIENTS) as pool:
        counts = pool.map(
            lambda worker: worker_of(address, worker, run_name="run", branch=f"b{worker}"),
            range(CLIENTS),
        )
    assert list(counts) == [APPENDS] * CLIENTS
    check_ledger(engine, ["run"], CLIENTS * APPENDS)


def test_eight_clients_on_eight_runs_of_one_dataset_lose_nothing(
    address: str, api: httpx.Client, engine: Engine
) -> None:
    setup(api, name="run0")
    for worker in range(1, CLIENTS):
        assert api.post("/v1/runs", json=run(f"run{worker}")).status_code == 201
    with ThreadPoolExecutor(CLIENTS) as pool:
        counts = pool.map(
            lambda worker: worker_of(address, worker, run_name=f"run{worker}", branch="main"),
            range(CLIENTS),
        )
    assert list(counts) == [APPENDS] * CLIENTS
    check_ledger(engine, [f"run{worker}" for worker in range(CLIENTS)], CLIENTS * APPENDS)


def test_eight_clients_racing_on_the_same_steps_record_each_step_once(
    address: str, api: httpx.Client, engine: Engine
) -> None:
    setup(api)

    def race(_worker: int) -> int:
        accepted = 0
        with httpx.Client(base_url=address, timeout=60, headers=AS_ADMIN) as client:
            for step in range(APPENDS):
                answer = append(client, event(step, 1))
                assert answer.status_code in (200, 201), answer.text
                accepted += answer.json()["accepted"]
        return accepted

    with ThreadPoolExecutor(CLIENTS) as pool:
        assert sum(pool.map(race, range(CLIENTS))) == APPENDS
    check_ledger(engine, ["run"], APPENDS)


def test_a_budget_is_never_passed_by_racing_charges(address: str, api: httpx.Client) -> None:
    setup(api, name="run0", dataset_given={"budget": BUDGET})
    for worker in range(1, CLIENTS):
        api.post("/v1/runs", json=run(f"run{worker}"))
    expensive = {"kind": "gaussian", "noise_multiplier": 8.0}

    def charge(worker: int) -> int:
        admitted = 0
        with httpx.Client(base_url=address, timeout=60, headers=AS_ADMIN) as client:
            for _ in range(APPENDS):
                step = event(admitted, 1, mechanism=expensive, sampling={"kind": "full"})
                answer = append(client, step, run=f"run{worker}", mode="charge")
                assert answer.status_code in (201, 409), answer.text
                admitted += answer.status_code == 201
        return admitted

    with ThreadPoolExecutor(CLIENTS) as pool:
        admitted = sum(pool.map(charge, range(CLIENTS)))
    state = api.get("/v1/datasets/data").json()
    assert state["spent"] <= 3.0
    assert 0 < admitted < CLIENTS * APPENDS
    # One more does not fit, so the race left no room unused either.
    step = event(0, 1, mechanism=expensive, sampling={"kind": "full"})
    api.post("/v1/runs", json=run("late"))
    assert append(api, step, run="late", mode="charge").status_code == 409


@pytest.fixture
def process(database_url: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for child in started:
        child.kill()
        child.wait()


def start(database_url: str, port: int) -> subprocess.Popen[bytes]:
    child = subprocess.Popen(
        [sys.executable, "-m", "service.cli.main", "serve", "--port", str(port)],
        env=os.environ | {"DPLEDGER_DATABASE_URL": database_url},
        stderr=subprocess.DEVNULL,
    )
    until(lambda: ready(port), seconds=120)
    return child


def ready(port: int) -> bool:
    with suppress(httpx.TransportError):
        return httpx.get(f"http://127.0.0.1:{port}/readyz").status_code == 200
    return False


def test_two_processes_on_one_database_lose_nothing(
    database_url: str, engine: Engine, process: list[subprocess.Popen[bytes]]
) -> None:
    ports = [free_port(), free_port()]
    process.extend(start(database_url, port) for port in ports)
    addresses = [f"http://127.0.0.1:{port}" for port in ports]
    names = [f"run{worker}" for worker in range(CLIENTS)]
    with httpx.Client(base_url=addresses[0], headers=AS_ADMIN) as api:
        setup(api, name=names[0])
        for name in names[1:]:
            assert api.post("/v1/runs", json=run(name)).status_code == 201

    def work(worker: int) -> int:
        return worker_of(addresses[worker % 2], worker, run_name=names[worker], branch="main")

    with ThreadPoolExecutor(CLIENTS) as pool:
        assert list(pool.map(work, range(CLIENTS))) == [APPENDS] * CLIENTS
    check_ledger(engine, names, CLIENTS * APPENDS)


def load(address: str, worker: int, acknowledged: list[int], stop: threading.Event) -> None:
    """Append single steps until told to stop, noting each acknowledged one."""
    with httpx.Client(base_url=address, headers=AS_ADMIN) as api:
        while not stop.is_set():
            try:
                answer = append(api, event(acknowledged[worker], 1), run=f"run{worker}")
            except httpx.TransportError:
                time.sleep(0.01)
                continue
            if answer.status_code in (200, 201):
                acknowledged[worker] = answer.json()["next_step"]


def test_a_killed_service_loses_no_acknowledged_step(
    database_url: str, engine: Engine, process: list[subprocess.Popen[bytes]]
) -> None:
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    process.append(start(database_url, port))
    with httpx.Client(base_url=address, headers=AS_ADMIN) as api:
        setup(api, name="run0")
        for worker in range(1, CLIENTS):
            assert api.post("/v1/runs", json=run(f"run{worker}")).status_code == 201
    acknowledged = [0] * CLIENTS
    stop = threading.Event()
    threads = [
        threading.Thread(target=load, args=(address, worker, acknowledged, stop))
        for worker in range(CLIENTS)
    ]
    for thread in threads:
        thread.start()
    for _ in range(3):
        time.sleep(0.7)
        process[-1].send_signal(signal.SIGKILL)
        process[-1].wait()
        process.append(start(database_url, port))
    time.sleep(0.5)
    until(lambda: min(acknowledged) > 0)
    stop.set()
    for thread in threads:
        thread.join()
    with httpx.Client(base_url=address, headers=AS_ADMIN) as api:
        recorded = [api.get(f"/v1/runs/run{worker}").json()["steps"] for worker in range(CLIENTS)]
    # The last request may have been stored without its answer arriving; never the reverse.
    assert all(a <= r <= a + 1 for a, r in zip(acknowledged, recorded, strict=True))
    check_ledger(engine, [f"run{worker}" for worker in range(CLIENTS)], sum(recorded))
