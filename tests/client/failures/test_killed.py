"""What becomes of a run whose trainer is killed, or of which there are two.

The long form is benchmarks/kills.py.
"""

import fcntl
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from dpledger_client import Client, Conflict, RunExists, Unavailable
from dpledger_client.recording.branch_writer import MODES
from dpledger_client.recording.write_ahead_file import read

from benchmarks import kills
from benchmarks.servers import START_TOKEN
from tests.client.failures.site import ON_SQLITE, WHAT, Site, counted, die, price, take
from tests.conftest import AS_ADMIN

pytestmark = ON_SQLITE


def test_a_trainer_that_is_killed_at_any_moment_loses_no_step(
    database_url: str, tmp_path: Path
) -> None:
    report = kills.hold(database_url, tmp_path, kills.Campaign(kills=3, life_seconds=0.5))
    assert report.faults == []
    assert report.counts["steps in the ledger"] >= report.counts["steps drawn"] > 0


def test_who_was_killed_before_a_checkpoint_is_sent_by_the_next_process(
    client: Client, spool: Path
) -> None:
    first = client.start_run("run", "data", **WHAT)
    take(first, 4)
    state = first.state_dict()
    die(first)
    second = client.start_run("run", "data", state=state, **WHAT)
    take(second, 3)
    die(second)
    with client.start_run("run", "data", state=state, **WHAT) as third:
        take(third, 2)
    branches = client.run("run")["branches"]
    assert [(one["from_step"], one["next_step"]) for one in branches] == [(0, 4), (4, 7), (4, 6)]
    assert all(read(path).closed for path in spool.glob("*.spool"))
    assert counted(client) == price(client, 9)


def test_a_checkpoint_alone_has_what_a_lost_machine_did_not_send(
    client: Client, tmp_path: Path
) -> None:
    run = client.start_run("run", "data", lease_steps=20, flush_seconds=60, **WHAT)
    take(run, 5)
    state = run.state_dict()
    take(run, 2)
    die(run)
    assert client.run("run")["steps"] == 0
    elsewhere = tmp_path / "elsewhere"
    with client.start_run(
        "run", "data", state=state, spool=elsewhere, lease_steps=1, **WHAT
    ) as again:
        take(again, 1)
    branches = client.run("run")["branches"]
    assert [(one["from_step"], one["next_step"]) for one in branches] == [(0, 5), (5, 6)]
    assert counted(client) >= price(client, 8)  # the two that are lost are leased


def test_a_run_of_a_similar_name_is_not_touched_by_a_resume(client: Client) -> None:
    other = client.start_run("run.main", "data", **WHAT)
    run = client.start_run("run", "data", **WHAT)
    take(run, 2)
    state = run.state_dict()
    die(run)
    with client.start_run("run", "data", state=state, **WHAT) as again:
        take(again, 1)
    take(other, 1)
    other.finish()
    assert client.run("run")["steps"] == 3


def test_a_damaged_spool_is_left_and_holds_nobody_up(client: Client, spool: Path) -> None:
    run = client.start_run("run", "data", lease_steps=3, **WHAT)
    take(run, 2)
    state = run.state_dict()
    die(run)
    (path,) = spool.glob("*.spool")
    damaged = path.read_bytes() + b"{\n"
    path.write_bytes(damaged)
    with client.start_run("run", "data", state=state, **WHAT) as again:
        take(again, 1)
    assert client.run("run")["steps"] == 3
    assert path.read_bytes() == damaged


def test_a_worker_that_outlives_its_trainer_holds_nobody_up(client: Client, spool: Path) -> None:
    run = client.start_run("run", "data", **WHAT)
    take(run, 2)
    state = run.state_dict()
    run._writer.leave("left")
    (path,) = spool.glob("*.spool")
    with path.open("rb") as file:  # as a process does that was forked to load batches
        fcntl.flock(file, fcntl.LOCK_EX)
        with client.start_run("run", "data", state=state, **WHAT) as again:
            take(again, 1)
    assert client.run("run")["steps"] == 3


class LosesSteps(httpx.HTTPTransport):
    """No steps get through; all else does."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/events"):
            raise httpx.ConnectError("No way through.", request=request)
        return super().handle_request(request)


def test_nobody_goes_on_before_what_was_left_could_be_sent(client: Client, site: Site) -> None:
    run = client.start_run("run", "data", **WHAT)
    state = run.state_dict()
    take(run, 2)
    die(run)
    with (
        Client(site.url, transport=LosesSteps(), retries=0) as cut,
        pytest.raises(Unavailable),
    ):
        cut.start_run("run", "data", state=state, **WHAT)
    assert len(client.run("run")["branches"]) == 1


def test_a_resume_without_the_service_raises_and_sends_nothing(
    client: Client, site: Site, spool: Path
) -> None:
    run = client.start_run("run", "data", **WHAT)
    take(run, 2)
    state = run.state_dict()
    die(run)
    site.stop()
    with pytest.raises(Unavailable):
        client.start_run("run", "data", state=state, **WHAT)
    (path,) = spool.glob("*.spool")
    site.start()
    assert not read(path).closed
    with client.start_run("run", "data", state=state, **WHAT) as again:
        take(again, 1)
    assert client.run("run")["steps"] == 3


def test_nobody_goes_on_with_a_branch_whose_trainer_still_runs(client: Client) -> None:
    run = client.start_run("run", "data", **WHAT)
    take(run, 2)
    state = run.state_dict()
    with pytest.raises(Conflict, match="still writes"):
        client.start_run("run", "data", state=state, **WHAT)
    take(run, 1)
    run.finish()
    assert client.run("run")["steps"] == 3


def test_a_second_process_of_the_same_name_is_refused_and_leaves_no_spool(
    client: Client, site: Site, spool: Path
) -> None:
    with client.start_run("run", "data", **WHAT) as run, Client(site.url) as second:
        take(run, 2)
        for mode in MODES:
            with pytest.raises(RunExists):
                second.start_run("run", "data", mode=mode, **WHAT)
        assert len(list(spool.glob("*.spool"))) == 1
    assert client.run("run")["steps"] == 2


RANK = """
import os, sys
import dpledger_client as dp
run = dp.start_run("job", "data", rank=int(os.environ["RANK"]), sampling=dp.full(), delta=1e-5,
                   mechanism=dp.gaussian(noise_multiplier=float(sys.argv[1])))
for _ in range(5):
    run.step()
print(run.rank, run.next_step, flush=True)
sys.stdin.read()
run.finish()
"""


def findings(site: Site) -> list[Any]:
    answer = httpx.get(f"{site.url}/v1/runs/job/findings", headers=AS_ADMIN).json()
    return list(answer.get("findings", ()))


def test_ranks_that_are_configured_differently_are_an_incident(
    client: Client, site: Site, spool: Path
) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(noise)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={"RANK": str(rank), "WORLD_SIZE": "2", "DPLEDGER_URL": site.url,
                 "DPLEDGER_SPOOL": str(spool), "DPLEDGER_API_KEY": START_TOKEN},
        )
        for rank, noise in enumerate((12, 9))
    ]  # fmt: skip
    said = [process.stdout.readline() for process in processes if process.stdout]
    assert said == ["0 5\n", "1 5\n"]
    deadline = time.monotonic() + 60
    while len(findings(site)) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    for process in processes:
        process.communicate()
        assert process.returncode == 0
    assert {one["rank"] for one in findings(site)} == {0, 1}
    assert site.incidents("data") == ["ranks_disagree"]
    assert client.run("job")["steps"] == 5  # rank 0 reports for both
