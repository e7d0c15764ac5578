"""Leases of a run with a plan hold steps of different kinds: a changing noise asks seldom."""

from pathlib import Path
from typing import Any

import dpledger_client as dp
import pytest
from dpledger_client import Client, Run
from dpledger_client.recording.schedule import EVENTS_MAX, Schedule

from tests.client.conftest import Waiter
from tests.client.fake_service import FakeService, lost_reply
from tests.client.samples import FAIL, MAIN, QUIET, SAMPLING, start, step


def noise(number: int) -> dict[str, Any]:
    return dp.gaussian(noise_multiplier=2.0 + number / 100)


def plan(steps: int, each: int = 1) -> list[dict[str, Any]]:
    return [
        dp.event(mechanism=noise(number), sampling=SAMPLING, steps=each) for number in range(steps)
    ]


def scheduled(client: Client, steps: int, **options: Any) -> Run:
    return start(client, plan=plan(steps), lease_steps=40, **options)


def asked(service: FakeService) -> list[int]:
    """Events of each lease that was asked for, in order."""
    bodies = service.bodies("/reservations")
    return [1 if "event" in body else len(body["events"]) for body in bodies]


def covered(service: FakeService, run: Run) -> bool:
    """Whether each step that was taken and not recorded is reserved as what it is."""
    held: dict[int, dict[str, Any]] = {}
    for one in list(service.reservations.values()):  # another thread asks for more
        request = one.request
        for each in [request["event"]] if "event" in request else request["events"]:
            for at in range(each["first_step"], each["first_step"] + each["steps"]):
                if at < one.end:
                    held[at] = each["mechanism"]
    recorded = len(service.steps[MAIN])
    return all(held.get(at) == noise(at) for at in range(recorded, run.next_step))


def test_a_noise_that_changes_at_each_step_asks_once_for_many(
    service: FakeService, client: Client, eventually: Waiter
) -> None:
    run = scheduled(client, 200)
    for number in range(15):
        step(run, noise(number))
        assert covered(service, run)
    assert asked(service) == [40]
    for number in range(15, 200):
        step(run, noise(number))
        assert covered(service, run)
    run.finish()
    assert len(asked(service)) <= 10
    assert service.recorded == 200
    assert service.held == 0
    assert [one[0] for one in service.contents()] == [noise(at) for at in range(200)]


def test_a_step_that_is_not_planned_is_leased_by_itself(
    service: FakeService, client: Client
) -> None:
    run = scheduled(client, 100)
    step(run, noise(0))
    step(run, QUIET)  # the plan has another one here
    assert asked(service) == [40, 1]
    step(run, QUIET)
    step(run, noise(3))  # as planned again
    assert asked(service)[-1] == 40
    run.finish()
    assert (service.recorded, service.held) == (4, 0)


