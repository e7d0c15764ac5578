"""Checkpoints: training goes on from them, and no step that was taken is ever taken back."""

import json
from pathlib import Path
from typing import Any

import dpledger_client as dp
import pytest
from dpledger_client import Client
from dpledger_client.recording.write_ahead_file import read
from dpledger_client.training import checkpoints

from tests.client.fake_service import FakeService, answered, answering, problem
from tests.client.samples import FAIL, LOUD, MAIN, QUIET, SAMPLING, lines, observe, start, step
from tests.client.test_sync import killed


def test_a_state_is_json_and_says_where_the_run_is(client: Client) -> None:
    run = start(client)
    step(run, steps=3)
    run.flush()
    step(run, steps=2)
    step(run, LOUD)
    state = run.state_dict()
    assert json.loads(json.dumps(state)) == state
    assert state == {
        "format": "dpledger-run/1",
        "run": "run",
        "dataset": "letters",
        "branch": "main",
        "next_step": 6,
        "unsent": [
            dp.event(first_step=3, steps=2, mechanism=QUIET, sampling=SAMPLING),
            dp.event(first_step=5, steps=1, mechanism=LOUD, sampling=SAMPLING),
        ],
    }


def test_another_process_goes_on_on_a_branch_and_sends_what_was_left(
    service: FakeService, client: Client
) -> None:
    run = start(client)
    step(run, steps=5)
    state = run.state_dict()
    step(run, LOUD, steps=2)  # after the checkpoint
    killed(run)
    again = start(client, state=state)
    assert again.branch.startswith("from-5-")
    assert (again.next_step, again.name) == (5, "run")
    step(again, steps=3)
    again.finish()
    assert [content[0] for content in service.contents()] == [QUIET] * 5 + [LOUD] * 2
    assert len(service.contents(again.branch)) == 3
    assert (service.recorded, service.held) == (10, 0)
    assert read(Path(str(run.spool))).closed


def test_steps_that_were_not_sent_travel_with_the_state(
    service: FakeService, client: Client, tmp_path: Path
) -> None:
    run = start(client, lease_steps=64)
    step(run, steps=3)
    step(run, LOUD, steps=2)
    state = run.state_dict()
    killed(run).unlink()  # the disk of the machine is gone
    again = start(client, state=json.loads(json.dumps(state)), spool=tmp_path / "elsewhere")
    assert [content[0] for content in service.contents()] == [QUIET] * 3 + [LOUD] * 2
    step(again)
    again.finish()
    assert service.recorded == 6
    assert service.held == 62  # nobody knows whether the lost process took more


def test_a_state_may_hold_more_steps_than_one_request(
    service: FakeService, client: Client, tmp_path: Path
) -> None:
    run = observe(client)
    for number in range(2300):
        step(run, (QUIET, LOUD)[number % 2])
    state = run.state_dict()
    killed(run).unlink()
    start(client, state=state, spool=tmp_path / "elsewhere")
    assert max(len(body["events"]) for body in service.bodies("/events")) == 1000
    assert len(service.steps[MAIN]) == 2300


def test_a_state_whose_steps_arrived_meanwhile_counts_them_once(
    service: FakeService, client: Client
) -> None:
    run = start(client)
    step(run, steps=5)
    state = run.state_dict()
    run.finish("aborted")
    start(client, state=state)
    assert service.recorded == 5


def test_a_rewind_takes_nothing_back(service: FakeService, client: Client) -> None:
    run = start(client)
    step(run, steps=5)
    state = run.state_dict()
    step(run, LOUD, steps=3)
    old = Path(str(run.spool))
    run.load_state_dict(state)
    assert (run.branch.startswith("from-5-"), run.next_step) == (True, 5)
    assert service.held == 0
    assert lines(old)[-1] == {"closed": True}
    assert {"end": "rewound"} in lines(old)
    step(run, steps=4)
    run.finish()
    assert len(service.steps[MAIN]) == 8
    assert (service.recorded, service.held) == (12, 0)
    assert service.states == {"run": "finished"}


