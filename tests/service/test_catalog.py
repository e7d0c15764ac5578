"""Datasets, runs and branches: created once, by the same request, and listed in order."""

import httpx
import pytest

from tests.service.samples import BUDGET, WRITER, Json, append, dataset, event, run, setup

OTHER = "writer-of-the-tests-2"


def slug(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["type"].removeprefix("/problems/")


def branch(name: str = "branch", **given: object) -> Json:
    return {"name": name, "writer": WRITER, "from_step": 5} | given


def open_branch(api: httpx.Client, **given: object) -> httpx.Response:
    return api.post("/v1/runs/run/branches", json=branch(**given))  # type: ignore[arg-type]


def test_a_dataset_is_answered_as_it_was_asked_for(api: httpx.Client) -> None:
    asked = dataset(budget=BUDGET, accept=["derived", "published"], privacy_unit="Patient é 病")
    created = api.post("/v1/datasets", json=asked)
    assert created.status_code == 201
    body = created.json()
    for key in ("name", "dataset_size", "neighboring_relation", "privacy_unit", "accept"):
        assert body[key] == asked[key]
    assert (body["budget"]["epsilon"], body["budget"]["delta"]) == (3.0, 1e-5)
    assert (body["spent"], body["reserved"], body["remaining"]) == (0, 0, 3.0)
    assert (body["runs"], body["sequence"]) == (0, 0)
    told = {name: body.pop(name) for name in ("would_admit", "warnings")}
    assert (len(told["would_admit"]), told["warnings"]) == (3, [])
    assert api.get("/v1/datasets/data").json() == body


def test_without_a_budget_nothing_is_said_of_one(api: httpx.Client) -> None:
    body = api.post("/v1/datasets", json=dataset()).json()
    assert {body[key] for key in ("budget", "spent", "reserved", "remaining")} == {None}
    assert body["accept"] == ["declared", "published"]


def test_the_same_request_again_is_answered_with_the_present_state(api: httpx.Client) -> None:
    asked = dataset(budget=BUDGET)
    first = api.post("/v1/datasets", json=asked).json()
    again = api.post("/v1/datasets", json=asked)
    assert (again.status_code, again.json()) == (200, first)
    assert api.post("/v1/runs", json=run(budget=BUDGET)).status_code == 201
    append(api, event(0, 10))
    again = api.post("/v1/datasets", json=asked)
    assert (again.json()["runs"], again.json()["sequence"]) == (1, 1)
    assert again.json()["spent"] > 0
    again = api.post("/v1/runs", json=run(budget=BUDGET))
    assert (again.status_code, again.json()["steps"]) == (200, 10)
    assert again.json() == api.get("/v1/runs/run").json()


def test_the_same_request_is_known_whatever_the_spelling_of_its_numbers(api: httpx.Client) -> None:
    api.post("/v1/datasets", json=dataset(budget={"epsilon": 3, "delta": 0.00001}))
    again = dataset(budget={"epsilon": 3.0, "delta": 1e-5}, accept=None)
    assert api.post("/v1/datasets", json=again).status_code == 200


@pytest.mark.parametrize(
    "change",
    [{"dataset_size": 60001}, {"neighboring_relation": "replace_one"}, {"privacy_unit": "user"},
     {"budget": BUDGET}, {"accept": ["published"]}],
)  # fmt: skip
def test_another_request_for_the_name_is_a_conflict(api: httpx.Client, change: Json) -> None:
    api.post("/v1/datasets", json=dataset())
    before = api.get("/v1/datasets/data").json()
    assert slug(api.post("/v1/datasets", json=dataset() | change)) == (409, "conflict")
    assert api.get("/v1/datasets/data").json() == before


def test_a_run_keeps_its_plan_labels_and_assumptions(api: httpx.Client) -> None:
    asked = run(
        delta=1e-6,
        release="every_step",
        assumptions={"convex": True, "smoothness": 2.5, "order": "fixed", "diameter": 3},
        labels={"team": "vision", "note": "Größe 病"},
        plan=[event(0, 5), {key: value for key, value in event(5, 5).items() if key != "steps"}
              | {"steps": 7}],
        budget={"epsilon": 1.0, "delta": 1e-6},
    )  # fmt: skip
    api.post("/v1/datasets", json=dataset())
    created = api.post("/v1/runs", json=asked)
    assert created.status_code == 201
    body = created.json()
    for key in ("name", "dataset", "delta", "release", "assumptions", "labels", "plan"):
        assert body[key] == asked[key]
    assert body["budget"]["epsilon"] == 1.0
    assert (body["state"], body["steps"], body["next_step"]) == ("active", 0, 0)
    assert [found["name"] for found in body["branches"]] == ["main"]
    assert api.get("/v1/runs/run").json() == body
    assert WRITER not in created.text


def test_a_plan_may_leave_out_where_its_events_begin(api: httpx.Client) -> None:
    planned = {key: value for key, value in event(0, 5).items() if key != "first_step"}
    setup(api, plan=[planned, planned])
    assert api.get("/v1/runs/run").json()["plan"] == [planned, planned]


def test_a_plan_that_does_not_fit_the_dataset_registers_nothing(api: httpx.Client) -> None:
    api.post("/v1/datasets", json=dataset(dataset_size=100))
    too_big = event(0, 1, sampling={"kind": "fixed_size", "batch_size": 101})
    answer = api.post("/v1/runs", json=run(plan=[event(0, 1), too_big | {"first_step": 1}]))
    assert slug(answer) == (422, "invalid-request")
    assert answer.json()["errors"][0]["location"] == "body.plan[1].sampling.batch_size"
    assert api.get("/v1/runs/run").status_code == 404


def test_a_run_belongs_to_the_writer_that_registered_it(api: httpx.Client) -> None:
    setup(api, delta=1e-5)
    assert slug(api.post("/v1/runs", json=run(delta=1e-5, writer=OTHER))) == (409, "run-exists")
    assert slug(api.post("/v1/runs", json=run(delta=1e-6, writer=OTHER))) == (409, "run-exists")
    assert slug(api.post("/v1/runs", json=run(delta=1e-6))) == (409, "conflict")
    assert slug(api.post("/v1/runs", json=run())) == (409, "conflict")
    assert api.post("/v1/runs", json=run(delta=1e-5)).status_code == 200
    assert api.get("/v1/runs/run").json()["delta"] == 1e-5


def test_a_run_cannot_move_to_another_dataset(api: httpx.Client) -> None:
    setup(api)
    api.post("/v1/datasets", json=dataset("more"))
    assert slug(api.post("/v1/runs", json=run(dataset="more"))) == (409, "conflict")
    assert api.get("/v1/datasets/more").json()["runs"] == 0


def test_nothing_is_created_by_being_mentioned(api: httpx.Client) -> None:
    assert slug(api.post("/v1/runs", json=run())) == (404, "not-found")
    assert slug(append(api, event(0, 1))) == (404, "not-found")
    assert slug(open_branch(api)) == (404, "not-found")
    assert slug(api.get("/v1/datasets/data")) == (404, "not-found")
    setup(api)
    assert slug(append(api, event(0, 1), branch="unknown")) == (404, "not-found")
    assert api.get("/v1/datasets").json()["datasets"][0]["runs"] == 1


def test_a_rewind_adds_to_what_was_spent_and_replaces_nothing(api: httpx.Client) -> None:
    setup(api, delta=1e-5)
    before = append(api, event(0, 10)).json()["guarantee"]
    opened = open_branch(api)
    assert opened.status_code == 201
    assert (opened.json()["from_step"], opened.json()["next_step"]) == (5, 5)
    answer = append(api, event(5, 5), branch="branch")
    assert (answer.status_code, answer.json()["accepted"]) == (201, 5)
    assert answer.json()["guarantee"]["steps"] == 15
    assert answer.json()["guarantee"]["epsilon"] > before["epsilon"]
    state = api.get("/v1/runs/run").json()
    assert (state["steps"], state["next_step"]) == (15, 10)
    assert [found["next_step"] for found in state["branches"]] == [10, 10]


def test_a_branch_may_not_record_what_lies_before_it(api: httpx.Client) -> None:
    setup(api)
    append(api, event(0, 10))
    open_branch(api)
    answer = append(api, event(4, 2), branch="branch")
    assert slug(answer) == (409, "out-of-sequence")
    assert answer.json()["expected_step"] == 5


def test_a_branch_begins_where_some_branch_has_been(api: httpx.Client) -> None:
    setup(api)
    answer = open_branch(api, from_step=1)
    assert (slug(answer), answer.json()["expected_step"]) == ((409, "out-of-sequence"), 0)
    append(api, event(0, 10))
    assert slug(open_branch(api, from_step=11)) == (409, "out-of-sequence")
    assert open_branch(api, from_step=10).status_code == 201
    append(api, event(10, 10), branch="branch")
    assert open_branch(api, name="deeper", from_step=20).status_code == 201
    assert open_branch(api, name="again", from_step=0).status_code == 201


def test_a_branch_belongs_to_the_writer_that_opened_it(api: httpx.Client) -> None:
    setup(api)
    append(api, event(0, 10))
    first = open_branch(api, writer=OTHER)
    assert first.status_code == 201
    again = open_branch(api, writer=OTHER)
    assert (again.status_code, again.json()) == (200, first.json())
    assert slug(open_branch(api)) == (409, "branch-exists")
    assert slug(open_branch(api, writer=OTHER, from_step=6)) == (409, "conflict")
    assert slug(open_branch(api, name="main", writer=OTHER, from_step=0)) == (409, "branch-exists")
    assert open_branch(api, name="main", from_step=0).status_code == 200


def listed(api: httpx.Client, noun: str, **query: object) -> list[list[str]]:
    """The names of every page."""
    pages, token = [], None
    while True:
        asked = query | ({} if token is None else {"page_token": token})
        body = api.get(f"/v1/{noun}", params=asked).json()  # type: ignore[arg-type]
        pages.append([found["name"] for found in body[noun]])
        token = body["next_page_token"]
        if token is None:
            return pages


def test_lists_have_pages_in_creation_order(api: httpx.Client) -> None:
    names = ["z", "a", "m", "b", "y"]
    for name in names:
        api.post("/v1/datasets", json=dataset(name))
        api.post("/v1/runs", json=run(name, dataset=name))
    for noun in ("datasets", "runs"):
        assert listed(api, noun) == [names]
        assert listed(api, noun, page_size=2) == [["z", "a"], ["m", "b"], ["y"]]
        assert listed(api, noun, page_size=5) == [names]
        assert listed(api, noun, page_size=1) == [[name] for name in names]


def test_a_list_may_be_empty(api: httpx.Client) -> None:
    assert api.get("/v1/datasets").json() == {"datasets": [], "next_page_token": None}
    empty: Json = {"runs": [], "next_page_token": None, "certified": None}
    assert api.get("/v1/runs").json() == empty


def test_runs_are_listed_by_dataset_and_state(api: httpx.Client) -> None:
    for name in ("data", "more"):
        api.post("/v1/datasets", json=dataset(name))
    for number in range(6):
        name = "data" if number % 2 else "more"
        api.post("/v1/runs", json=run(f"r{number}", dataset=name))
    for number, state in ((1, "finished"), (2, "aborted"), (3, "finished")):
        api.post(f"/v1/runs/r{number}:finish", json={"state": state})
    append(api, event(0, 1), run="r3")
    assert listed(api, "runs", dataset="data") == [["r1", "r3", "r5"]]
    assert listed(api, "runs", dataset="data", page_size=2) == [["r1", "r3"], ["r5"]]
    assert listed(api, "runs", state="active") == [["r0", "r4", "r5"]]
    assert listed(api, "runs", state="finished") == [["r1"]]
    assert listed(api, "runs", state="reopened") == [["r3"]]
    assert listed(api, "runs", state="aborted", dataset="more") == [["r2"]]
    assert listed(api, "runs", state="aborted", dataset="data") == [[]]
    answer = api.get("/v1/runs", params={"dataset": "unknown"})
    assert slug(answer) == (404, "not-found")