def test_equal_steps_of_a_plan_are_one_event(service: FakeService, client: Client) -> None:
    run = start(client, plan=plan(3, each=50), lease_steps=120)
    for number in range(150):
        step(run, noise(number // 50))
    assert asked(service)[0] == 3
    run.finish()
    assert (service.recorded, service.held) == (150, 0)


def test_beyond_its_plan_a_run_leases_as_without_one(service: FakeService, client: Client) -> None:
    run = scheduled(client, 5)
    for number in range(5):
        step(run, noise(number))
    assert asked(service) == [5]
    for _ in range(10):
        step(run, noise(9))
    assert asked(service) == [5, 1]
    run.finish()
    assert (service.recorded, service.held) == (15, 0)


def test_a_narrow_budget_is_used_to_its_last_step(service: FakeService, client: Client) -> None:
    service.steps_max = 70
    run = scheduled(client, 200)
    for number in range(70):
        step(run, noise(number))
    with pytest.raises(dp.BudgetExhausted):
        step(run, noise(70))
    assert run.next_step == 70
    run.finish()
    assert (service.recorded, service.held) == (70, 0)


def test_an_answer_that_is_lost_is_asked_for_again_with_the_same_words(
    service: FakeService, client: Client
) -> None:
    service.faulty = "/reservations"
    service.faults.extend([lost_reply] * 2)
    run = scheduled(client, 100)
    step(run, noise(0))
    bodies = service.bodies("/reservations")
    assert len(bodies) == 3
    assert bodies[0] == bodies[1] == bodies[2]
    assert len(service.reservations) == 1
    run.finish()
    assert service.held == 0


def test_no_step_is_taken_where_no_lease_came(service: FakeService, client: Client) -> None:
    run = scheduled(client, 100)
    service.faulty = "/reservations"
    service.faults.extend(FAIL)
    with pytest.raises(dp.Unavailable):
        step(run, noise(0))
    assert run.next_step == 0
    service.faults.clear()
    step(run, noise(0))
    assert covered(service, run)
    run.finish()


def test_more_events_than_a_branch_may_hold_are_sent_before(
    service: FakeService, client: Client
) -> None:
    run = start(client, plan=plan(600), lease_steps=600)  # nothing is sent but what must be
    for number in range(600):
        step(run, noise(number))
        assert covered(service, run)
    run.finish()
    assert max(asked(service)) == EVENTS_MAX
    assert (service.recorded, service.held) == (600, 0)


def test_who_is_killed_leaves_what_sync_returns(
    service: FakeService, client: Client, spool: Path, at_exit: Any
) -> None:
    run = scheduled(client, 100)
    for number in range(3):
        step(run, noise(number))
    at_exit.waiting.clear()
    run._writer.close(complete=False)
    assert service.held == 40
    list(client.sync(spool, ended=True))
    assert (service.recorded, service.held) == (3, 0)


def test_a_resumed_run_leases_as_planned_again(service: FakeService, client: Client) -> None:
    run = scheduled(client, 100)
    for number in range(10):
        step(run, noise(number))
    state = run.state_dict()
    run.load_state_dict({**state, "next_step": 5, "unsent": []})
    for number in range(5, 10):
        step(run, noise(number))
    assert asked(service) == [40, 40]
    run.finish()
    assert service.held == 0
    other = start(client, state={**state, "unsent": []}, plan=plan(100), lease_steps=40)
    step(other, noise(10))
    assert asked(service) == [40, 40, 40]
    other.finish()


def test_usual_steps_of_a_plan_take_the_short_way(service: FakeService, client: Client) -> None:
    run = start(client, plan=plan(1, each=100), lease_steps=100)
    run.declare(mechanism=noise(0), sampling=SAMPLING)
    for _ in range(100):
        run.step()
    run.finish()
    assert asked(service) == [1]
    assert service.recorded == 100


@pytest.mark.parametrize("size", [None, 1000])
def test_kinds_that_change_at_each_step_do_not_pile_up_leases(
    service: FakeService, client: Client, size: int | None
) -> None:
    run = start(client, lease_steps=size)  # without a plan
    for number in range(400):
        step(run, noise(number))
    sizes = [body["event"]["steps"] for body in service.bodies("/reservations")]
    usual = 1 if size is None else 65
    assert sizes[:usual] == [size or 64] * usual
    assert set(sizes[usual:]) == {1}
    assert len(sizes) == 400  # none is asked for ahead, and none has to be returned
    returned = [path for path in service.paths if path.endswith(":release")]
    assert len(returned) == usual
    run.finish()
    assert (service.recorded, service.held) == (400, 0)


def test_a_schedule_ends_at_a_gap() -> None:
    gap = [*plan(2), {**plan(1)[0], "first_step": 5}]
    found = Schedule(gap)
    assert [(one.first_step, one.steps) for one in found.after(0, 10)] == [(0, 1), (1, 1)]
    assert found.after(3, 1) == []
    assert [one.first_step for one in found.after(5, 9)] == [5]
    content = found.after(5, 1)[0].content
    assert found.says(content, 5, 1)
    assert not found.says(content, 5, 2)
    assert Schedule(None).after(0, 1) == []
