"""Appending: counted once, in order, whatever the batching; refused without a trace."""

import json

import httpx
import pytest

from tests.service.samples import BUDGET, POISSON, append, event, setup


def test_recorded_steps_are_answered_with_their_guarantee(api: httpx.Client) -> None:
    setup(api, delta=1e-5)
    answer = append(api, event(0, 1000))
    assert answer.status_code == 201
    body = answer.json()
    assert (body["accepted"], body["duplicates"], body["next_step"]) == (1000, 0, 1000)
    assert (body["sequence"], body["verdict"], body["budget"]) == (1, "within", None)
    assert body["guarantee"]["accountant"] == "rdp"
    assert body["guarantee"]["steps"] == 1000


def test_without_any_delta_the_guarantee_is_null(api: httpx.Client) -> None:
    setup(api)
    assert append(api, event(0, 1)).json()["guarantee"] is None
    assert api.get("/v1/runs/run/guarantee").status_code == 422


def test_the_same_span_again_is_a_duplicate_whatever_its_batching_or_mode(
    api: httpx.Client,
) -> None:
    setup(api, delta=1e-5)
    first = append(api, event(0, 10)).json()
    for again in ([event(0, 10)], [event(0, 4), event(4, 6)], [event(3, 5)]):
        for mode in ("record", "charge"):
            answer = append(api, *again, mode=mode)
            assert answer.status_code == 200
            assert answer.json()["accepted"] == 0
            assert answer.json()["duplicates"] == sum(part["steps"] for part in again)
            assert answer.json()["sequence"] == first["sequence"]
            assert answer.json()["guarantee"] == first["guarantee"]


def test_a_straddling_span_adds_only_what_is_new(api: httpx.Client) -> None:
    setup(api)
    append(api, event(0, 10))
    answer = append(api, event(5, 10))
    assert answer.status_code == 201
    assert (answer.json()["accepted"], answer.json()["duplicates"]) == (5, 5)
    assert answer.json()["next_step"] == 15


def test_a_duplicate_is_recognised_inside_one_batch(api: httpx.Client) -> None:
    setup(api)
    other = {"kind": "full"}
    batch = [event(0, 10), event(10, 10, sampling=other), event(2, 3), event(5, 5)]
    answer = append(api, *batch, event(12, 3, sampling=other))
    assert answer.status_code == 201, answer.text
    assert (answer.json()["accepted"], answer.json()["duplicates"]) == (20, 11)
    assert append(api, event(20, 1), event(19, 2)).status_code == 409


def test_a_duplicate_is_recognised_across_many_entries(api: httpx.Client) -> None:
    setup(api)
    for step in range(6):
        append(api, event(step, 1, sampling={"kind": "full"} if step == 3 else POISSON))
    assert append(api, event(0, 3)).status_code == 200
    assert append(api, event(4, 2)).status_code == 200
    for first_step, steps in ((2, 2), (3, 1), (3, 3), (0, 6)):
        assert append(api, event(first_step, steps)).status_code == 409


def test_equality_is_over_normalised_values(api: httpx.Client) -> None:
    setup(api)
    append(api, event(0, 1, sampling={"kind": "poisson", "sampling_probability": 1}))
    same = event(0, 1, sampling={"kind": "poisson", "sampling_probability": 1.0})
    assert append(api, same).status_code == 200
    append(api, event(1, 1, sampling={"kind": "poisson", "expected_batch_size": 600}))
    same = event(1, 1, sampling={"kind": "poisson", "sampling_probability": 0.01})
    assert append(api, same).status_code == 200


@pytest.mark.parametrize(
    "changed",
    [
        event(0, 10, mechanism={"kind": "gaussian", "noise_multiplier": 1.2}),
        event(9, 2, sampling={"kind": "full"}),
        event(2, 3, mechanism={"kind": "none"}),
    ],
)
def test_other_content_for_recorded_steps_is_a_conflict(
    api: httpx.Client, changed: dict[str, object]
) -> None:
    setup(api)
    append(api, event(0, 10))
    answer = append(api, changed)
    assert answer.status_code == 409
    assert answer.json()["type"] == "/problems/conflict"
    assert api.get("/v1/runs/run").json()["steps"] == 10


