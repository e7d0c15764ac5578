"""How runs end, are interrupted, and go on: recorded acts, and no alarm where it is on purpose."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine

from service.schemas.run_states import CLOSED
from service.storage.engine import snapshot
from service.transparency.verification.ledger import verify
from tests.conftest import AS_ADMIN
from tests.service.samples import BUDGET, Json, append, event, run, setup


def end(api: httpx.Client, state: str, **given: str) -> httpx.Response:
    return api.post("/v1/runs/run:finish", json={"state": state, **given})


def state(api: httpx.Client) -> str:
    return str(api.get("/v1/runs/run").json()["state"])


def branch(api: httpx.Client, name: str = "again", from_step: int = 2) -> httpx.Response:
    body = {"name": name, "writer": f"writer-of-{name}-1", "from_step": from_step}
    return api.post("/v1/runs/run/branches", json=body)


def kinds(api: httpx.Client) -> list[str]:
    found = api.get("/v1/datasets/data/incidents").json()["incidents"]
    return [one["kind"] for one in found]


def said(api: httpx.Client) -> list[Json]:
    acts = api.get("/v1/datasets/data/acts").json()["acts"]
    return [one["content"] for one in acts if one["kind"] == "run_state"]


@pytest.mark.parametrize("ended", CLOSED)
def test_a_branch_of_a_run_that_had_ended_makes_it_active_and_is_no_incident(
    api: httpx.Client, engine: Engine, ended: str
) -> None:
    setup(api, dataset_given={"budget": BUDGET | {"orders": [8.0]}})
    append(api, event(0, 2))
    assert end(api, ended).json()["state"] == ended
    assert append(api, event(2, 1), mode="charge").json()["type"] == "/problems/run-finished"
    assert branch(api).status_code == 201
    assert state(api) == "active"
    writing = {"branch": "again", "mode": "charge"}
    assert append(api, event(2, 3), **writing).status_code == 201
    assert end(api, "finished").json()["state"] == "finished"
    assert kinds(api) == []
    assert [(one["state"], one["reopened"]) for one in said(api)] == [
        (ended, False),
        ("active", True),
        ("finished", True),
    ]
    with snapshot(engine) as connection:
        assert verify(connection).broken == []


def test_a_branch_that_is_opened_again_does_not_reopen_the_run_again(api: httpx.Client) -> None:
    setup(api)
    append(api, event(0, 2))
    end(api, "finished")
    branch(api)
    end(api, "finished")
    assert branch(api).status_code == 200
    assert state(api) == "finished"


def test_an_interrupted_run_takes_steps_and_any_end(api: httpx.Client) -> None:
    setup(api, dataset_given={"budget": BUDGET | {"orders": [8.0]}})
    append(api, event(0, 2))
    assert end(api, "interrupted").json()["state"] == "interrupted"
    assert append(api, event(2, 1), mode="charge").status_code == 201
    assert append(api, event(3, 1)).status_code == 201  # told late
    assert state(api) == "interrupted"
    branch(api)
    assert state(api) == "active"
    end(api, "interrupted")
    assert end(api, "aborted").json()["state"] == "aborted"
    assert kinds(api) == []


@pytest.mark.parametrize("ended", [*CLOSED, "reopened"])
def test_an_interruption_that_is_told_late_changes_no_end(api: httpx.Client, ended: str) -> None:
    setup(api)
    append(api, event(0, 2))
    end(api, "finished" if ended == "reopened" else ended)
    if ended == "reopened":
        append(api, event(2, 1))
    assert end(api, "interrupted").json()["state"] == ended


def test_an_older_branch_that_ends_late_does_not_close_the_run(api: httpx.Client) -> None:
    setup(api)
    append(api, event(0, 2))
    branch(api)
    assert end(api, "finished", branch="main").json()["state"] == "active"
    assert end(api, "finished", branch="again").json()["state"] == "finished"
    assert end(api, "finished", branch="nothing").status_code == 404


def test_a_run_that_went_on_after_its_end_hides_nothing_any_more(api: httpx.Client) -> None:
    setup(api)
    append(api, event(0, 2))
    end(api, "finished")
    branch(api)
    end(api, "finished")
    document = api.get("/v1/runs/run/ledger").json()
    assert (document["state"], document["reopened"]) == ("finished", True)


@pytest.mark.parametrize("ended", [*CLOSED, "interrupted", "active"])
def test_a_name_that_is_taken_says_what_has_become_of_its_run(
    api: httpx.Client, ended: str
) -> None:
    setup(api)
    append(api, event(0, 2))
    if ended != "active":
        end(api, ended)
    answer = api.post("/v1/runs", json=run(writer="another-process-1")).json()
    assert (answer["type"], answer["run_state"], answer["run_steps"]) == (
        "/problems/run-exists",
        ended,
        2,
    )
    words = ended.replace("_", " ")
    assert answer["detail"].startswith(f"Run run exists: {words}, 2 steps. ")
    assert 'resume="allow"' in answer["detail"]
    assert ("First raise the limit" in answer["detail"]) == (ended == "stopped_at_budget")


def told_of_the_name(api: httpx.Client) -> str:
    return str(api.post("/v1/runs", json=run(writer="another-process-1")).json()["detail"])


def test_a_run_that_stopped_at_a_budget_names_the_limit_until_it_is_raised(
    api: httpx.Client,
) -> None:
    setup(api, dataset_given={"budget": BUDGET | {"orders": [8.0]}})
    assert append(api, event(0, 10**6), mode="charge").status_code == 409
    end(api, "stopped_at_budget")
    assert told_of_the_name(api) == (
        "Run run exists: stopped at budget, 0 steps. First raise the limit that stopped it, "
        "epsilon 3 of dataset:data: until then its next step is refused again. Then go on with it "
        'on a new branch (in the client start_run(..., resume="allow"), or state= of a '
        "checkpoint), or choose another name."
    )
    raised = {"reason": "more", "budget": BUDGET | {"epsilon": 100.0}}
    revision = api.get("/v1/datasets/data").headers["ETag"]
    changed = api.patch("/v1/datasets/data", json=raised, headers={"If-Match": revision})
    assert changed.status_code == 200, changed.text
    assert "0 steps. Go on with it on a new branch" in told_of_the_name(api)


def test_each_of_two_runs_that_were_refused_at_once_names_the_limit(
    serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.ledger.incidents.SPARING_SECONDS", 60.0)
    with serve(new=True) as address, httpx.Client(base_url=address, headers=AS_ADMIN) as api:
        setup(api, dataset_given={"budget": BUDGET | {"orders": [8.0]}})
        assert (
            api.post("/v1/runs", json=run(name="second", writer="writer-of-second-1")).status_code
            == 201
        )
        for name in ("run", "second"):
            for _ in range(2):
                refused = append(api, event(0, 10**6), run=name, mode="charge")
                assert refused.status_code == 409
            api.post(f"/v1/runs/{name}:finish", json={"state": "stopped_at_budget"})
            again = api.post("/v1/runs", json=run(name=name, writer="another-process-1")).json()
            assert "raise the limit that stopped it, epsilon 3 of dataset:data" in again["detail"]
        assert kinds(api) == ["refusal", "refusal"]


def test_a_run_that_stopped_at_its_own_budget_does_not_go_on(api: httpx.Client) -> None:
    setup(api, budget=BUDGET)
    assert append(api, event(0, 10**6), mode="charge").status_code == 409
    end(api, "stopped_at_budget")
    detail = api.post("/v1/runs", json=run(budget=BUDGET, writer="another-process-1")).json()
    assert detail["detail"] == (
        "Run run exists: stopped at budget, 0 steps. Its own limit, epsilon 3, never changes: "
        "choose another name."
    )


def test_a_refusal_says_what_the_budget_has_left(api: httpx.Client) -> None:
    setup(api, dataset_given={"budget": BUDGET | {"orders": [8.0]}})
    append(api, event(0, 10), mode="charge")
    problem = append(api, event(10, 10**6), mode="charge").json()
    spent = api.get("/v1/datasets/data").json()["spent"]
    fits = problem["admissible_steps"]
    told = float(problem["detail"].split()[3])
    assert spent <= told <= spent + 1e-4
    assert problem["detail"] == (
        f"dataset:data has spent {told:.10g} of 3. The first {fits:,} of them would fit."
    )
    append(api, event(10, fits), mode="charge")
    problem = append(api, event(10 + fits, 1), mode="charge").json()
    assert problem["detail"].endswith(". None of them would fit.")


def test_runs_are_listed_by_every_state(api: httpx.Client) -> None:
    setup(api)
    end(api, "stopped_at_budget")
    found = api.get("/v1/runs", params={"state": "stopped_at_budget"}).json()["runs"]
    assert [one["name"] for one in found] == ["run"]
    assert api.get("/v1/runs", params={"state": "interrupted"}).json()["runs"] == []
    assert 'dpledger_runs{state="stopped_at_budget"} 1' in api.get("/metrics").text
    page = api.get("/runs", params={"state": "stopped_at_budget"}).text
    assert "stopped at budget" in page
