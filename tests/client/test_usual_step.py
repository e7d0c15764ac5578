"""The step that says nothing of itself, like the one before: a short way, with the same duties."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from dpledger_client import (
    BudgetExhausted,
    Client,
    DPLedgerError,
    Run,
    RunFinished,
    poisson,
    state_at,
)
from dpledger_client.recording.write_ahead_file import read

from tests.client.conftest import Waiter
from tests.client.fake_service import FakeService
from tests.client.samples import LOUD, QUIET, SAMPLING, start


def usual(client: Client, **options: Any) -> Run:
    """A run that has taken its first steps."""
    run = start(client, mechanism=QUIET, sampling=SAMPLING, **options)
    for _ in range(3):
        run.step()
    return run


def spooled(run: Run) -> list[tuple[int, int, Any]]:
    spans = read(Path(str(run.spool))).spans
    return [(one.first_step, one.steps, json.loads(one.content)["mechanism"]) for one in spans]


@pytest.mark.parametrize("mode", ["leased", "strict", "observe"])
def test_the_spool_and_the_service_have_each_usual_step(
    service: FakeService, client: Client, mode: str
) -> None:
    run = usual(client, mode=mode)
    run.flush()
    assert spooled(run) == [(0, 3, QUIET)]
    assert (service.recorded, run.next_step) == (3, 3)


def test_a_usual_step_after_an_unusual_one_is_not_taken_for_it(
    service: FakeService, client: Client
) -> None:
    run = usual(client)
    run.step(mechanism=LOUD)
    run.step()
    run.declare(mechanism=LOUD)
    run.step()
    run.finish()
    expected = [(0, 3, QUIET), (3, 1, LOUD), (4, 1, QUIET), (5, 1, LOUD)]
    assert spooled(run) == expected
    assert service.recorded == 6


def test_usual_steps_end_with_the_budget(service: FakeService, client: Client) -> None:
    service.steps_max = 5
    run = usual(client)
    for _ in range(2):
        run.step()
    with pytest.raises(BudgetExhausted):
        run.step()
    assert (run.next_step, spooled(run)) == (5, [(0, 5, QUIET)])


def test_each_usual_step_is_charged_in_a_strict_run(service: FakeService, client: Client) -> None:
    run = usual(client, mode="strict")
    run.admit(2)
    before = service.recorded
    assert before == 5
    for _ in range(3):
        run.step()
    assert (service.recorded, run.next_step, run.unsent_steps) == (6, 6, 0)


@pytest.mark.parametrize("options", [{}, {"rank": 1, "world_size": 2}])
def test_no_usual_step_is_taken_after_the_end(client: Client, options: dict[str, Any]) -> None:
    run = usual(client, **options)
    run.finish()
    with pytest.raises(RunFinished):
        run.step()
    assert run.next_step == 3


def test_a_fork_takes_no_usual_step(client: Client) -> None:
    run = usual(client)
    child = os.fork()
    if child == 0:
        try:
            run.step()
        except DPLedgerError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert spooled(run) == [(0, 3, QUIET)]


def test_usual_steps_are_sent_when_enough_wait(
    service: FakeService, client: Client, eventually: Waiter
) -> None:
    run = usual(client, flush_steps=5)
    for _ in range(2):
        run.step()
    eventually(lambda: service.recorded == 5)


def test_ranks_ask_together_when_the_horizon_is_reached(
    service: FakeService, client: Client
) -> None:
    heard: list[int] = []

    def broadcast(number: int) -> int:
        heard.append(number)
        return 4

    run = usual(client, rank=1, world_size=2, broadcast=broadcast)
    run.step()
    assert len(heard) == 1
    run.step()
    assert len(heard) == 2


def test_a_step_that_was_asked_for_ahead_is_spooled_as_what_it_is(client: Client) -> None:
    run = usual(client)
    run.declare(mechanism=LOUD)
    run.admit()
    run.step()
    assert spooled(run) == [(0, 3, QUIET), (3, 1, LOUD)]


def test_a_charged_step_does_not_wait_to_be_sent(client: Client) -> None:
    run = usual(client, mode="strict")
    run.admit(2)
    run.step()
    assert run.unsent_steps == 0


def test_several_usual_steps_are_as_many(client: Client) -> None:
    run = usual(client)
    run.step(steps=4)
    assert (run.next_step, spooled(run)) == (7, [(0, 7, QUIET)])


def test_the_size_of_a_usual_batch_is_tested(client: Client) -> None:
    run = usual(client, dataset_size=1000)
    run.step(size=0 if SAMPLING["kind"] == "full" else 10)
    assert run._sizes.verdict is not None


@pytest.mark.parametrize("mode", ["leased", "strict"])
def test_a_size_that_cannot_be_tested_counts_nothing(
    service: FakeService, client: Client, mode: str
) -> None:
    run = usual(client, mode=mode, dataset_size=1000)
    before = service.spent
    for size in (-1, 0.5):
        with pytest.raises(ValueError, match="size must be an integer"):
            run.step(sampling=poisson(sampling_probability=0.1), size=size)  # type: ignore[arg-type]
    assert (run.next_step, service.spent) == (3, before)


@pytest.mark.parametrize(
    ("options", "ahead"),
    [
        ({}, True),
        ({"mode": "observe"}, True),
        ({"mode": "strict"}, False),
        ({"rank": 1, "world_size": 2}, True),
        ({"rank": 1, "world_size": 2, "mode": "strict"}, False),
    ],
)
def test_a_run_says_whether_it_admits_ahead(
    client: Client, options: dict[str, Any], ahead: bool
) -> None:
    assert start(client, **options).admits_ahead is ahead


def test_ranks_that_cannot_know_of_a_plan_do_not_ask_ahead(client: Client) -> None:
    planned = start(client, rank=1, world_size=2, plan=[])
    assert not planned.admits_ahead
    resumed = start(client, rank=1, world_size=2, state=state_at("run", "letters", next_step=2))
    assert not resumed.admits_ahead
