"""Plans that leave a value open: solved on the safe side, or refused with the place at fault."""

from typing import Any

import httpx
import pytest

from tests.service.samples import GAUSSIAN, POISSON, RANDOM, TRUNCATED, WEIGHTED, Json, event

NOISE, STEPS, RATE = "noise_multiplier", "steps", "sampling_probability"
ANY_NOISE: Json = {"kind": "gaussian"}
ANY_RATE: Json = {"kind": "poisson"}


def without(message: Json, name: str) -> Json:
    return {key: value for key, value in message.items() if key != name}


def ask(api: httpx.Client, *events: Json, **given: Any) -> httpx.Response:
    body = {"neighboring_relation": "add_or_remove_one", "events": list(events), "delta": 1e-5}
    return api.post("/v1/plan", json=body | given)


def solve(api: httpx.Client, parameter: str, *events: Json, **given: Any) -> Json:
    answer = ask(api, *events, **({"solve_for": parameter, "epsilon": 3.0} | given))
    assert answer.status_code == 200, answer.text
    body: Json = answer.json()
    assert body["solved"]["parameter"] == parameter
    assert body["epsilon"] <= given.get("epsilon", 3.0)
    return body


def refused(answer: httpx.Response) -> tuple[str, str]:
    """Where a plan is at fault, and what is said of it."""
    assert answer.status_code == 422, answer.text
    assert answer.json()["type"] == "/problems/invalid-request"
    error = answer.json()["errors"][0]
    return error["location"], error["message"]


def test_the_least_noise_for_a_target(api: httpx.Client) -> None:
    found = solve(api, NOISE, event(0, 5000, mechanism=ANY_NOISE))
    value = found["solved"]["value"]
    assert value == pytest.approx(1.210886, abs=2e-6)
    closed = ask(api, event(0, 5000, mechanism=GAUSSIAN | {NOISE: value})).json()
    assert closed == found | {"solved": None}
    less = ask(api, event(0, 5000, mechanism=GAUSSIAN | {NOISE: value * 0.999998})).json()
    assert less["epsilon"] > 3.0


def test_the_most_steps_for_a_target(api: httpx.Client) -> None:
    found = solve(api, STEPS, without(event(0, 1), STEPS))
    steps = found["solved"]["value"]
    assert type(steps) is int
    assert found["steps"] == steps
    assert ask(api, event(0, steps)).json()["epsilon"] == found["epsilon"]
    assert ask(api, event(0, steps + 1)).json()["epsilon"] > 3.0


def test_the_highest_rate_for_a_target(api: httpx.Client) -> None:
    found = solve(api, RATE, event(0, 1000, sampling=ANY_RATE), event(1000, 10))
    value = found["solved"]["value"]
    more = POISSON | {RATE: value * 1.000002}
    assert ask(api, event(0, 1000, sampling=more), event(1000, 10)).json()["epsilon"] > 3.0


def test_one_value_is_found_for_all_that_is_open(api: httpx.Client) -> None:
    events = [event(0, 100, mechanism=ANY_NOISE), event(100, 5, mechanism=ANY_NOISE)]
    found = solve(api, NOISE, *events, event(105, 10))
    value = {NOISE: found["solved"]["value"]}
    closed = [each | {"mechanism": ANY_NOISE | value} for each in events]
    assert ask(api, *closed, event(105, 10)).json()["epsilon"] == found["epsilon"]


def test_null_is_open_too(api: httpx.Client) -> None:
    first, second = (
        solve(api, NOISE, event(0, 100, mechanism=mechanism))
        for mechanism in (ANY_NOISE, ANY_NOISE | {NOISE: None})
    )
    assert first == second


def test_other_closed_samplings_and_batch_sizes_stay_closed(api: httpx.Client) -> None:
    batches = {"kind": "poisson", "expected_batch_size": 600}
    cyclic = {"kind": "cyclic", "batch_size": 600, "steps_per_pass": 100}
    given: Json = {"dataset_size": 60000, "neighboring_relation": "replace_special"}
    one = solve(api, NOISE, event(0, 100, mechanism=ANY_NOISE, sampling=batches), **given)
    two = solve(api, NOISE, event(0, 100, mechanism=ANY_NOISE), **given)
    assert one["solved"] == two["solved"]
    given["epsilon"] = 20.0
    passes = solve(api, STEPS, without(event(0, 1, sampling=cyclic), STEPS), **given)
    assert passes["solved"]["value"] % 100 == 0


