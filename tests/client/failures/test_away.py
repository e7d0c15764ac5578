"""What becomes of a run while the service or the network is away.

The long form is benchmarks/outage.py.
"""

import shutil
from pathlib import Path
from typing import Any

import pytest
from dpledger_client import Client, NotFound, RunExists, Unavailable
from dpledger_client.recording.branch_writer import MODES
from dpledger_client.recording.write_ahead_file import read

from benchmarks import outage
from tests.client.failures.site import (
    ON_SQLITE,
    WHAT,
    LosesAnswer,
    Site,
    counted,
    die,
    price,
    synced,
    take,
)

pytestmark = ON_SQLITE


def test_training_goes_on_while_the_service_is_gone_and_comes_back(site: Site, spool: Path) -> None:
    short = outage.Outage(seconds=0.5, before_seconds=0.4, after_seconds=0.2)
    report = outage.hold(site, spool, short)
    assert report.steps["during"] > 0
    assert sum(report.steps.values()) == report.recorded
    assert report.epsilon == report.plain == report.planned
    assert report.reserved == 0


def test_a_training_that_ends_while_the_service_is_away_is_sent_later(
    client: Client, site: Site, spool: Path
) -> None:
    run = client.start_run("run", "data", lease_steps=40, **WHAT)
    take(run, 2)
    site.stop()
    take(run, 20)
    assert run.finish() is None
    site.start()
    assert counted(client) >= price(client, 22)
    assert [(one.steps, one.ended) for one in synced(client, spool)] == [(22, True)]
    found = client.run("run")
    assert (found["steps"], found["state"]) == (22, "finished")
    assert counted(client) == client.dataset("plain-22")["spent"]
    assert synced(client, spool) == []


def test_a_step_beyond_the_lease_waits_for_the_service_and_then_raises(
    client: Client, site: Site
) -> None:
    run = client.start_run("run", "data", lease_steps=3, wait_seconds=0.1, **WHAT)
    take(run, 1)
    site.stop()
    take(run, 2)
    with pytest.raises(Unavailable):
        run.step()
    assert run.next_step == 3
    site.start()
    take(run, 1)
    run.finish()
    assert client.run("run")["steps"] == 4
    assert counted(client) == price(client, 4)


def test_a_strict_step_is_not_taken_while_the_service_is_away(client: Client, site: Site) -> None:
    run = client.start_run("run", "data", mode="strict", wait_seconds=0.1, **WHAT)
    take(run, 2)
    site.stop()
    with pytest.raises(Unavailable):
        run.step()
    site.start()
    take(run, 1)
    run.finish()
    assert client.run("run")["steps"] == run.next_step == 3


@pytest.mark.parametrize(
    ("mode", "path"),
    [
        ("leased", "/runs"),
        ("leased", "/events"),
        ("leased", "/reservations"),
        ("leased", ":release"),
        ("leased", ":finish"),
        ("strict", "/events"),
    ],
)
def test_a_service_that_restarts_before_it_answers_has_done_it_once(
    client: Client, site: Site, path: str, mode: Any
) -> None:
    transport = LosesAnswer(site, path)
    with Client(site.url, transport=transport) as losing:
        run = losing.start_run("run", "data", mode=mode, lease_steps=4, **WHAT)
        take(run, 6)
        run.finish()
    assert len(transport.lost) == 1
    assert (client.run("run")["steps"], client.run("run")["state"]) == (6, "finished")
    assert counted(client) == price(client, 6)


@pytest.mark.parametrize("mode", ["leased", "strict"])
def test_a_run_that_would_have_to_ask_does_not_start_without_the_service(
    client: Client, site: Site, spool: Path, mode: Any
) -> None:
    site.stop()
    for dataset_size in (None, 1000):
        with pytest.raises(Unavailable):
            client.start_run("run", "data", mode=mode, dataset_size=dataset_size, **WHAT)
    assert not spool.exists() or list(spool.glob("*.spool")) == []


def test_an_observed_run_starts_without_the_service_and_registers_later(
    client: Client, site: Site
) -> None:
    site.stop()
    run = client.start_run("run", "data", mode="observe", **WHAT)
    take(run, 5)
    site.start()
    run.flush()
    assert client.run("run")["steps"] == 5
    take(run, 2)
    run.finish()
    assert counted(client) == price(client, 7)


def test_an_observed_run_that_was_never_online_is_synced_later(
    client: Client, site: Site, spool: Path
) -> None:
    site.stop()
    with client.start_run("run", "data", mode="observe", **WHAT) as run:
        take(run, 5)
    site.start()
    assert [one.steps for one in synced(client, spool)] == [5]
    assert (client.run("run")["steps"], client.run("run")["state"]) == (5, "finished")


def test_a_name_that_was_taken_meanwhile_is_told_and_nothing_is_lost(
    client: Client, site: Site, spool: Path
) -> None:
    site.stop()
    run = client.start_run("run", "data", mode="observe", **WHAT)
    take(run, 5)
    site.start()
    client.start_run("run", "data", mode="observe", **WHAT).finish()
    with pytest.raises(RunExists):
        run.flush()
    take(run, 2)
    with pytest.raises(RunExists):
        run.finish()
    die(run)
    (mine,) = [path for path in spool.glob("*.spool") if not read(path).closed]
    ((path, error),) = client.sync(spool)  # type: ignore[misc]
    assert (path, type(error)) == (mine, RunExists)
    assert read(mine).next_step == 7
    assert client.run("run")["steps"] == 0


def test_a_spool_from_a_machine_without_a_network_is_synced_as_often_as_one_likes(
    client: Client, site: Site, spool: Path, tmp_path: Path
) -> None:
    with Client("http://127.0.0.1:9", retries=0) as nowhere:
        run = nowhere.start_run("run", "data", mode="observe", **WHAT)
        take(run, 5)
        state = run.state_dict()
        die(run)
        again = nowhere.start_run("run", "data", mode="observe", state=state, **WHAT)
        take(again, 3)
        die(again)
    copy = tmp_path / "stick"
    shutil.copytree(spool, copy)
    assert sorted(one.steps for one in synced(client, copy)) == [3, 5]
    # That its processes are gone is all that is said anew.
    before = client.dataset("data"), client.run("run") | {"state": "interrupted"}
    assert sorted((one.steps, one.ended) for one in synced(client, copy, ended=True)) == [
        (3, True),
        (5, True),
    ]
    synced(client, spool)
    assert (client.dataset("data"), client.run("run")) == before
    assert counted(client) == price(client, 8)


def test_a_copied_spool_returns_leases_only_on_the_word_that_its_trainer_is_gone(
    client: Client, spool: Path, tmp_path: Path
) -> None:
    run = client.start_run("run", "data", lease_steps=20, **WHAT)
    take(run, 5)
    shutil.copytree(spool, tmp_path / "copy")
    (told,) = synced(client, tmp_path / "copy")
    assert (told.steps, told.ended) == (5, False)
    assert counted(client) == price(client, 20)
    take(run, 5)  # for it was not gone
    die(run)
    (told,) = synced(client, spool)
    assert (told.steps, told.ended) == (10, True)
    assert counted(client) == price(client, 10)


def test_a_dataset_that_is_unknown_is_told_when_the_run_starts(client: Client, spool: Path) -> None:
    for mode in MODES:
        with pytest.raises(NotFound):
            client.start_run("run", "nothing", mode=mode, **WHAT)
    assert not spool.exists() or list(spool.glob("*.spool")) == []