def test_a_gap_is_refused_and_names_the_expected_step(api: httpx.Client) -> None:
    setup(api)
    append(api, event(0, 10))
    answer = append(api, event(11, 1))
    assert answer.status_code == 409
    assert answer.json()["type"] == "/problems/out-of-sequence"
    assert answer.json()["expected_step"] == 10


def test_a_batch_with_one_bad_event_writes_nothing(api: httpx.Client) -> None:
    setup(api)
    assert append(api, event(0, 10), event(10, 5), event(20, 1)).status_code == 409
    answer = append(api, event(0, 10), event(5, 5, mechanism={"kind": "none"}))
    assert answer.status_code == 409
    assert api.get("/v1/runs/run").json()["steps"] == 0
    assert api.get("/v1/datasets/data").json()["sequence"] == 0


def test_a_charge_beyond_the_budget_is_refused_and_says_how_many_steps_fit(
    api: httpx.Client,
) -> None:
    setup(api, dataset_given={"budget": BUDGET})
    answer = append(api, event(0, 10**6), mode="charge")
    assert answer.status_code == 409
    problem = answer.json()
    assert problem["type"] == "/problems/budget-exhausted"
    assert [scope["scope"] for scope in problem["failing_scopes"]] == ["dataset:data"]
    fits = problem["admissible_steps"]
    assert 0 < fits < 10**6
    assert api.get("/v1/datasets/data").json()["spent"] == 0
    assert append(api, event(0, fits + 1), mode="charge").status_code == 409
    answer = append(api, event(0, fits), mode="charge")
    assert answer.status_code == 201
    assert answer.json()["budget"]["spent"] <= 3.0
    refused = append(api, event(fits, 1), mode="charge").json()
    assert refused["admissible_steps"] == 0
    assert refused["failing_scopes"][0]["spent"] == answer.json()["budget"]["spent"]


def test_a_charge_is_held_against_the_budgets_of_the_run_and_of_the_dataset(
    api: httpx.Client,
) -> None:
    setup(api, dataset_given={"budget": BUDGET}, budget={"epsilon": 1.0, "delta": 1e-5})
    problem = append(api, event(0, 10**6), mode="charge").json()
    scopes = [scope["scope"] for scope in problem["failing_scopes"]]
    assert scopes == ["dataset:data", "run:run"]
    fits = problem["admissible_steps"]
    problem = append(api, event(0, fits + 1), mode="charge").json()
    assert [scope["scope"] for scope in problem["failing_scopes"]] == ["run:run"]


def test_a_record_beyond_the_budget_is_kept_and_marked(api: httpx.Client) -> None:
    setup(api, dataset_given={"budget": BUDGET})
    answer = append(api, event(0, 10**6))
    assert answer.status_code == 201
    assert answer.json()["verdict"] == "overdraft"
    assert answer.json()["budget"]["remaining"] == 0
    document = api.get("/v1/runs/run/ledger").json()
    assert document["overdrafts"] == [{"branch": "main", "first_step": 0, "steps": 10**6}]
    assert append(api, event(10**6, 1), mode="charge").status_code == 409


def test_steps_that_are_sent_again_are_told_whether_a_budget_is_exceeded_now(
    api: httpx.Client,
) -> None:
    """A trainer that lost the first answer must not miss the overdraft."""
    setup(api, dataset_given={"budget": BUDGET}, budget={"epsilon": 1.0, "delta": 1e-5})
    assert append(api, event(0, 1)).json()["verdict"] == "within"
    again = append(api, event(0, 1))
    assert (again.status_code, again.json()["verdict"]) == (200, "within")
    fits = append(api, event(1, 10**6), mode="charge").json()["admissible_steps"]
    for _ in range(2):  # beyond the run's budget, and not the dataset's
        assert append(api, event(1, fits + 1)).json()["verdict"] == "overdraft"
    assert api.get("/v1/datasets/data").json()["budget"]["remaining"] > 0


