import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dpledger_client as dp
import httpx
import pytest
from dpledger_client import Client

from tests.client.fake_service import FakeService, answering, busy, lost_reply, problem
from tests.client.samples import FAIL, LOUD, MAIN, QUIET, SAMPLING, start, step


def test_equal_steps_are_sent_as_one_event(service: FakeService, client: Client) -> None:
    run = start(client)
    for noise in (QUIET, QUIET, LOUD, QUIET):
        step(run, noise, steps=3)
    assert service.bodies("/events") == []
    assert (run.next_step, run.unsent_steps) == (12, 12)
    run.flush()
    assert service.bodies("/events") == [
        {
            "branch": "main",
            "mode": "record",
            "events": [
                {"first_step": 0, "steps": 6, "mechanism": QUIET, "sampling": SAMPLING},
                {"first_step": 6, "steps": 3, "mechanism": LOUD, "sampling": SAMPLING},
                {"first_step": 9, "steps": 3, "mechanism": QUIET, "sampling": SAMPLING},
            ],
        }
    ]
    assert (run.next_step, run.unsent_steps) == (12, 0)


def test_a_change_to_the_callers_dict_changes_no_past_step(
    service: FakeService, client: Client
) -> None:
    run, noise = start(client), dict(QUIET)
    step(run, noise)
    noise["noise_multiplier"] = 1.0
    step(run, noise)
    run.flush()
    sent = [event["mechanism"] for event in service.bodies("/events")[0]["events"]]
    assert sent == [QUIET, LOUD]


def test_nothing_is_sent_when_nothing_waits(service: FakeService, client: Client) -> None:
    start(client).flush()
    assert service.bodies("/events") == []


def test_a_flush_comes_after_so_many_steps(service: FakeService, client: Client) -> None:
    run = start(client, flush_steps=4)
    for _ in range(10):
        step(run)
    sent = [body["events"][0] for body in service.bodies("/events")]
    assert [(event["first_step"], event["steps"]) for event in sent] == [(0, 4), (4, 4)]
    assert run.unsent_steps == 2


