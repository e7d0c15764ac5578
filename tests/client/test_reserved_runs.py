"""A run whose plan was reserved before its job began, taken by the job: on both databases."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dpledger_client import (
    Client,
    Conflict,
    NotFound,
    Run,
    Unavailable,
    cyclic,
    event,
    gaussian,
    poisson,
)
from dpledger_client.recording.sync import Synced
from dpledger_client.wire_types import NeighboringRelation

NOISE = gaussian(noise_multiplier=2.0)
SAMPLING = poisson(sampling_probability=0.01)
RUN = {
    "name": "job-1",
    "writer": "kueue-0123456789abcdef",
    "dataset": "data",
    "delta": 1e-6,
    "plan": [event(mechanism=NOISE, sampling=SAMPLING, steps=40)],
    "budget": {"epsilon": 1.0, "delta": 1e-6},
}


@pytest.fixture
def client(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setenv("DPLEDGER_SPOOL", str(tmp_path / "spool"))
    with Client(address) as client:
        create(client, "data", "add_or_remove_one")
        yield client


def create(client: Client, name: str, relation: NeighboringRelation) -> None:
    client.create_dataset(
        name,
        dataset_size=60_000,
        neighboring_relation=relation,
        privacy_unit="example",
        budget={"epsilon": 5.0, "delta": 1e-6},
    )


def register(client: Client, **given: Any) -> str:
    """What starts jobs does, and gives to the job."""
    run = RUN | given
    client._transport.post("/v1/runs", run)
    return json.dumps(run)


def take(client: Client, reserved: str, dataset: str = "data", **options: Any) -> Run:
    declared = {"mechanism": NOISE, "sampling": SAMPLING}
    return client.start_run(None, dataset, reserved=reserved, **{**declared, **options})


def steps_of(client: Client) -> list[int]:
    """The first steps that the dataset's reservations hold from."""
    path = "/v1/datasets/data/reservations"
    return [one["remaining"] for one in client._transport.get(path)["reservations"]]


def test_its_steps_are_those_that_were_reserved(client: Client) -> None:
    reserved = register(client)
    assert steps_of(client) == [40]
    with take(client, reserved) as run:
        assert run.name == "job-1"
        for _ in range(40):
            run.step()
        assert client.run("job-1")["on_plan"] is True
        assert steps_of(client) == []
    assert client.run("job-1")["state"] == "finished"


def test_a_step_is_taken_by_one_process_alone(client: Client) -> None:
    reserved = register(client)
    one, other = take(client, reserved), take(client, reserved)
    one.step()
    with pytest.raises(Conflict, match="Step 0 of the reserved run was charged before"):
        other.step()
    with pytest.raises(Conflict, match="Step 0"):
        other.step()
    one.step()
    assert client.run("job-1")["branches"][0]["next_step"] == 2
    one.finish()


def test_a_job_that_is_started_again_goes_on_with_its_plan(client: Client, tmp_path: Path) -> None:
    reserved = register(client)
    run = take(client, reserved, resume="allow")
    run.step()
    run.step()
    run.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
    assert steps_of(client) == [38]  # an interruption of such a run returns nothing
    with take(client, reserved, resume="allow") as run:
        assert (run.next_step, run.branch) == (2, "main")
        run.step()
    found = client.run("job-1")
    assert (found["state"], found["branches"][0]["next_step"]) == ("finished", 3)
    assert steps_of(client) == []
    sent = [one for one in client.sync(tmp_path / "spool", again=True) if isinstance(one, Synced)]
    assert sum(one.steps for one in sent) == 3
    assert client.run("job-1")["branches"][0]["next_step"] == 3


def test_a_pass_does_not_go_on_in_another_process(client: Client) -> None:
    batches = {
        "mechanism": gaussian(noise_multiplier=60.0),
        "sampling": cyclic(batch_size=6000, steps_per_pass=10),
    }
    create(client, "passes", "replace_special")
    reserved = register(client, dataset="passes", plan=[{**batches, "steps": 20}])
    run = take(client, reserved, "passes", resume="allow", **batches)
    run.step()
    with pytest.raises(Conflict, match="A pass or a hidden iterate"):
        take(client, reserved, "passes", resume="allow", **batches)
    run.step()
    with pytest.raises(NotFound):
        take(client, json.dumps(RUN | {"name": "job-2"}), resume="must")


def test_a_run_that_went_on_elsewhere_is_not_gone_on_with(client: Client) -> None:
    reserved = register(client)
    client.start_run("job-1", "data", resume="must", mechanism=NOISE, sampling=SAMPLING)
    with pytest.raises(Conflict, match="another branch"):
        take(client, reserved, resume="allow")


def test_what_the_script_says_must_be_what_was_reserved(client: Client) -> None:
    reserved = register(client)
    wrong: list[dict[str, Any]] = [
        {"delta": 1e-5},
        {"budget": {"epsilon": 2.0, "delta": 1e-6}},
        {"release": "last_iterate"},
        {"mode": "observe"},
        {"state": {"format": "dpledger-run/1"}},
    ]
    for options in wrong:
        with pytest.raises(ValueError, match="reserved"):
            take(client, reserved, **options)
    with pytest.raises(ValueError, match="dataset is not that"):
        client.start_run(None, "others", reserved=reserved)
    with pytest.raises(ValueError, match="lacks plan"):
        take(client, json.dumps({"name": "a", "writer": "b", "dataset": "data"}))
    with pytest.raises(ValueError, match="no JSON"):
        take(client, "job-1")


def test_a_plan_that_holds_nothing_is_refused(client: Client) -> None:
    reserved = register(client)
    run = take(client, reserved)
    run.step(mechanism=gaussian(noise_multiplier=3.0))  # leaves the plan
    with pytest.raises(Conflict, match="no plan that is reserved"):
        take(client, reserved)


def test_a_rank_goes_on_where_rank_0_does(client: Client) -> None:
    reserved = register(client)
    one = take(client, reserved, world_size=2, rank=0, resume="allow", broadcast=lambda step: step)
    one.step()
    other = take(client, reserved, world_size=2, rank=1, resume="allow", broadcast=lambda _: 1)
    assert other.next_step == 1
    with pytest.raises(Unavailable):
        take(client, reserved, world_size=2, rank=1, resume="allow", broadcast=lambda _: -1)
    with pytest.raises(ValueError, match="broadcast"):
        take(client, reserved, world_size=2, resume="allow")
