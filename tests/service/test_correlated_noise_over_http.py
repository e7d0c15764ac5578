"""Correlated noise over HTTP: kept strategies, passes, what is refused, what is certified."""

from typing import Any

import httpx
import pytest
from sqlalchemy import Engine

from tests.service.correlated import (
    ACCEPT,
    NOISE,
    begin,
    guaranteed,
    keep,
    noisy,
    refused,
    rows,
    separated,
    sound,
    toeplitz,
)
from tests.service.samples import GAUSSIAN, POISSON, WRITER, Json, append, event, run
from tests.service.test_reservations import reserve

# Passes


EPSILONS = [
    (64, 8, 8, 9.499816013276556),
    (64, 8, 3, 4.331813352752875),
    (1000, 100, 10, 12.958170554048339),
    (2048, 128, 16, 22.190439375848367),
    (2048, 2048, 1, 2.092622774426979),
]


@pytest.mark.parametrize(("n", "b", "k", "epsilon"), EPSILONS)
def test_a_pass_is_charged_whole_with_its_first_step(
    api: httpx.Client, engine: Engine, n: int, b: int, k: int, epsilon: float
) -> None:
    begin(api)
    digest = toeplitz(api, n)
    for first, steps in ((0, 1), (1, n - 1)):
        answer = append(api, rows(first, steps, digest, n=n, b=b, k=k), mode="charge")
        assert answer.status_code == 201, answer.text
        for path in ("runs/run", "datasets/data"):
            found = guaranteed(api, path)
            assert found["epsilon"] == pytest.approx(epsilon, abs=1e-6)
            assert found["status"] == "derived"
    assert sound(engine) == []


def test_a_step_after_the_pass_is_refused_ahead_and_has_no_bound_afterwards(
    api: httpx.Client, engine: Engine
) -> None:
    begin(api)
    digest = toeplitz(api)
    append(api, rows(0, 64, digest), mode="charge")
    refused(append(api, rows(64, 1, digest), mode="charge"), 422, "unsupported-event", "used again")
    refused(
        reserve(api, "ahead", 1, event={"mechanism": noisy(digest), "sampling": separated()}),
        422, "unsupported-event",
    )  # fmt: skip
    assert append(api, rows(64, 1, digest)).status_code == 201
    found = guaranteed(api)
    assert found["epsilon"] is None
    assert "used again" in found["reason"]
    assert sound(engine) == []


def test_a_pass_after_a_pass_needs_noise_that_restarts(api: httpx.Client) -> None:
    begin(api)
    digest = toeplitz(api)
    given: Json = {"noise_restarts_each_pass": True}
    for first in (0, 64):
        answer = append(api, rows(first, 64, digest, **given), mode="charge")
        assert answer.status_code == 201
    twice = guaranteed(api)["epsilon"]
    mu = (2 * 50.15585143397344 / NOISE**2) ** 0.5
    plan = {
        "neighboring_relation": "add_or_remove_one", "delta": 1e-6, "accept": ACCEPT,
        "events": [{"steps": 1, "mechanism": {"kind": "gaussian", "noise_multiplier": 1 / mu},
                    "sampling": {"kind": "full"}}],
    }  # fmt: skip
    assert twice == pytest.approx(api.post("/v1/plan", json=plan).json()["epsilon"], abs=1e-6)


def test_rows_may_lie_between_other_steps(api: httpx.Client, engine: Engine) -> None:
    begin(api)
    digest = toeplitz(api)
    assert api.post("/v1/runs", json=run("other")).status_code == 201
    append(api, rows(0, 30, digest), event(30, 5), rows(35, 34, digest), mode="charge")
    append(api, event(0, 7), run="other")
    whole = guaranteed(api, "datasets/data")["epsilon"]
    plan: Json = {
        "neighboring_relation": "add_or_remove_one", "delta": 1e-6, "accept": ACCEPT,
        "events": [
            {"steps": 64, "mechanism": noisy(digest), "sampling": separated()},
            {"steps": 12, "mechanism": GAUSSIAN, "sampling": POISSON},
        ],
    }  # fmt: skip
    assert whole == pytest.approx(api.post("/v1/plan", json=plan).json()["epsilon"], rel=1e-9)
    assert sound(engine) == []


