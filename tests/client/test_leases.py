"""Leases: steps admitted ahead, granted once and returned whole."""

import logging
from collections.abc import Callable
from typing import Any

import dpledger_client as dp
import httpx
import pytest
from dpledger_client import Client, Run
from dpledger_client.recording import reservations

from tests.client.conftest import Waiter
from tests.client.fake_service import FakeService, answered, answering, lost_reply, problem
from tests.client.samples import FAIL, LOUD, MAIN, QUIET, start, step


def sizes(service: FakeService) -> list[int]:
    """Steps of each request, in order."""
    return [body["event"]["steps"] for body in service.bodies("/reservations")]


def names(service: FakeService) -> list[str]:
    return [body["name"] for body in service.bodies("/reservations")]


def used_up(run: Run) -> None:
    """Take the steps of the first lease."""
    for _ in range(reservations.STEPS_FIRST):
        step(run)


def test_a_step_within_a_lease_asks_nobody(service: FakeService, client: Client) -> None:
    run = start(client, lease_steps=100)
    step(run)
    asked = len(service.requests)
    for _ in range(49):
        step(run)
    assert len(service.requests) == asked
    assert (service.spent, service.recorded) == (100, 0)


def test_no_step_is_taken_outside_a_lease(service: FakeService, client: Client) -> None:
    run = start(client, lease_steps=3)
    for number in range(20):
        step(run, (QUIET, LOUD)[number % 7 // 4], steps=1 + number % 5)
        covering = [one for one in service.reservations.values() if one.end > one.first_step]
        assert max(one.end for one in covering) >= run.next_step
    run.finish()
    assert (service.recorded, service.held) == (run.next_step, 0)


def test_a_lease_is_renewed_before_it_is_used_up(
    service: FakeService, client: Client, eventually: Waiter
) -> None:
    run = start(client, lease_steps=100)
    for _ in range(51):
        step(run)
    eventually(lambda: len(service.reservations) == 2)
    assert sizes(service) == [100, 100]
    assert service.bodies("/reservations")[1]["event"]["first_step"] == 100


def test_a_lease_ends_with_the_pass_of_correlated_noise(
    service: FakeService, client: Client
) -> None:
    run = start(client)
    noise = dp.matrix_gaussian(noise_multiplier=4.0, strategy=f"sha256:{64 * '0'}")
    rows = dp.min_separation(steps_per_pass=20, min_separation=4, placement="by_slot")
    for _ in range(20):
        run.step(mechanism=noise, sampling=rows)
    assert sizes(service) == [20]


def test_leases_grow_with_the_speed_of_training_by_steps(
    service: FakeService, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("dpledger_client.recording.reservations.monotonic", lambda: now)
    monkeypatch.setattr(
        "dpledger_client.recording.branch_writer.Journal._send_ahead", lambda journal: None
    )
    run = start(client)
    grown = []
    for _ in range(6):
        now += 1.0
        step(run)
        grown.append(sizes(service)[-1])
        step(run, steps=service.held - run.next_step)
    # Speeds of 0, 64, 512 ... steps a second, and eight times the lease before at most.
    assert grown == [64, 512, 4096, 32768, 262144, 1_000_000]


def test_a_slow_training_has_small_leases(
    service: FakeService, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("dpledger_client.recording.reservations.monotonic", lambda: now)
    monkeypatch.setattr(
        "dpledger_client.recording.branch_writer.Journal._send_ahead", lambda journal: None
    )
    run = start(client)
    for _ in range(5):
        for _ in range(64):
            step(run)
            now += 3.0
    assert sizes(service) == [64, 200, 200]
    now = -1e9  # no clock of this machine decides anything
    step(run, steps=1000)
    assert service.held == service.spent >= run.next_step


def test_what_a_step_needs_is_always_asked_for(service: FakeService, client: Client) -> None:
    run = start(client, lease_steps=3)
    step(run, steps=1000)
    assert sizes(service) == [1000]


def test_a_narrow_budget_is_used_to_its_last_step(service: FakeService, client: Client) -> None:
    service.steps_max = 70
    run = start(client)
    taken = 0

    def train() -> None:
        nonlocal taken
        while True:
            step(run)
            taken += 1

    with pytest.raises(dp.BudgetExhausted) as refused:
        train()
    assert refused.value.admissible_steps == 0
    assert taken == run.next_step == 70
    with pytest.raises(dp.BudgetExhausted):
        step(run)
    run.finish()
    assert (service.recorded, service.held) == (70, 0)


def test_what_does_not_fit_holds_nothing(service: FakeService, client: Client) -> None:
    service.steps_max = 10
    run = start(client)
    step(run, steps=4)
    with pytest.raises(dp.BudgetExhausted) as refused:
        step(run, steps=7)
    assert refused.value.admissible_steps == 0  # six are held for what may still come
    assert service.held == 10
    step(run, steps=6)
    assert run.next_step == 10


def test_a_budget_that_was_raised_is_used(
    service: FakeService, client: Client, eventually: Waiter
) -> None:
    service.steps_max = 3
    run = start(client, lease_steps=8)
    step(run, steps=3)
    with pytest.raises(dp.BudgetExhausted):
        step(run)
    service.steps_max = 100
    step(run)
    assert sizes(service)[-1] == 8
    for _ in range(5):
        step(run)
    eventually(lambda: len(service.reservations) == 3)  # and asked for ahead again


def test_a_budget_that_others_take_from_is_asked_a_few_times_only(
    service: FakeService, client: Client
) -> None:
    run = start(client)
    full = problem("budget-exhausted", 409, admissible_steps=20)
    less = [problem("budget-exhausted", 409, admissible_steps=20 - n) for n in range(1, 9)]
    service.faults.extend(answering(each) for each in (full, *less))
    with pytest.raises(dp.DPLedgerError, match="budget changes faster"):
        step(run)
    service.faults.clear()
    assert sizes(service) == [64, 20, 19, 18]
    assert run.next_step == 0


def test_an_exhausted_budget_is_not_asked_for_in_the_background_again_and_again(
    service: FakeService, client: Client
) -> None:
    service.steps_max = 64
    run = start(client, flush_seconds=0.001)
    for _ in range(64):
        step(run)
    run.flush()
    assert 1 <= sizes(service)[1:].count(64) + 1 <= 2


def test_another_content_gives_back_what_was_leased(service: FakeService, client: Client) -> None:
    run = start(client, lease_steps=100)
    step(run, steps=3)
    step(run, LOUD)
    first, second = service.reservations.values()
    assert (first.state, first.end, second.first_step) == ("released", 3, 3)
    step(run)
    run.finish()
    assert [content[0] for content in service.contents()] == [QUIET] * 3 + [LOUD, QUIET]
    assert service.held == 0


def test_after_a_refusal_nothing_that_was_given_back_is_taken_for_admitted(
    service: FakeService, client: Client
) -> None:
    service.steps_max = 10
    run = start(client, lease_steps=10)
    step(run)
    service.faults.extend([answered, answering(problem("budget-exhausted", 409))])
    with pytest.raises(dp.BudgetExhausted):
        step(run, LOUD)  # it gave back the lease of the quiet steps, and got none
    assert service.held == 1
    service.steps_max = 1
    with pytest.raises(dp.BudgetExhausted):
        step(run)
    assert run.next_step == 1


@pytest.mark.parametrize("failing", range(3))
def test_leases_given_back_half_way_admit_nothing(
    service: FakeService, client: Client, failing: int
) -> None:
    run = start(client, lease_steps=2)
    run.declare(mechanism=QUIET, sampling=dp.full())
    run.admit(2)
    run.step()
    run.admit(3)
    run.admit(5)
    assert len(service.reservations) == 3
    service.faults.extend([*[answered] * failing, *FAIL])
    with pytest.raises(dp.Unavailable):
        run.step(mechanism=LOUD)
    service.faults.clear()
    service.steps_max = 1  # another run took the rest
    with pytest.raises(dp.BudgetExhausted):
        run.step()
    assert run.next_step == 1


@pytest.mark.parametrize("lost", [lost_reply, *FAIL[:1]])
def test_a_lost_answer_is_asked_for_again_with_the_same_words(
    service: FakeService, client: Client, lost: Callable[..., Any]
) -> None:
    run = start(client, lease_steps=100)
    service.faults.extend([lost] * 4)
    with pytest.raises(dp.Unavailable):
        step(run)
    assert run.next_step == 0
    step(run)
    bodies = service.bodies("/reservations")
    assert len(bodies) == 5
    assert all(body == bodies[0] for body in bodies)
    assert (len(service.reservations), service.spent) == (1, 100)


@pytest.mark.parametrize("lost", [lost_reply, *FAIL[:1]])
def test_a_lease_whose_answer_was_lost_is_given_back_when_something_else_is_stepped(
    service: FakeService, client: Client, lost: Callable[..., Any]
) -> None:
    run = start(client, lease_steps=100)
    service.faults.extend([lost] * 4)
    with pytest.raises(dp.Unavailable):
        step(run)
    step(run, LOUD)
    assert service.spent == 100
    run.finish()
    assert (service.recorded, service.held) == (1, 0)


def test_a_request_that_arrives_late_stands_in_nobodys_way(
    service: FakeService, client: Client
) -> None:
    run = start(client, lease_steps=100)
    late: list[Callable[[], httpx.Response]] = []

    def later(answer: Callable[[], httpx.Response]) -> httpx.Response:
        late.append(answer)
        raise httpx.ReadTimeout("slow")

    service.faults.extend([later] * 4)
    with pytest.raises(dp.Unavailable):
        step(run)
    step(run, LOUD)
    for answer in late:
        answer()
    step(run)
    run.finish()
    assert (service.recorded, service.held) == (2, 0)


def test_an_old_request_that_is_refused_says_nothing_about_the_next(
    service: FakeService, client: Client
) -> None:
    run = start(client, lease_steps=100)
    service.faults.extend(FAIL)
    with pytest.raises(dp.Unavailable):
        step(run)
    service.steps_max = 5  # others were faster
    step(run)
    assert (run.next_step, service.held) == (1, 5)
    assert len(set(names(service))) == 3


@pytest.mark.parametrize("status", [401, 403, 404])
def test_an_answer_that_decides_nothing_leaves_the_question_open(
    service: FakeService, client: Client, status: int
) -> None:
    run = start(client, lease_steps=100)

    def granted(answer: Callable[[], httpx.Response]) -> httpx.Response:
        answer()
        return problem("other", status)

    service.faults.append(granted)
    with pytest.raises(dp.DPLedgerError):
        step(run)
    step(run)
    assert len(set(names(service))) == 1
    assert service.spent == 100


def test_leases_that_an_admin_voided_are_taken_anew(
    service: FakeService, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    run = start(client, lease_steps=4)
    step(run, steps=2)
    service.void(names(service)[0])
    step(run, steps=2)  # nobody tells a trainer before it asks
    step(run)
    assert "anew from step 4" in caplog.text
    run.finish()
    assert (service.recorded, service.held) == (5, 0)


def test_a_lease_that_cannot_be_returned_holds_up_nothing(
    service: FakeService, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    run = start(client, lease_steps=4)
    step(run)
    service.void(names(service)[0])
    caplog.set_level(logging.INFO)
    assert run.finish() is not None
    assert "could not be released" in caplog.text


def test_steps_are_sent_before_too_many_leases_are_open(
    service: FakeService, client: Client
) -> None:
    run = start(client, lease_steps=1)
    for number in range(3 * reservations.LEASES_MAX):
        step(run)
        waiting = [one for one in service.reservations.values() if one.end > service.recorded]
        assert len(waiting) <= reservations.LEASES_MAX + 1, number
    assert service.recorded >= reservations.LEASES_MAX
    run.finish()
    assert (service.recorded, service.held) == (3 * reservations.LEASES_MAX, 0)
    returned = {path for path in service.paths if path.endswith(":release")}
    assert len(returned) <= reservations.LEASES_MAX + 1


@pytest.mark.parametrize("lost", [1, 2, 3, 5])
def test_answers_lost_while_leases_are_returned_return_them_once(
    service: FakeService, client: Client, lost: int
) -> None:
    run = start(client, lease_steps=2)
    run.declare(mechanism=QUIET, sampling=dp.full())
    for steps in (1, 3, 5):
        run.admit(steps)
    run.step()
    run.flush()
    service.faults.extend([lost_reply] * lost)
    run.finish()
    if lost == 5:
        run.finish()
    assert (service.recorded, service.held, service.states) == (1, 0, {"run": "finished"})


def test_a_run_on_a_plan_asks_for_each_step(service: FakeService, client: Client) -> None:
    service.on_plan = True
    run = start(client)
    step(run)
    step(run)
    assert service.modes == ["charge", "charge"]
    assert service.reservations == {}


def test_the_event_of_a_lease_is_that_of_its_steps(service: FakeService, client: Client) -> None:
    step(start(client, lease_steps=7))
    [body] = service.bodies("/reservations")
    assert body["event"] == {
        "first_step": 0, "steps": 7, "mechanism": QUIET,
        "sampling": {"kind": "poisson", "sampling_probability": 0.01},
    }  # fmt: skip
    assert (body["branch"], body["ttl_seconds"]) == ("main", reservations.TTL_SECONDS)
    assert body["needed_steps"] == 1
    assert len(body["name"]) <= 63
    assert service.steps[MAIN] == []