def test_a_flush_comes_after_so_many_seconds(
    service: FakeService, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("dpledger_client.run.monotonic", lambda: now)
    run = start(client, flush_seconds=5.0)
    step(run)
    assert service.bodies("/events") == []
    now = 105.0
    step(run)
    assert len(service.steps[MAIN]) == 2
    now = 109.0
    step(run)
    assert run.unsent_steps == 1


def test_long_buffers_go_in_several_requests(service: FakeService, client: Client) -> None:
    run = start(client, flush_steps=10**6)
    for number in range(2500):
        step(run, (QUIET, LOUD)[number % 2])
    run.flush()
    assert [len(body["events"]) for body in service.bodies("/events")] == [1000, 1000, 500]
    assert len(service.steps[MAIN]) == 2500


def test_a_lost_reply_counts_no_step_twice(service: FakeService, client: Client) -> None:
    run = start(client)
    step(run, steps=5)
    service.faults.extend([lost_reply, busy])
    run.flush()
    assert len(service.bodies("/events")) == 3
    assert len(service.steps[MAIN]) == 5
    assert run.unsent_steps == 0


def test_steps_that_could_not_be_sent_are_sent_later(service: FakeService, client: Client) -> None:
    run = start(client, flush_steps=2)
    step(run)
    service.faults.extend(FAIL)
    with pytest.raises(dp.Unavailable):
        step(run)
    assert (run.next_step, run.unsent_steps) == (2, 2)
    step(run)  # not a new attempt at once: the trainer would wait at every step
    assert run.unsent_steps == 3
    step(run)
    assert (len(service.steps[MAIN]), run.unsent_steps) == (4, 0)


def test_steps_grown_after_a_lost_reply_are_counted_once(
    service: FakeService, client: Client
) -> None:
    run = start(client)
    step(run, steps=2)
    service.faults.extend([lost_reply] * 4)
    with pytest.raises(dp.Unavailable):
        run.flush()
    step(run, steps=3)
    run.flush()
    assert service.bodies("/events")[-1]["events"][0]["steps"] == 5
    assert len(service.steps[MAIN]) == 5


def test_a_failure_between_requests_loses_and_repeats_nothing(
    service: FakeService, client: Client
) -> None:
    run = start(client, flush_steps=10**6)
    for number in range(1500):
        step(run, (QUIET, LOUD)[number % 2])
    service.faults.append(lambda answer: answer())
    service.faults.extend(FAIL)
    with pytest.raises(dp.Unavailable):
        run.flush()
    assert run.unsent_steps == 500
    run.flush()
    assert len(service.steps[MAIN]) == 1500
    assert service.bodies("/events")[-1]["events"][0]["first_step"] == 1000


def test_a_reply_that_confirms_too_little_is_an_error(service: FakeService, client: Client) -> None:
    run = start(client)
    step(run, steps=5)
    service.faults.append(answering(httpx.Response(200, json={"next_step": 4})))
    with pytest.raises(dp.DPLedgerError, match="fewer steps"):
        run.flush()
    assert run.unsent_steps == 5


def test_replies_are_shown(service: FakeService, client: Client) -> None:
    run = start(client)
    assert (run.last_guarantee, run.epsilon, run.budget, run.verdict) == (None, None, None, None)
    service.steps_max = 1
    step(run, steps=2)
    run.flush()
    assert run.last_guarantee == {"epsilon": 1.5, "delta": 1e-5}
    assert (run.epsilon, run.budget, run.verdict) == (1.5, {"remaining": 0.5}, "overdraft")


def test_an_epsilon_that_no_bound_limits_is_infinite(service: FakeService, client: Client) -> None:
    run = start(client)
    service.guarantee = {"epsilon": None, "reason": "no noise"}
    step(run)
    run.flush()
    assert run.epsilon == math.inf
    service.guarantee = None
    step(run)
    run.flush()
    assert run.epsilon is None


def test_a_guarantee_includes_the_steps_that_waited(service: FakeService, client: Client) -> None:
    run = start(client)
    step(run)
    answer = run.guarantee(delta=1e-6)
    assert answer == {"epsilon": 2.0, "query": {"delta": "1e-06"}}
    assert service.paths[-2:] == ["/v1/runs/run/events", "/v1/runs/run/guarantee"]
    step(run)
    service.faults.extend(FAIL)
    with pytest.raises(dp.Unavailable):
        run.guarantee()
    assert service.paths[-1] == "/v1/runs/run/events"


def test_a_charge_is_recorded_before_it_returns(service: FakeService, client: Client) -> None:
    run = start(client, mode="charge")
    step(run, steps=3)
    assert (len(service.steps[MAIN]), run.next_step, run.unsent_steps) == (3, 3, 0)
    assert service.modes == ["charge"]


def test_a_refused_charge_leaves_the_run_as_it_was(service: FakeService, client: Client) -> None:
    service.steps_max = 2
    run = start(client, mode="charge")
    step(run)
    with pytest.raises(dp.BudgetExhausted) as raised:
        step(run, steps=5)
    assert raised.value.admissible_steps == 1
    assert raised.value.failing_scopes == [{"scope": "dataset:letters"}]
    assert (run.next_step, len(service.steps[MAIN])) == (1, 1)
    step(run)
    assert (run.next_step, len(service.steps[MAIN])) == (2, 2)


def test_a_charge_whose_replies_were_lost_is_counted_once_when_repeated(
    service: FakeService, client: Client
) -> None:
    run = start(client, mode="charge")
    service.faults.extend([lost_reply] * 4)
    with pytest.raises(dp.Unavailable):
        step(run)
    assert run.next_step == 0
    step(run)
    assert (run.next_step, len(service.steps[MAIN])) == (1, 1)


def test_a_charge_sends_what_was_recorded_before_it(service: FakeService, client: Client) -> None:
    run = start(client)
    step(run, steps=2)
    step(run, mode="charge")
    assert service.modes == ["record", "charge"]
    assert [body["events"][0]["first_step"] for body in service.bodies("/events")] == [0, 2]
    step(run)
    service.faults.extend(FAIL)
    with pytest.raises(dp.Unavailable):
        step(run, mode="charge")
    assert (run.next_step, run.unsent_steps) == (4, 1)


@pytest.mark.parametrize(
    "arguments",
    [
        {"steps": 0},
        {"steps": 1.5},
        {"mode": "Charge"},
        {"noise": {"kind": "gaussian", "noise_multiplier": math.nan}},
        {"noise": {"kind": object()}},
    ],
)
def test_an_argument_that_cannot_be_sent_counts_nothing(
    client: Client, arguments: dict[str, Any]
) -> None:
    run = start(client)
    with pytest.raises((TypeError, ValueError)):
        step(run, **arguments)
    assert run.next_step == 0


def test_an_unknown_mode_opens_no_run(service: FakeService, client: Client) -> None:
    with pytest.raises(ValueError, match="mode"):
        start(client, mode="both")
    assert service.requests == []


@pytest.mark.parametrize("mode", ["record", "charge"])
def test_threads_lose_no_step(service: FakeService, client: Client, mode: str) -> None:
    run = start(client, mode=mode, flush_steps=7)

    def work(worker: int) -> None:
        for number in range(50):
            step(run, (QUIET, LOUD)[(worker + number) % 2])
            if number % 20 == 0:
                run.flush()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    run.finish()
    contents = service.steps[MAIN]
    assert len(contents) == run.next_step == 400
    assert sum("2.0" in content for content in contents) == 200
    assert service.most_at_once == 1


def test_threads_may_record_while_others_charge(service: FakeService, client: Client) -> None:
    run = start(client, flush_steps=5)

    def work(worker: int) -> None:
        for _ in range(50):
            step(run, mode="charge" if worker % 2 else "record")

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    run.flush()
    assert len(service.steps[MAIN]) == run.next_step == 300
    assert service.most_at_once == 1


def test_a_branch_is_written_from_its_step_on(service: FakeService, client: Client) -> None:
    with client.resume_run("run", branch="again", from_step=7) as run:
        step(run)
    body = service.bodies("/events")[0]
    assert (body["branch"], body["events"][0]["first_step"]) == ("again", 7)
    assert run.next_step == 8


def test_a_refusal_keeps_the_steps(service: FakeService, client: Client) -> None:
    run = start(client)
    step(run)
    service.faults.append(answering(problem("unauthorized", 401)))
    with pytest.raises(dp.Unauthorized):
        run.flush()
    assert len(service.bodies("/events")) == 1
    run.flush()
    assert len(service.steps[MAIN]) == 1


def test_a_run_shows_where_it_is(client: Client) -> None:
    assert repr(start(client)) == "Run(name='run', branch='main', next_step=0)"
