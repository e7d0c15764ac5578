"""An overdraft is told when a limit is newly exceeded, and once."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import httpx
import pytest
from sqlalchemy import Connection, Engine

from service.ledger import incidents
from service.ledger.incidents import Incident, Kind
from tests.service.logs import require_logged
from tests.service.samples import WRITER, append, dataset, event, run
from tests.service.test_settings_changes import HIGHER, URL, change, limited, step, used

__all__ = ["limited", "used"]  # fixtures


@contextmanager
def untold(patch: pytest.MonkeyPatch, *kinds: Kind) -> Iterator[None]:
    """As if another version of the accounting had found the limit exceeded."""
    record = incidents.record_incidents

    def part(connection: Connection, happened: Sequence[Incident]) -> None:
        record(connection, [one for one in happened if one.kind not in kinds])

    with patch.context() as patched:
        patched.setattr(incidents, "record_incidents", part)
        yield


def kinds_told(api: httpx.Client) -> list[str]:
    """What was told, the oldest first."""
    found = api.get(f"{URL}/incidents", params={"page_size": 1000}).json()["incidents"]
    return [one["kind"] for one in found if one["kind"] in ("settings_changed", "overdraft")]


def test_a_change_that_leaves_a_limit_exceeded_is_no_further_overdraft(used: httpx.Client) -> None:
    def limit(revision: int, epsilon: float) -> bool:
        answer = change(used, revision, budget={"epsilon": epsilon, "delta": 1e-5})
        assert answer.status_code == 200, answer.text
        return bool(answer.json()["budget"]["overdrawn"])

    assert [limit(1, 0.2), limit(2, 0.25), limit(3, 0.1)] == [True, True, True]
    assert change(used, 4, frozen=True).status_code == 200
    assert change(used, 5, accept=["published", "declared", "derived"]).status_code == 200
    told = ["settings_changed", "overdraft", *["settings_changed"] * 4]
    assert kinds_told(used) == told
    report = used.get("/datasets/data/report").text
    assert "What is charged exceeded a limit" in report
    assert "times)" not in report.split("What is charged exceeded a limit")[1][:120]
    # Once it has ended, the next one is told again.
    assert not limit(6, 4.0)
    assert limit(7, 0.2)
    assert kinds_told(used) == [*told, "settings_changed", "settings_changed", "overdraft"]
    assert "(2 times that a limit was newly exceeded)" in used.get("/datasets/data/report").text


def test_steps_beyond_a_raised_limit_are_an_overdraft_that_a_change_does_not_repeat(
    used: httpx.Client,
) -> None:
    append(used, step(20, 10**6))
    assert kinds_told(used) == ["overdraft"]
    assert change(used, budget=HIGHER).json()["budget"]["overdrawn"]
    assert kinds_told(used) == ["overdraft", "settings_changed"]


def test_an_overdraft_of_which_no_incident_tells_is_told_with_the_next_change(
    used: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    with untold(monkeypatch, Kind.OVERDRAFT):
        assert change(used, budget={"epsilon": 0.2, "delta": 1e-5}).json()["budget"]["overdrawn"]
    assert change(used, 2, frozen=True).status_code == 200
    assert kinds_told(used) == ["settings_changed", "settings_changed", "overdraft"]
    assert change(used, 3, frozen=False).status_code == 200
    assert kinds_told(used)[3:] == ["settings_changed"]


def test_an_overdraft_that_a_raised_limit_ended_does_not_tell_of_the_next(
    used: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for revision, epsilon in ((1, 0.2), (2, 4.0)):
        change(used, revision, budget={"epsilon": epsilon, "delta": 1e-5})
    with untold(monkeypatch, Kind.OVERDRAFT, Kind.SETTINGS_CHANGED):
        change(used, 3, budget={"epsilon": 0.2, "delta": 1e-5})
    assert change(used, 4, frozen=True).status_code == 200
    assert kinds_told(used)[-1] == "overdraft"


def test_a_branch_that_takes_a_pass_whose_steps_were_corrected_tells_of_an_overdraft(
    api: httpx.Client, engine: Engine
) -> None:
    """In the dataset, in what that was made from, and in the run."""
    null, limit = {"neighboring_relation": "replace_special"}, {"epsilon": 1.2, "delta": 1e-5}
    child = {"parents": ["data"], "rows_per_parent_record": "exactly_one"}
    for given in (dataset("data", budget=limit), dataset("made", budget=limit) | child):
        assert api.post("/v1/datasets", json=given | null).status_code == 201
    asked = run(dataset="made", budget=limit)
    assert api.post("/v1/runs", json=asked).status_code == 201
    cyclic = {"kind": "cyclic", "batch_size": 6000, "steps_per_pass": 10}
    loud, louder = ({"kind": "gaussian", "noise_multiplier": noise} for noise in (9.0, 7.0))
    assert append(api, event(0, 4, mechanism=loud, sampling=cyclic)).status_code == 201
    wrong = {"first_step": 1, "steps": 2, "reason": "the noise was less"}
    corrected = wrong | {"mechanism": louder, "sampling": cyclic}
    assert api.post("/v1/runs/run/corrections", json=corrected).status_code == 201

    def told(name: str) -> list[tuple[str, str]]:
        found = api.get(f"/v1/datasets/{name}/incidents").json()["incidents"]
        return [(one["kind"], one["detail"]["scope"]) for one in found if "scope" in one["detail"]]

    def overdrawn(name: str) -> bool:
        return bool(api.get(f"/v1/datasets/{name}").json()["budget"]["overdrawn"])

    assert not any(map(overdrawn, ("data", "made")))
    branch = {"name": "next", "writer": WRITER, "from_step": 4, "order": "continued"}
    assert api.post("/v1/runs/run/branches", json=branch).status_code == 201
    assert all(map(overdrawn, ("data", "made")))
    own = [(kind, scope) for kind, scope in told("made") if kind == "overdraft"]
    assert own == [("overdraft", "dataset:made"), ("overdraft", "run:run")]
    assert told("data")[-1] == ("overdraft", "dataset:data")
    before = told("made"), told("data")
    more = append(api, event(4, 1, mechanism=louder, sampling=cyclic), branch="next")
    assert more.json()["verdict"] == "overdraft"
    assert (told("made"), told("data")) == before
    with engine.connect() as connection:
        require_logged(connection)
