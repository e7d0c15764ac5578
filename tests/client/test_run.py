"""What a run tells of its steps; most of it where steps are only observed."""

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dpledger_client as dp
import httpx
import numpy as np
import pytest
from dpledger_client import Client, Run

from tests.client.conftest import Waiter
from tests.client.fake_service import FakeService, answered, answering, busy, lost_reply, problem
from tests.client.samples import FAIL, LOUD, MAIN, QUIET, SAMPLING, observe, start, step


def test_equal_steps_are_sent_as_one_event(service: FakeService, client: Client) -> None:
    run = observe(client)
    for noise in (QUIET, QUIET, LOUD, QUIET):
        step(run, noise, steps=3)
    assert service.bodies("/events") == []
    assert (run.next_step, run.unsent_steps) == (12, 12)
    run.flush()
    assert service.bodies("/events") == [
        {
            "branch": "main",
            "writer": service.bodies("/v1/runs")[0]["writer"],
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
    run, noise = observe(client), dict(QUIET)
    step(run, noise)
    noise["noise_multiplier"] = 1.0
    step(run, noise)
    run.flush()
    assert [content[0] for content in service.contents()] == [QUIET, LOUD]


def test_steps_are_what_was_declared_last(service: FakeService, client: Client) -> None:
    run = observe(client, mechanism=QUIET)
    with pytest.raises(ValueError, match="Give the mechanism and the sampling"):
        run.step()
    run.declare(sampling=SAMPLING)
    run.step()
    run.step(mechanism=LOUD)
    run.declare(mechanism=LOUD)
    run.step(sampling=dp.full())
    with pytest.raises(ValueError, match="JSON"):
        run.declare(mechanism={"kind": "gaussian", "noise_multiplier": math.nan})
    assert (run.mechanism, run.sampling) == (LOUD, SAMPLING)
    run.flush()
    assert service.contents() == [[QUIET, SAMPLING], [LOUD, SAMPLING], [LOUD, dp.full()]]


def test_nothing_is_sent_when_nothing_waits(service: FakeService, client: Client) -> None:
    observe(client).flush()
    assert service.bodies("/events") == []


def test_steps_are_sent_when_so_many_have_come(
    service: FakeService, client: Client, eventually: Waiter
) -> None:
    run = observe(client, flush_steps=4)
    for _ in range(3):
        step(run)
    assert service.bodies("/events") == []
    step(run)
    eventually(lambda: not run.unsent_steps)
    assert len(service.steps[MAIN]) == 4


def test_steps_are_sent_after_so_many_seconds(
    service: FakeService, client: Client, eventually: Waiter
) -> None:
    run = observe(client, flush_seconds=0.01)
    step(run)
    eventually(lambda: not run.unsent_steps)
    assert len(service.steps[MAIN]) == 1


def test_long_buffers_go_in_several_requests(service: FakeService, client: Client) -> None:
    run = observe(client)
    for number in range(2500):
        step(run, (QUIET, LOUD)[number % 2])
    run.flush()
    assert [len(body["events"]) for body in service.bodies("/events")] == [1000, 1000, 500]
    assert len(service.steps[MAIN]) == 2500


def test_a_lost_reply_counts_no_step_twice(service: FakeService, client: Client) -> None:
    run = observe(client)
    step(run, steps=5)
    service.faults.extend([lost_reply, busy])
    run.flush()
    assert len(service.bodies("/events")) == 3
    assert len(service.steps[MAIN]) == 5
    assert run.unsent_steps == 0


def test_steps_grown_after_a_lost_reply_are_counted_once(
    service: FakeService, client: Client
) -> None:
    run = observe(client)
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
    run = observe(client)
    for number in range(1500):
        step(run, (QUIET, LOUD)[number % 2])
    service.faults.extend([answered, *FAIL])
    with pytest.raises(dp.Unavailable):
        run.flush()
    assert run.unsent_steps == 500
    run.flush()
    assert len(service.steps[MAIN]) == 1500
    assert service.bodies("/events")[-1]["events"][0]["first_step"] == 1000


@pytest.mark.parametrize("confirmed", [4, None, "5"])
def test_a_reply_that_confirms_too_little_is_an_error(
    service: FakeService, client: Client, confirmed: object
) -> None:
    run = observe(client)
    step(run, steps=5)
    service.faults.append(answering(httpx.Response(200, json={"next_step": confirmed})))
    with pytest.raises(dp.DPLedgerError, match="fewer steps"):
        run.flush()
    assert run.unsent_steps == 5


def test_replies_are_shown(service: FakeService, client: Client) -> None:
    run = observe(client)
    assert (run.last_guarantee, run.epsilon, run.budget, run.verdict) == (None, None, None, None)
    service.steps_max = 1
    step(run, steps=2)
    run.flush()
    assert run.last_guarantee == {"epsilon": 1.5, "delta": 1e-5}
    assert (run.budget, run.verdict) == ({"remaining": 0.5}, "overdraft")


def test_epsilon_is_the_certified_one_of_all_steps(service: FakeService, client: Client) -> None:
    run = observe(client)
    before = list(service.paths)
    assert [run.epsilon] == [None]
    assert service.paths == before
    step(run)
    assert run.epsilon == 2.0  # as the guarantee has it; the reply's own reading is 1.5
    assert service.paths[-2:] == ["/v1/runs/run/events", "/v1/runs/run/guarantee"]
    service.away = True
    step(run)
    assert (run.epsilon, run.unsent_steps) == (1.5, 1)


def test_an_epsilon_that_no_bound_limits_is_infinite(service: FakeService, client: Client) -> None:
    run = observe(client)
    service.guarantee = {"epsilon": None, "reason": "no noise"}
    step(run)
    run.flush()
    service.away = True
    assert run.epsilon == math.inf


def test_without_a_delta_a_run_has_no_epsilon(service: FakeService, client: Client) -> None:
    run = observe(client)
    service.guarantee = None
    step(run)
    assert run.epsilon is None
    assert service.paths[-1] == "/v1/runs/run/events"


def test_a_guarantee_includes_the_steps_that_waited(service: FakeService, client: Client) -> None:
    run = observe(client)
    step(run)
    answer = run.guarantee(delta=1e-6)
    assert (answer["epsilon"], answer["query"]) == (2.0, {"delta": "1e-06"})
    assert service.paths[-2:] == ["/v1/runs/run/events", "/v1/runs/run/guarantee"]
    step(run)
    service.faults.extend(FAIL)
    with pytest.raises(dp.Unavailable):
        run.guarantee()
    assert service.paths[-1] == "/v1/runs/run/events"


@pytest.mark.parametrize("mode", ["leased", "strict", "observe"])
@pytest.mark.parametrize(
    "arguments",
    [
        {"steps": 0},
        {"steps": 1.5},
        {"steps": 1.0},
        {"noise": {"kind": "gaussian", "noise_multiplier": math.nan}},
        {"noise": {"kind": object()}},
        {"size": -1},
    ],
)
def test_an_argument_that_cannot_be_sent_counts_nothing(
    client: Client, mode: str, arguments: dict[str, Any]
) -> None:
    run = start(client, mode=mode)
    with pytest.raises((TypeError, ValueError)):
        step(run, **arguments)
    assert run.next_step == 0


def test_a_number_of_steps_of_an_array_library_is_a_number(
    service: FakeService, client: Client
) -> None:
    run = start(client)
    step(run, steps=np.int64(1))
    step(run, steps=np.int32(2))
    step(run, steps=True)
    run.flush()
    assert type(run.next_step) is int
    assert len(service.steps[MAIN]) == 4


def test_an_argument_that_is_out_of_range_opens_no_run(
    service: FakeService, client: Client
) -> None:
    refused: list[dict[str, Any]] = [
        {"mode": "both"}, {"mode": "charge"}, {"lease_steps": 0}, {"rank": 1, "world_size": 1},
        {"rank": -1},
    ]  # fmt: skip
    for given in refused:
        with pytest.raises(ValueError, match=r"mode|steps|rank"):
            start(client, **given)
    with pytest.raises(TypeError):
        start(client, lease_steps=1.5)
    assert service.requests == []


def _work(run: Run, worker: int) -> None:
    for number in range(50):
        step(run, (QUIET, LOUD)[(worker + number) % 2])
        if number % 20 == 0:
            run.flush()


@pytest.mark.parametrize("mode", ["leased", "strict", "observe"])
def test_threads_lose_no_step(service: FakeService, client: Client, mode: str) -> None:
    run = start(client, mode=mode, flush_steps=7)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda worker: _work(run, worker), range(8)))
    run.finish()
    contents = service.steps[MAIN]
    assert len(contents) == run.next_step == 400
    assert sum("2.0" in content for content in contents) == 200
    assert service.most_at_once == 1
    assert service.held == 0