def test_rows_of_two_strategies_are_refused_ahead_and_have_no_bound(
    api: httpx.Client, engine: Engine
) -> None:
    begin(api)
    one, other = toeplitz(api), keep(api, kind="tree")
    append(api, rows(0, 30, one, noise_restarts_each_pass=True))
    spliced = rows(30, 1, other, noise_restarts_each_pass=True)
    refused(append(api, spliced, mode="charge"), 422, "unsupported-event", "unfinished")
    append(api, spliced)
    assert guaranteed(api)["epsilon"] is None
    told = api.get("/v1/datasets/data/incidents").json()["incidents"]
    assert [one["kind"] for one in told] == ["noise_reused"]
    assert sound(engine) == []


def test_noise_that_falls_in_a_pass_counts_at_its_least(api: httpx.Client, engine: Engine) -> None:
    begin(api, budget={"epsilon": 50.0, "delta": 1e-6})
    digest = toeplitz(api)
    append(api, rows(0, 30, digest), rows(30, 4, digest, noise=3.0), rows(34, 30, digest))
    plan: Json = {
        "neighboring_relation": "add_or_remove_one", "delta": 1e-6, "accept": ACCEPT,
        "events": [{"steps": 64, "mechanism": noisy(digest, 3.0), "sampling": separated()}],
    }  # fmt: skip
    found = guaranteed(api)["epsilon"]
    assert found == pytest.approx(api.post("/v1/plan", json=plan).json()["epsilon"], rel=1e-12)
    assert sound(engine) == []


@pytest.mark.parametrize(
    ("given", "covered"),
    [
        ({"from_step": 20}, False),
        ({"from_step": 20, "order": "continued"}, False),
        ({"from_step": 20, "order": "fresh"}, False),
        ({"from_step": 20, "order": "fresh", "noise": "fresh"}, True),
        ({"from_step": 30, "order": "continued"}, True),  # it takes the pass and goes on in it
    ],
)
def test_a_branch_inside_a_pass_needs_fresh_noise(
    api: httpx.Client, engine: Engine, given: Json, covered: bool
) -> None:
    begin(api)
    digest = toeplitz(api)
    append(api, rows(0, 30, digest))
    once = guaranteed(api)["epsilon"]
    about = {"name": "again", "writer": "writer-of-the-tests-2"} | given
    assert api.post("/v1/runs/run/branches", json=about).status_code == 201
    further = rows(given["from_step"], 10, digest)
    charged = append(api, further, branch="again", mode="charge")
    assert charged.status_code == (201 if covered else 422), charged.text
    append(api, further, branch="again")
    found = guaranteed(api)["epsilon"]
    if not covered:
        assert found is None
    elif "noise" in given:
        assert found > 1.3 * once
    else:
        assert found == once
    assert sound(engine) == []
    document = api.get("/v1/runs/run/ledger").json()
    assert [one["name"] for one in document["branches"]] == ["again"]


def test_fresh_noise_is_of_a_branch_in_a_fresh_order(api: httpx.Client) -> None:
    begin(api)
    about = {"name": "again", "writer": WRITER, "from_step": 0, "noise": "fresh"}
    refused(api.post("/v1/runs/run/branches", json=about), 422, "request", "needs order fresh")


def test_a_budget_holds_passes_and_refuses_one_too_many(api: httpx.Client) -> None:
    begin(api, budget={"epsilon": 12.0, "delta": 1e-6, "filter": "gaussian_dp"})
    digest = toeplitz(api)
    assert append(api, rows(0, 64, digest), mode="charge").status_code == 201
    api.post("/v1/runs", json=run("other"))
    answer = append(api, rows(0, 1, digest), mode="charge", run="other")
    refused(answer, 409, "budget-exhausted")


@pytest.mark.parametrize("filter_", ["fixed_order_renyi", "union_of_orders", "gaussian_dp"])
def test_filters_hold_passes(api: httpx.Client, engine: Engine, filter_: str) -> None:
    begin(api, budget={"epsilon": 30.0, "delta": 1e-6, "filter": filter_})
    digest = toeplitz(api)
    sampling = separated()
    ahead = {"mechanism": noisy(digest), "sampling": sampling}
    assert reserve(api, "ahead", 10, event=ahead).status_code == 201
    held = api.get("/v1/datasets/data").json()["budget"]
    assert append(api, rows(0, 64, digest), mode="charge").status_code == 201
    spent = api.get("/v1/datasets/data").json()["budget"]
    assert spent["spent"] == pytest.approx(held["reserved"], rel=1e-9)
    assert sound(engine) == []