@pytest.mark.parametrize("mode", ["leased", "strict"])
def test_no_step_of_a_new_branch_rests_on_what_was_admitted_before(
    service: FakeService, client: Client, mode: str
) -> None:
    run = start(client, mode=mode, lease_steps=50)
    step(run, steps=10)
    run.load_state_dict({**run.state_dict(), "next_step": 5})
    step(run)
    leased = [one for one in service.reservations.values() if one.place == ("run", run.branch)]
    assert len(leased) + len(service.steps["run", run.branch]) == 1
    service.steps_max = service.spent
    with pytest.raises(dp.BudgetExhausted):
        step(run, steps=50)


def test_a_rewind_of_a_rewind_goes_on_from_its_branch(service: FakeService, client: Client) -> None:
    run = start(client)
    step(run, steps=5)
    run.load_state_dict({**run.state_dict(), "next_step": 2})
    first = run.branch
    step(run, steps=5)
    run.load_state_dict({**run.state_dict(), "next_step": 6})
    assert service.bodies("/branches")[-1]["from_branch"] == first
    assert run.next_step == 6


def test_a_state_of_where_the_run_is_changes_nothing(service: FakeService, client: Client) -> None:
    run = start(client)
    step(run, steps=5)
    asked = len(service.requests)
    run.load_state_dict(run.state_dict())
    assert (run.branch, run.next_step, len(service.requests)) == ("main", 5, asked)
    step(run)
    assert service.reservations.keys()
    assert len(service.reservations) == 1


@pytest.mark.parametrize("mode", ["leased", "strict", "observe"])
@pytest.mark.parametrize("failing", range(3))
def test_a_rewind_that_fails_leaves_the_run_where_it_was_and_counting(
    service: FakeService, client: Client, mode: str, failing: int
) -> None:
    run = start(client, mode=mode, lease_steps=4)
    step(run, steps=2)
    state = run.state_dict()
    step(run, steps=2)
    before = len(list(Path(str(run.spool)).parent.iterdir()))
    sends = 0 if mode == "strict" else 1  # then the branch, then the run
    service.faults.extend([*[answered] * failing, *FAIL, *FAIL])
    if failing > sends + 1 or (mode == "observe" and failing >= sends):
        service.faults.clear()
        run.load_state_dict(state)
        assert run.next_step == 2
        return
    with pytest.raises(dp.Unavailable):
        run.load_state_dict(state)
    service.faults.clear()
    assert (run.branch, run.next_step) == ("main", 4)
    assert len(list(Path(str(run.spool)).parent.iterdir())) == before
    step(run)
    run.load_state_dict(state)
    step(run)
    run.finish()
    assert (service.recorded, service.held) == (6, 0)


def test_a_rewind_that_is_refused_leaves_the_run_counting(
    service: FakeService, client: Client
) -> None:
    run = start(client)
    step(run, steps=4)
    run.flush()
    service.faults.append(answering(problem("branch-exists", 409)))
    with pytest.raises(dp.BranchExists):
        run.load_state_dict({**run.state_dict(), "next_step": 1})
    step(run)
    run.finish()
    assert (len(service.steps[MAIN]), service.held) == (5, 0)


def test_leases_that_a_rewind_cannot_return_are_left_to_its_spool(
    service: FakeService, client: Client
) -> None:
    run = start(client)
    step(run, steps=4)
    old = Path(str(run.spool))
    service.faults.extend([answered] * 5 + FAIL)  # steps, twice; run, branch, run
    run.load_state_dict({**run.state_dict(), "next_step": 1})
    service.faults.clear()
    assert run.next_step == 1
    assert service.held == 60
    assert {"end": "rewound"} in lines(old)
    list(client.sync(old))
    assert service.held == 0


