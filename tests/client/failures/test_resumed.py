"""The same script is run again: it goes on, whatever ended it, and each step counts once."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import dpledger_client as dp
import pytest
from dpledger_client import Client, Conflict, NotFound, RunExists, state_at

from tests.client.failures.site import ON_SQLITE, WHAT, Site, counted, die, price, take

pytestmark = ON_SQLITE
ROOT: Final = Path(__file__).parents[3]
PASS: Final = 10  # steps
SHUFFLED: Final[dict[str, Any]] = {
    "mechanism": dp.gaussian(noise_multiplier=12.0),
    "sampling": dp.shuffle(batch_size=100, steps_per_pass=PASS),
}
# What ends the script, and the state in which its run is then.
ENDS: Final = {
    "memory": "interrupted",
    "SIGINT": "interrupted",
    "SIGTERM": "active",
    "SIGKILL": "active",
    "finish": "finished",
}


def trained(site: Site, folder: Path, steps: int, end: str, *keeps: str) -> None:
    """A process of its own, which ends as it was told to."""
    script = [sys.executable, "-m", "tests.client.failures.resumable"]
    done = subprocess.run(
        [*script, site.url, str(folder), str(steps), end, *keeps],
        cwd=ROOT,
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode == 0) == (end == "finish"), done.stderr


def alarms(site: Site) -> list[str]:
    """All incidents but those of a budget that is nearly spent, as it is here."""
    return [kind for kind in site.incidents("data") if kind not in ("refusal", "threshold")]


@pytest.mark.parametrize("keeps", [(), ("state",)], ids=["no checkpoint", "checkpoint"])
@pytest.mark.parametrize("end", ENDS)
def test_the_same_script_goes_on_after(
    client: Client, site: Site, tmp_path: Path, end: str, keeps: tuple[str, ...]
) -> None:
    trained(site, tmp_path, 7, end, *keeps)
    assert client.run("run")["state"] == ENDS[end]
    trained(site, tmp_path, 4, end, *keeps)
    trained(site, tmp_path, 3, "finish", *keeps)
    taken = len((tmp_path / "taken").read_text().splitlines())
    run = client.run("run")
    assert (taken, run["steps"], run["state"]) == (14, 14, "finished")
    begun = [(one["from_step"], one["next_step"]) for one in run["branches"]]
    assert begun == ([(0, 7), (5, 9), (5, 8)] if keeps else [(0, 7), (7, 11), (11, 14)])
    assert counted(client) == price(client, 14)
    assert alarms(site) == []


def test_a_finished_run_takes_two_more_passes_tomorrow(client: Client, site: Site) -> None:
    with client.start_run("run", "data", **WHAT) as run:
        take(run, 5)
        state = run.state_dict()
    with client.start_run("run", "data", state=state, **WHAT) as run:
        take(run, 3)
    with client.start_run("run", "data", resume="must", **WHAT) as run:
        assert run.next_step == 8
        take(run, 3)
    found = client.run("run")
    assert (found["steps"], found["state"], alarms(site)) == (11, "finished", [])
    assert counted(client) == price(client, 11)


@pytest.mark.parametrize(
    ("order", "passes"), [({"order": "fresh"}, 4), ({"order": "continued"}, 4), ({}, 5)]
)
def test_two_more_passes_of_a_finished_shuffle_cost_two_passes_if_the_order_is_said(
    client: Client, order: dict[str, str], passes: int
) -> None:
    """Each day is two passes; where nothing says whether a pass was open, one more is counted."""
    for name in ("days", "at-once"):
        client.create_dataset(
            name,
            dataset_size=1000,
            neighboring_relation="replace_special",
            privacy_unit="record",
            budget={"epsilon": 4.0, "delta": 1e-5},
        )
    with client.start_run("days", "days", **SHUFFLED) as run:
        take(run, 2 * PASS)
        state = run.state_dict()
    with client.start_run("days", "days", state=state | order, **SHUFFLED) as run:
        assert run.next_step == 2 * PASS
        take(run, 2 * PASS)
    found = client.run("days")
    assert (found["steps"], found["state"]) == (4 * PASS, "finished")
    with client.start_run("at-once", "at-once", **SHUFFLED) as run:
        take(run, passes * PASS)
    assert client.dataset("days")["spent"] == client.dataset("at-once")["spent"]


def test_an_aborted_run_goes_on_only_on_purpose(client: Client, site: Site) -> None:
    run = client.start_run("run", "data", **WHAT)
    take(run, 5)
    run.finish("aborted")
    with pytest.raises(RunExists) as refused:
        client.start_run("run", "data", **WHAT)
    assert str(refused.value).startswith("Run run exists: aborted, 5")
    with client.start_run("run", "data", state=state_at("run", "data", next_step=5), **WHAT) as run:
        take(run, 1)
    assert (client.run("run")["state"], alarms(site)) == ("finished", [])


def test_a_run_that_must_be_there_is_not_made(client: Client, spool: Path) -> None:
    with pytest.raises(NotFound):
        client.start_run("run", "data", resume="must", **WHAT)
    assert not spool.exists() or list(spool.glob("*.spool")) == []
    with client.start_run("run", "data", resume="allow", **WHAT) as run:
        take(run, 1)
    assert run.branch == "main"


def test_two_processes_do_not_both_go_on(client: Client) -> None:
    run = client.start_run("run", "data", **WHAT)
    take(run, 2)
    with pytest.raises(Conflict, match="still writes to branch main"):
        client.start_run("run", "data", resume="allow", **WHAT)
    take(run, 1)
    run.finish()


@pytest.mark.parametrize("resume", ["yes", "", None])
def test_a_resume_of_no_kind_is_refused(client: Client, resume: str) -> None:
    with pytest.raises(ValueError, match="resume must be one of never, allow, must"):
        client.start_run("run", "data", resume=resume, **WHAT)  # type: ignore[arg-type]


def test_a_run_of_another_dataset_is_not_gone_on_with(client: Client) -> None:
    client.create_dataset(
        "other",
        dataset_size=1000,
        neighboring_relation="add_or_remove_one",
        privacy_unit="record",
    )
    client.start_run("run", "data", **WHAT).finish()
    with pytest.raises(ValueError, match="run run is of dataset data, not of other"):
        client.start_run("run", "other", resume="allow", **WHAT)


def test_an_observed_script_goes_on_without_the_service(
    client: Client, site: Site, spool: Path
) -> None:
    site.stop()
    first = client.start_run("run", "data", mode="observe", resume="allow", **WHAT)
    take(first, 5)
    die(first)
    second = client.start_run("run", "data", mode="observe", resume="allow", **WHAT)
    assert second.next_step == 5
    take(second, 3)
    die(second)
    site.start()
    assert all(not isinstance(one, tuple) for one in client.sync(spool))
    assert client.run("run")["steps"] == 8
    assert counted(client) == price(client, 8)


def test_a_late_end_of_an_older_branch_leaves_the_run_going(
    client: Client, site: Site, spool: Path, tmp_path: Path
) -> None:
    run = client.start_run("run", "data", spool=tmp_path / "elsewhere", **WHAT)
    take(run, 4)
    site.stop()
    assert run.finish() is None
    site.start()
    later = client.start_run("run", "data", resume="allow", **WHAT)
    list(client.sync(tmp_path / "elsewhere"))
    assert client.run("run")["state"] == "active"
    take(later, 2)
    later.finish()
    assert (client.run("run")["steps"], client.run("run")["state"]) == (6, "finished")