def test_a_refusal_keeps_the_steps(service: FakeService, client: Client) -> None:
    run = observe(client)
    step(run)
    service.faults.append(answering(problem("unauthorized", 401)))
    with pytest.raises(dp.Unauthorized):
        run.flush()
    assert len(service.bodies("/events")) == 1
    run.flush()
    assert len(service.steps[MAIN]) == 1


def test_a_run_shows_where_it_is(client: Client) -> None:
    run = start(client, dataset_size=7)
    assert repr(run) == "Run(name='run', branch='main', next_step=0)"
    assert (run.name, run.dataset, run.dataset_size) == ("run", "letters", 7)
    assert (run.mode, run.rank, run.world_size) == ("leased", 0, 1)
    assert run.url == "http://127.0.0.1:8000/v1/runs/run"


def test_the_size_of_the_dataset_is_asked_for(client: Client) -> None:
    assert start(client).dataset_size == 1000


def test_an_iterate_that_was_shown_is_told_after_its_step(
    service: FakeService, client: Client
) -> None:
    run = start(client)
    step(run, steps=5)
    run.release()
    step(run)
    run.release(2)
    assert service.releases == [("run", "main", 4), ("run", "main", 2)]
    assert len(service.steps[MAIN]) == 6


@pytest.mark.parametrize("shown", [None, -1, 0, 3])
def test_an_iterate_that_does_not_exist_is_not_told(
    service: FakeService, client: Client, shown: int | None
) -> None:
    run = start(client)
    if shown == 3:
        step(run, steps=3)
    with pytest.raises(dp.OutOfSequence, match="was not taken"):
        run.release(shown)
    run.flush()
    assert service.releases == []


def test_an_iterate_shown_while_the_service_is_away_is_told_later(
    service: FakeService, client: Client
) -> None:
    run = start(client)
    step(run)
    service.away = True
    with pytest.raises(dp.Unavailable):
        run.release()
    service.away = False
    run.finish()
    assert service.releases == [("run", "main", 0)]


def test_an_iterate_may_be_shown_after_the_end(service: FakeService, client: Client) -> None:
    run = start(client)
    step(run, steps=2)
    run.finish()
    service.away = True
    with pytest.raises(dp.Unavailable):
        run.release()
    service.away = False
    run.release()
    assert set(service.releases) == {("run", "main", 1)}