def test_a_run_that_was_finished_goes_on_from_a_state(service: FakeService, client: Client) -> None:
    with start(client) as run:
        step(run, steps=4)
        state = run.state_dict()
        run.finish()
        run.load_state_dict(state)
        step(run)
    assert service.recorded == 5
    assert lines(run)[-1] == {"closed": True}


def test_another_runs_state_is_refused(service: FakeService, client: Client) -> None:
    run = start(client)
    step(run, steps=2)
    state = run.state_dict()
    other = start(client, name="other")
    with pytest.raises(ValueError, match="state is of run run, and this is other"):
        other.load_state_dict(state)
    with pytest.raises(ValueError, match="give that name and dataset"):
        start(client, name="third", state=state)
    with pytest.raises(ValueError, match="give that name and dataset"):
        start(client, state={**state, "dataset": "digits"})
    assert (run.next_step, other.next_step, service.bodies("/branches")) == (2, 0, [])


GOOD = dp.state_at("run", "letters", next_step=1)


@pytest.mark.parametrize(
    ("state", "named"),
    [
        (None, "dpledger-run/1"), ([], "dpledger-run/1"), ({}, "dpledger-run/1"),
        ({**GOOD, "format": "dpledger-run/2"}, "dpledger-run/1"),
        *(({key: value for key, value in GOOD.items() if key != name}, name)
          for name in ("run", "dataset", "branch", "next_step", "unsent")),
        ({**GOOD, "run": 3}, "run"), ({**GOOD, "branch": None}, "branch"),
        ({**GOOD, "next_step": "1"}, "next_step"), ({**GOOD, "next_step": 1.0}, "next_step"),
        ({**GOOD, "next_step": True}, "next_step"), ({**GOOD, "next_step": -1}, "next_step"),
        ({**GOOD, "unsent": {}}, "unsent"), ({**GOOD, "unsent": [1]}, "unsent"),
        ({**GOOD, "branch": "../main"}, "name"), ({**GOOD, "branch": "*"}, "name"),
        ({**GOOD, "run": "a/b"}, "name"), ({**GOOD, "dataset": "x" * 64}, "name"),
    ],
)  # fmt: skip
def test_a_malformed_state_is_refused_by_the_name_of_its_fault(
    service: FakeService, client: Client, state: Any, named: str
) -> None:
    run = start(client)
    asked = len(service.requests)
    with pytest.raises(ValueError, match=named):
        run.load_state_dict(state)
    if state is not None:
        with pytest.raises(ValueError, match=named):
            start(client, state=state)
    assert len(service.requests) == asked


def test_a_checkpoint_without_a_state_is_named_by_its_step(
    service: FakeService, client: Client
) -> None:
    run = start(client)
    step(run, steps=5)
    run.finish()
    again = start(client, state=dp.state_at("run", "letters", next_step=3))
    step(again)
    again.flush()
    assert service.bodies("/branches")[0]["from_step"] == 3
    assert service.recorded == 6


def test_a_state_beyond_what_is_recorded_opens_nothing(
    service: FakeService, client: Client, spool: Path
) -> None:
    run = start(client)
    step(run, steps=5)
    run.finish()
    with pytest.raises(dp.OutOfSequence):
        start(client, state=dp.state_at("run", "letters", next_step=6))
    assert len(list(spool.iterdir())) == 1


@pytest.mark.parametrize("order", ["fresh", "continued", None])
def test_a_branch_says_what_is_known_of_the_order(order: checkpoints.Order | None) -> None:
    state = checkpoints.state_at("run", "data", next_step=3, order=order)
    opening = checkpoints.opening_of(checkpoints.checked(state))
    assert opening.branch is not None
    assert opening.branch.get("order", None) == order
    assert ("order" in opening.branch) == (order is not None)


def test_an_order_is_fresh_or_continued() -> None:
    state = checkpoints.state_at("run", "data", next_step=3)
    with pytest.raises(ValueError, match="fresh nor continued"):
        checkpoints.checked({**state, "order": "old"})
