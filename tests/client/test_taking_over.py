"""A process goes on with a run that another left: what that one took is sent once."""

import contextlib
from pathlib import Path
from typing import Any

import dpledger_client as dp
import pytest
from dpledger_client import Client

from tests.client.conftest import AtExit
from tests.client.fake_service import FakeService, answered
from tests.client.samples import FAIL, QUIET, SAMPLING, observe, start, step
from tests.client.test_sync import killed


def test_a_process_that_still_runs_is_not_taken_over(service: FakeService, client: Client) -> None:
    run = start(client)
    step(run, steps=5)
    with pytest.raises(dp.Conflict, match="still writes to branch main"):
        start(client, state=run.state_dict())
    step(run)
    assert service.bodies("/branches") == []


def test_a_run_whose_name_begins_alike_is_not_touched(service: FakeService, client: Client) -> None:
    run = start(client)
    step(run, steps=5)
    state = run.state_dict()
    killed(run)
    other = start(client, name="run.main.more")  # its spool matches run.main.*.spool
    step(other)
    again = start(client, state=state)
    assert again.next_step == 5
    step(other)
    other.finish()
    assert len(service.steps["run.main.more", "main"]) == 2


def test_a_damaged_spool_is_told_and_its_lease_keeps_counting(
    service: FakeService, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    run = start(client)
    step(run, steps=5)
    state = run.state_dict()
    path = killed(run)
    path.write_text(path.read_text().replace("[0, 5]", "[1, 4]"))
    again = start(client, state=state)
    assert f"{path} is left to be sent" in caplog.text
    assert "line 4" in caplog.text
    step(again)
    again.finish()
    assert (service.recorded, service.held) == (6, 59)


def test_what_other_branches_left_is_sent_too(service: FakeService, client: Client) -> None:
    run = start(client)
    step(run, steps=5)
    state = run.state_dict()
    killed(run)
    second = start(client, state=state)
    step(second, steps=2)
    killed(second)  # before it kept a state of its own
    third = start(client, state=state)
    step(third)
    third.finish()
    assert (service.recorded, service.held) == (8, 0)


def test_a_branch_that_another_process_writes_to_goes_on_beside(
    service: FakeService, client: Client
) -> None:
    run = start(client)
    step(run, steps=5)
    state = run.state_dict()
    run.finish()
    second = start(client, state=state)
    step(second)
    third = start(client, state=state)
    step(third)
    step(second)
    for each in (second, third):
        each.finish()
    assert service.recorded == 8


def test_an_observed_run_goes_on_without_the_service(
    service: FakeService, client: Client, spool: Path
) -> None:
    run = observe(client)
    step(run, steps=5)
    state = run.state_dict()
    killed(run)
    service.away = True
    for mode in ("leased", "strict"):
        with pytest.raises(dp.Unavailable):
            start(client, mode=mode, state=state)
    again = observe(client, state=state)
    step(again, steps=2)
    assert again.finish() is None
    service.away = False
    list(client.sync(spool))
    assert service.recorded == 7


def test_a_failing_take_over_sends_everything_once_at_last(
    service: FakeService, client: Client
) -> None:
    run = start(client)
    step(run, steps=5)
    state = run.state_dict()
    killed(run)
    again = None
    for failing in range(9):
        service.faults.extend([*[answered] * failing, *FAIL])
        with contextlib.suppress(dp.Unavailable):
            again = start(client, state=state)
        service.faults.clear()
        assert (again is None) == (failing < 5)  # it finds more and more of it done
        if again is not None:
            break
    assert again is not None
    step(again)
    again.finish()
    assert (service.recorded, service.held) == (6, 0)


@pytest.mark.parametrize("end", ["finished", "stopped_at_budget", "aborted"])
@pytest.mark.parametrize("mode", ["leased", "strict"])
def test_a_run_that_had_ended_keeps_its_end_if_no_more_steps_fit(
    service: FakeService, client: Client, at_exit: AtExit, mode: str, end: Any
) -> None:
    service.steps_max = 5
    run = start(client)
    step(run, steps=5)
    state = run.state_dict()
    run.finish(end)
    with start(client, state=state, mode=mode) as again, pytest.raises(dp.BudgetExhausted):
        step(again)
    assert service.states == {"run": end}
    again = start(client, state=state, mode=mode)
    again.load_state_dict({**state, "next_step": 3})
    again.finish()
    assert service.states == {"run": end}
    start(client, state=state, mode=mode)
    at_exit.run()
    assert service.states == {"run": end}
    start(client, state=state, mode=mode).finish("interrupted")
    assert service.states == {"run": "interrupted"}


@pytest.mark.parametrize("mode", ["leased", "strict"])
def test_a_run_that_had_ended_and_took_a_step_ends_anew(
    service: FakeService, client: Client, mode: str
) -> None:
    service.steps_max = 6
    with start(client) as run:
        step(run, steps=5)
        state = run.state_dict()
    with start(client, state=state, mode=mode) as again:
        step(again)
        with pytest.raises(dp.BudgetExhausted):
            step(again)
    assert service.states == {"run": "stopped_at_budget"}


def test_a_run_that_had_ended_and_was_charged_a_step_ends_anew(
    service: FakeService, client: Client
) -> None:
    with start(client) as run:
        step(run, steps=5)
        state = run.state_dict()
        run.finish("aborted")
    again = start(client, state=state, mode="strict", mechanism=QUIET, sampling=SAMPLING)
    again.admit(2)  # spent, though they are not taken
    again.finish()
    assert service.states == {"run": "finished"}
    assert len(service.steps["run", again.branch]) == 2
