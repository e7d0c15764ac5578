"""Sixty-four trainers share an envelope while services are killed and replies are lost."""

import random
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
from sqlalchemy import Engine

from benchmarks.servers import free_port
from tests.conftest import AS_ADMIN
from tests.service.samples import FULL, run
from tests.service.test_concurrency import check_ledger, process, start
from tests.service.test_envelopes import RATE, charge, create, envelope, item, state

__all__ = ["process"]  # a fixture

TRAINERS = 64
ALLOWED = 300  # steps of each item
KINDS = [(2.0, RATE), (40.0, FULL)]
GIVEN_UP = 300.0  # seconds without an answer


def train(addresses: list[str], trainer: int) -> int:
    """Charge steps until none fits, each request twice; the steps that were acknowledged."""
    draw, done, silent = random.Random(trainer), 0, time.monotonic()
    open_kinds = [0, 1]
    steps, kind = draw.randint(1, 4), draw.choice(open_kinds)
    while open_kinds:
        noise, sampling = KINDS[kind]
        try:
            with httpx.Client(base_url=draw.choice(addresses), headers=AS_ADMIN) as api:
                for _ in range(2):  # as if the first reply were lost
                    answer = charge(api, done, steps, noise, sampling, run=f"run-{trainer}")
        except httpx.TransportError:
            assert time.monotonic() - silent < GIVEN_UP
            time.sleep(0.02)
            continue
        if answer.status_code == 503:
            continue
        silent = time.monotonic()
        if answer.status_code == 409:
            if steps == 1:
                open_kinds.remove(kind)
            steps = 1
        else:
            assert answer.json()["next_step"] == done + steps, answer.text
            done, steps = done + steps, draw.randint(1, 4)
        kind = draw.choice(open_kinds) if open_kinds and steps > 1 else kind
        if open_kinds and kind not in open_kinds:
            kind = open_kinds[0]
    return done


def test_trainers_use_up_an_envelope_exactly_while_services_are_killed(
    database_url: str, engine: Engine, process: list[subprocess.Popen[bytes]]
) -> None:
    ports = [free_port(), free_port()]
    process.extend(start(database_url, port) for port in ports)
    addresses = [f"http://127.0.0.1:{port}" for port in ports]
    with httpx.Client(base_url=addresses[0], headers=AS_ADMIN) as api:
        limit = envelope(
            *(item(noise, sampling, ALLOWED) for noise, sampling in KINDS), epsilon=9.0
        )
        assert create(api, limit).status_code == 201
        for trainer in range(TRAINERS):
            assert api.post("/v1/runs", json=run(f"run-{trainer}")).status_code == 201
    with ThreadPoolExecutor(TRAINERS) as pool:
        waiting = [pool.submit(train, addresses, trainer) for trainer in range(TRAINERS)]
        for _ in range(2):
            time.sleep(1.0)
            for place, port in enumerate(ports):
                process[place].send_signal(signal.SIGKILL)
                process[place].wait()
                process[place] = start(database_url, port)
        done = [one.result() for one in waiting]
    with httpx.Client(base_url=addresses[0], headers=AS_ADMIN) as api:
        found = state(api)
        assert [one["used"] for one in found["items"]] == [ALLOWED, ALLOWED]
        assert (found["remaining_steps"], found["overdrawn"]) == (0, False)
        recorded = [api.get(f"/v1/runs/run-{one}").json()["steps"] for one in range(TRAINERS)]
    assert recorded == done
    check_ledger(engine, [f"run-{one}" for one in range(TRAINERS)], 2 * ALLOWED)