@pytest.mark.parametrize("accountant", ["best", "pld", "rdp"])
def test_a_plan_may_name_its_accountant(api: httpx.Client, accountant: str) -> None:
    found = solve(api, NOISE, event(0, 500, mechanism=ANY_NOISE), accountant=accountant)
    assert found["accountant"] == ("rdp" if accountant == "rdp" else "pld")
    closed = ask(api, event(0, 500), accountant=accountant).json()
    assert closed["accountant"] == found["accountant"]


@pytest.mark.parametrize(
    ("given", "events", "location", "message"),
    [
        ({"solve_for": NOISE}, [event(0, 5, mechanism=ANY_NOISE)], "body.epsilon", "must be given"),
        ({"epsilon": 1.0}, [event(0, 5, mechanism=ANY_NOISE)], "body.solve_for", "must be given"),
        ({"epsilon": 0.0, "solve_for": NOISE}, [event(0, 5)], "body.epsilon", "must lie in"),
        ({"epsilon": "1", "solve_for": NOISE}, [event(0, 5)], "body.epsilon", "number"),
        ({"epsilon": 1.0, "solve_for": "delta"}, [event(0, 5)], "body.solve_for", ""),
        ({"epsilon": 1.0, "solve_for": None}, [event(0, 5)], "body.solve_for", ""),
        (
            {"epsilon": 1.0, "solve_for": NOISE, "accountant": "clt"},
            [event(0, 5)], "body.accountant", "",
        ),
        ({"epsilon": 1.0, "solve_for": NOISE}, [event(0, 5)], "body.solve_for", "leaves its noise"),
        ({"epsilon": 1.0, "solve_for": STEPS}, [event(0, 5)], "body.solve_for", "leaves its steps"),
        (
            {"epsilon": 1.0, "solve_for": NOISE},
            [event(0, 5, mechanism=ANY_NOISE), event(5, 5, sampling=ANY_RATE)],
            "body.events[1].sampling.sampling_probability", "must be given",
        ),
        (
            {"epsilon": 1.0, "solve_for": RATE},
            [event(0, 5, mechanism=ANY_NOISE)],
            "body.events[0].mechanism.noise_multiplier", "must be given",
        ),
        (
            {"epsilon": 1.0, "solve_for": STEPS},
            [without(event(0, 1), STEPS), without(without(event(0, 1), STEPS), "first_step")],
            "body.events[1].steps", "one event only",
        ),
        (
            {"epsilon": 1.0, "solve_for": STEPS},
            [without(event(0, 1), STEPS), event(1, 1)],
            "body.events[1].first_step", "cannot be given",
        ),
        (
            {"epsilon": 1.0, "solve_for": RATE},
            [event(0, 5, sampling=POISSON | {"expected_batch_size": 5.0})],
            "body.events[0].sampling", "not both",
        ),
        (
            {"epsilon": 1.0, "solve_for": NOISE},
            [event(0, 5, mechanism=ANY_NOISE, sampling=without(TRUNCATED, RATE))],
            "body.events[0].sampling.sampling_probability", "must be given",
        ),
        (
            {"epsilon": 1.0, "solve_for": RATE},
            [event(0, 5, sampling={"kind": "truncated_poisson"})],
            "body.events[0].sampling.max_batch_size", "must be given",
        ),
        (
            {"epsilon": 1.0, "solve_for": RATE},
            [event(0, 5, sampling=without(TRUNCATED, RATE))],
            "body.events[0].sampling", "needs a dataset_size",
        ),
        (
            {"epsilon": 1.0, "solve_for": NOISE},
            [event(0, 5, mechanism=ANY_NOISE, sampling=RANDOM | {"participations": 101})],
            "body.events[0].sampling.participations", "must lie in [1, steps_per_pass]",
        ),
        ({"epsilon": 1.0, "solve_for": RATE}, [event(0, 5, sampling=WEIGHTED)],
         "body.solve_for", "leaves its sampling_probability"),
        (
            {"epsilon": 1.0, "solve_for": RATE},
            [event(0, 5, sampling=ANY_RATE | {"surplus": 5.0})],
            "body.events[0].sampling.surplus", "unknown",
        ),
        (
            {"epsilon": 1.0, "solve_for": NOISE},
            [event(0, 5, mechanism={"kind": "zcdp"})],
            "body.events[0].mechanism.rho", "must be given",
        ),
        (
            {"epsilon": 1.0, "solve_for": NOISE},
            [event(0, 5, mechanism=ANY_NOISE), event(0, 10**4, mechanism=GAUSSIAN | {NOISE: 0.5})],
            "body.events[1].first_step", "must be 5",
        ),
        (
            {"epsilon": 1e-3, "solve_for": NOISE},
            [event(0, 5, mechanism=ANY_NOISE), event(5, 100, sampling={"kind": "full"})],
            "body.epsilon", "safest noise_multiplier that is tried, 1e+06",
        ),
        ({"epsilon": 0.1, "solve_for": STEPS}, [without(event(0, 1), STEPS) | {
            "sampling": {"kind": "full"}}], "body.epsilon", "safest steps that is tried, 1,"),
        ({}, [event(0, 5, mechanism=ANY_NOISE)], "body.events[0].mechanism.noise_multiplier",
         "must be given"),
        ({}, [without(event(0, 5), STEPS)], "body.events[0].steps", "must be given"),
        ({}, [event(0, 5, sampling=ANY_RATE)], "body.events[0].sampling", "give exactly one of"),
        ({}, [event(0, 5, mechanism=ANY_NOISE | {NOISE: None})],
         "body.events[0].mechanism.noise_multiplier", "number"),
    ],
)  # fmt: skip
def test_what_cannot_be_solved_is_refused_with_its_place(
    api: httpx.Client, given: Json, events: list[Json], location: str, message: str
) -> None:
    found = refused(ask(api, *events, **given))
    assert found[0] == location
    assert message in found[1]