def test_what_cannot_be_accounted_is_refused_for_charge_and_kept_by_record(
    api: httpx.Client,
) -> None:
    setup(api, delta=1e-5, dataset_given={"budget": BUDGET})
    none = event(0, 1, mechanism={"kind": "none"})
    shuffled = event(
        0,
        1,
        sampling={"kind": "shuffle", "batch_size": 60, "reshuffle": "once", "steps_per_pass": 1000},
    )
    for unaccountable in (none, shuffled):
        answer = append(api, unaccountable, mode="charge")
        assert answer.status_code == 422
        assert answer.json()["type"] == "/problems/unsupported-event"
    answer = append(api, none)
    assert answer.status_code == 201
    assert answer.json()["verdict"] == append(api, none).json()["verdict"] == "overdraft"
    assert answer.json()["guarantee"]["epsilon"] is None
    assert answer.json()["guarantee"]["reason"]
    assert answer.json()["budget"]["spent"] is None


def test_steps_after_the_end_are_kept_and_reopen_the_run(api: httpx.Client) -> None:
    setup(api)
    append(api, event(0, 1))
    assert api.post("/v1/runs/run:finish", json={"state": "finished"}).status_code == 200
    charged = append(api, event(1, 1), mode="charge")
    assert charged.status_code == 409
    assert charged.json()["type"] == "/problems/run-finished"
    assert api.get("/v1/runs/run").json()["state"] == "finished"
    assert append(api, event(1, 1)).status_code == 201
    assert api.get("/v1/runs/run").json()["state"] == "reopened"


def test_finishing_twice_is_the_same_and_another_way_is_a_conflict(api: httpx.Client) -> None:
    setup(api)
    for _ in range(2):
        answer = api.post("/v1/runs/run:finish", json={"state": "aborted"})
        assert (answer.status_code, answer.json()["state"]) == (200, "aborted")
    answer = api.post("/v1/runs/run:finish", json={"state": "finished"})
    assert answer.status_code == 409


def test_lines_alike_are_read_alike_and_space_is_what_json_says(api: httpx.Client) -> None:
    setup(api)
    line = json.dumps(event(0, 1)).encode()
    headers = {"content-type": "application/x-ndjson"}
    for odd in (b"\x0b", b"\x0c", b"\xc2\xa0"):
        body = line + b"\n" + odd + json.dumps(event(1, 1)).encode()
        answer = api.post("/v1/runs/run/events", content=body, headers=headers)
        assert (answer.status_code, "line 2" in answer.json()["detail"]) == (400, True)
    spaced = json.dumps(event(1, 1)).replace(":", " :\t").encode()
    answer = api.post("/v1/runs/run/events", content=line + b"\n " + spaced, headers=headers)
    assert answer.json()["accepted"] == 2


def test_bodies_alike_differ_in_their_first_step_alone(api: httpx.Client) -> None:
    setup(api)
    for first_step in range(3):
        assert append(api, event(first_step, 1)).json()["next_step"] == first_step + 1
    assert append(api, event(7, 1)).json()["expected_step"] == 3
    assert append(api, event(10**12 + 1, 1)).status_code == 422
    assert append(api, event(3, 2)).json()["accepted"] == 2
    other = event(5, 1, mechanism={"kind": "gaussian", "noise_multiplier": 2.0})
    assert append(api, other).json()["accepted"] == 1
    assert append(api, event(5, 1)).json()["type"] == "/problems/conflict"


def test_a_query_that_repeats_a_json_body_is_taken_and_one_that_contradicts_it_is_not(
    api: httpx.Client,
) -> None:
    # Generated clients send what they know of a query, even where the body says the same.
    setup(api)
    body = {"branch": "main", "mode": "charge", "events": [event(0, 1)]}
    for query, location in (
        ({"branch": "main", "mode": "record"}, "query.mode"),
        ({"branch": "other"}, "query.branch"),
    ):
        refused = api.post("/v1/runs/run/events", json=body, params=query)
        assert refused.status_code == 422
        assert refused.json()["errors"][0]["location"] == location
    agreed = {"branch": "main", "mode": "charge"}
    assert api.post("/v1/runs/run/events", json=body, params=agreed).status_code == 201


@pytest.mark.parametrize("path", ["/v1/runs//events", "/v1/runs/run/events/"])
def test_a_path_that_is_nearly_that_of_events_is_not_found(api: httpx.Client, path: str) -> None:
    setup(api)
    answer = api.post(path, json={"events": [event(0, 1)]})
    assert (answer.status_code, answer.json()["type"]) == (404, "/problems/not-found")


def test_events_are_not_read(api: httpx.Client) -> None:
    answer = api.get("/v1/runs/run/events")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