def test_an_envelope_holds_a_pass(api: httpx.Client) -> None:
    probe = toeplitz(api)
    item = {"steps": 64, "mechanism": noisy(probe), "sampling": separated()}
    begin(api, budget={"epsilon": 12.0, "delta": 1e-6, "filter": "envelope", "envelope": [item]})
    assert append(api, rows(0, 64, probe, noise=5.0), mode="charge").status_code == 201
    spent = api.get("/v1/datasets/data").json()["budget"]["items"][0]
    assert (spent["used"], spent["allowed"]) == (64, 64)
    api.post("/v1/runs", json=run("other"))
    refused(append(api, rows(0, 1, probe), mode="charge", run="other"), 409, "budget-exhausted")


def test_a_plan_finds_the_noise_of_a_pass(api: httpx.Client) -> None:
    digest = toeplitz(api)
    open_noise = noisy(digest)
    del open_noise["noise_multiplier"]
    asked: Json = {
        "neighboring_relation": "add_or_remove_one", "delta": 1e-6, "accept": ACCEPT,
        "epsilon": 9.499816013276556 + 1e-9, "solve_for": "noise_multiplier",
        "events": [{"steps": 64, "mechanism": open_noise, "sampling": separated()}],
    }  # fmt: skip
    answer = api.post("/v1/plan", json=asked)
    assert answer.status_code == 200, answer.text
    assert answer.json()["solved"]["value"] == pytest.approx(4.0, rel=1e-6)


# Groups in turns


def turns(q: float, b: int, n: int, **given: Any) -> Json:
    return {
        "kind": "cyclic_poisson", "sampling_probability": q, "cycle_length": b,
        "steps_per_pass": n, "placement": "by_record",
    } | given  # fmt: skip


@pytest.mark.parametrize(
    ("noise", "n", "b", "q", "epsilon"),
    [(1.0, 1000, 10, 0.1, 7.0466), (2.0, 2000, 16, 0.16, 4.4158), (1.0, 1000, 1, 0.01, 1.82824)],
)
def test_a_pass_in_turns(
    api: httpx.Client, engine: Engine, noise: float, n: int, b: int, q: float, epsilon: float
) -> None:
    begin(api)
    digest = keep(api, kind="toeplitz", coefficients=[1.0] + [0.0] * (b - 1))
    answer = append(
        api, event(0, n, mechanism=noisy(digest, noise), sampling=turns(q, b, n)), mode="charge"
    )
    assert answer.status_code == 201, answer.text
    assert guaranteed(api, delta=1e-5)["epsilon"] == pytest.approx(epsilon, rel=3e-4)
    assert sound(engine) == []


def test_turns_need_as_many_groups_as_bands(api: httpx.Client) -> None:
    begin(api)
    digest = keep(api, kind="toeplitz", coefficients=[1.0, 0.5, 0.25])
    step = event(0, 8, mechanism=noisy(digest), sampling=turns(0.1, 2, 8))
    refused(append(api, step), 422, "invalid-request", "at least 3 groups")
    assert append(api, step | {"sampling": turns(0.1, 3, 8)}).status_code == 201


def test_noise_that_falls_in_turns_is_refused_ahead_and_has_no_bound(api: httpx.Client) -> None:
    begin(api)
    digest = keep(api, kind="identity")
    step = event(0, 4, mechanism=noisy(digest, 2.0), sampling=turns(0.1, 2, 8))
    append(api, step, mode="charge")
    less = step | {"first_step": 4, "mechanism": noisy(digest, 1.0)}
    refused(append(api, less, mode="charge"), 422, "unsupported-event", "fell")
    append(api, less)
    assert guaranteed(api)["epsilon"] is None


# Relations


@pytest.mark.parametrize(
    ("relation", "placement", "factor"),
    [
        ("replace_special", "by_slot", 1), ("replace_special", "by_record", 1),
        ("replace_one", "by_slot", 2), ("replace_one", "by_record", 2),
        ("add_or_remove_one", "by_record", 1), ("add_or_remove_one", "by_slot", None),
    ],
)  # fmt: skip
def test_relations(api: httpx.Client, relation: str, placement: str, factor: int | None) -> None:
    begin(api, neighboring_relation=relation)
    digest = toeplitz(api)
    answer = append(api, rows(0, 64, digest, noise=8.0, placement=placement), mode="charge")
    if factor is None:
        refused(answer, 422, "unsupported-event", "by_slot")
        return
    assert answer.status_code == 201
    begun = guaranteed(api)["epsilon"]
    plan: Json = {
        "neighboring_relation": "replace_special", "delta": 1e-6, "accept": ACCEPT,
        "events": [{"steps": 64, "mechanism": noisy(digest, 8.0 / factor),
                    "sampling": separated(placement=placement)}],
    }  # fmt: skip
    assert begun == pytest.approx(api.post("/v1/plan", json=plan).json()["epsilon"], rel=1e-12)