def test_an_open_event_is_taken_by_plans_alone(api: httpx.Client) -> None:
    answer = api.post("/v1/runs/run/events", json={"events": [event(0, 5, mechanism=ANY_NOISE)]})
    assert refused(answer)[0] == "body.events[0].mechanism.noise_multiplier"


def test_an_event_without_a_bound_is_named(api: httpx.Client) -> None:
    shuffled = event(
        5,
        1,
        sampling={"kind": "shuffle", "batch_size": 60, "reshuffle": "once", "steps_per_pass": 1000},
    )
    events = [event(0, 5, mechanism=ANY_NOISE), shuffled]
    answer = ask(api, *events, solve_for=NOISE, epsilon=1.0, dataset_size=60000)
    assert answer.json()["type"] == "/problems/unsupported-event"
    assert answer.json()["location"] == "body.events[1]"


def test_a_plan_that_takes_too_long_is_refused_by_name(api: httpx.Client) -> None:
    many = [
        event(i, 1, mechanism=GAUSSIAN | {NOISE: 0.5 + i * 1.7e-3}, sampling=ANY_RATE)
        for i in range(1000)
    ]
    answer = ask(api, *many, solve_for=RATE, epsilon=3.0)
    assert answer.status_code == 422
    assert answer.json()["type"] == "/problems/too-expensive"
    assert answer.json()["detail"].startswith("The plan would take more than 2 s")


@pytest.mark.parametrize("kind", ["cyclic", "shuffle"])
def test_a_loader_that_drops_its_last_batch_costs_what_its_own_passes_cost(
    api: httpx.Client, kind: str
) -> None:
    sampling: Json = {"kind": kind, "batch_size": 10}
    if kind == "shuffle":
        sampling["reshuffle"] = "once"
    noise = {"kind": "gaussian", "noise_multiplier": 10.0}

    def asked(**length: int) -> httpx.Response:
        steps = {"steps": 100, "mechanism": noise, "sampling": sampling | length}
        asked = {"dataset_size": 15, "neighboring_relation": "replace_special"}
        return api.post("/v1/plan", json=asked | {"events": [steps], "delta": 1e-5})

    refused = asked()
    assert refused.status_code == 422
    (fault,) = refused.json()["errors"]
    assert fault["location"].endswith("events[0].sampling.steps_per_pass")
    assert "2 for a loader that uses the last, smaller batch, 1 for one that" in fault["message"]
    told = [asked(steps_per_pass=length).json()["epsilon"] for length in (2, 1)]
    assert told == [pytest.approx(2.94, abs=0.005), pytest.approx(4.38, abs=0.005)]
