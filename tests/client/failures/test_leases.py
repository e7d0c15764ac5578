"""What becomes of leases: expired, voided, fought over, and under clocks that lie."""

import itertools
import random
import threading
import time
from typing import Any

import pytest
from dpledger_client import BudgetExhausted, Client, Run
from dpledger_client.recording.write_ahead_file import read
from sqlalchemy import Engine

from service.clock import now
from service.storage.engine import transaction
from service.storage.tables import reservations
from tests.client.failures.site import BUDGET, WHAT, Site, counted, create, price, take


def leases(run: Run) -> list[str]:
    assert run._writer.path is not None
    return read(run._writer.path).leases


def expire(engine: Engine) -> None:
    """Let the time of all leases be over."""
    with transaction(engine) as connection:
        connection.execute(reservations.update().values(expires_at=now()))


def test_an_expired_lease_counts_as_spent_until_its_steps_are_recorded(
    client: Client, engine: Engine
) -> None:
    run = client.start_run("run", "data", lease_steps=20, flush_seconds=60, **WHAT)
    take(run, 5)
    assert client.dataset("data")["reserved"] > 0
    expire(engine)
    leased = price(client, 20)
    dataset = client.dataset("data")
    assert (dataset["spent"], dataset["reserved"]) == (leased, 0)
    take(run, 4)  # under a lease that is no more, which is as good
    assert counted(client) == leased
    run.flush()
    assert client.run("run")["steps"] == 9
    assert counted(client) == leased
    take(run, 16)  # beyond it
    assert counted(client) >= price(client, 25)
    expire(engine)
    run.finish()
    dataset = client.dataset("data")
    assert (dataset["spent"], dataset["reserved"]) == (client.dataset("plain-25")["spent"], 0)
    assert dataset["budget"]["overdrawn"] is False


def test_steps_under_a_voided_lease_are_kept_and_are_an_incident(
    client: Client, site: Site
) -> None:
    run = client.start_run("run", "data", lease_steps=20, flush_seconds=60, **WHAT)
    take(run, 3)
    site.void(*leases(run))
    take(run, 4)
    run.flush()
    assert client.run("run")["steps"] == 7
    assert "recorded_after_release" in site.incidents("data")
    take(run, 33)  # to the end of what was leased, and beyond under new leases
    assert counted(client) >= price(client, 33)
    run.finish()
    dataset = client.dataset("data")
    assert (dataset["spent"], dataset["reserved"]) == (price(client, 40), 0)


def test_a_voided_lease_is_taken_anew_though_steps_are_still_to_be_sent(
    client: Client, site: Site
) -> None:
    run = client.start_run("run", "data", lease_steps=5, flush_seconds=60, **WHAT)
    take(run, 3)
    site.void(*leases(run))
    take(run, 9)
    run.finish()
    assert client.run("run")["steps"] == 12
    assert counted(client) == price(client, 12)


def test_nothing_depends_on_the_clocks_of_the_trainer(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    jumps = random.Random(7)

    def erratic() -> float:
        return jumps.uniform(-1e9, 1e9)

    for place in ("time.time", "dpledger_client.recording.reservations.monotonic"):
        monkeypatch.setattr(place, erratic)
    with client.start_run("run", "data", flush_steps=3, **WHAT) as run:
        take(run, 40)
        assert counted(client) >= price(client, 40)
    dataset = client.dataset("data")
    assert (dataset["spent"], dataset["reserved"]) == (client.dataset("plain-40")["spent"], 0)


def steps_until_exhausted(run: Run) -> int:
    """All that are admitted."""
    for taken in itertools.count():
        try:
            run.step()
        except BudgetExhausted:
            assert run.next_step == taken
            return taken
    raise AssertionError


def test_two_trainers_share_a_budget_to_the_last_step(client: Client, site: Site) -> None:
    create(client, "alone")
    with client.start_run("alone", "alone", mode="strict", **WHAT) as run:
        most = steps_until_exhausted(run)
    taken: dict[str, int] = {}

    def train(name: str) -> None:
        with (
            Client(site.url) as own,
            own.start_run(name, "data", lease_steps=7, flush_steps=3, **WHAT) as run,
        ):
            taken[name] = steps_until_exhausted(run)

    threads = [threading.Thread(target=train, args=(name,)) for name in ("first", "second")]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        dataset = client.dataset("data")
        assert dataset["spent"] + dataset["reserved"] <= BUDGET["epsilon"]
        time.sleep(0.005)
    for thread in threads:
        thread.join()
    assert len(taken) == 2
    with client.start_run("third", "data", **WHAT) as third:
        taken["third"] = steps_until_exhausted(third)
    assert sum(taken.values()) == most
    assert sum(client.run(name)["steps"] for name in taken) == most
    dataset = client.dataset("data")
    assert (dataset["reserved"], dataset["budget"]["overdrawn"]) == (0, False)
    assert dataset["spent"] == client.dataset("alone")["spent"]


def test_what_one_trainer_leased_and_returned_is_there_for_the_next(client: Client) -> None:
    first = client.start_run("first", "data", lease_steps=10_000, **WHAT)
    take(first, 5)  # it holds all there is
    second = client.start_run("second", "data", **WHAT)
    with pytest.raises(BudgetExhausted):
        second.step()
    assert second.next_step == 0
    first.finish()
    take(second, 5)
    second.finish()
    assert counted(client) == price(client, 10)


@pytest.mark.parametrize("mode", ["leased", "strict"])
def test_all_that_fits_is_admitted_in_every_mode(client: Client, mode: Any) -> None:
    create(client, "alone")
    with client.start_run("alone", "alone", mode="strict", **WHAT) as run:
        most = steps_until_exhausted(run)
    with client.start_run("run", "data", mode=mode, **WHAT) as run:
        assert steps_until_exhausted(run) == most
