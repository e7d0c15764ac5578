"""The log of a dataset: each fact is a leaf, whoever wrote it and however many at once."""

import httpx
import pytest
from sqlalchemy import Engine, func, select
from sqlalchemy.exc import DBAPIError

from service.ledger.log.leaves import Act, append_leaves
from service.storage.engine import snapshot, transaction
from service.storage.tables import acts, datasets, entries, installation, log_tiles
from tests.service.logs import require_logged
from tests.service.samples import (
    AUDIT,
    BUDGET,
    FULL,
    POISSON,
    RANK,
    SAMPLING,
    WRITER,
    Json,
    dataset,
    event,
    run,
    setup,
)
from tests.service.samples import append as send


def _everything(api: httpx.Client) -> None:
    """One of each thing that is a leaf."""
    setup(api, dataset_given={"budget": {"epsilon": 50.0, "delta": 1e-5}})
    child = dataset("child", parents=["data"], rows_per_parent_record="exactly_one")
    opening = [{"steps": 3, "mechanism": {"kind": "zcdp", "rho": 0.01}, "sampling": FULL}]
    api.post("/v1/datasets", json=child | {"opening_balance": opening}).raise_for_status()
    send(api, event(0, 10), event(10, 5, sampling=FULL))
    plan: list[Json] = [{"steps": 4, **_loud()}]
    planned = run("planned", plan=plan, budget=BUDGET)
    api.post("/v1/runs", json=planned).raise_for_status()
    send(api, event(15, 1))
    post = {
        "/v1/runs/run/branches": {"name": "again", "writer": WRITER, "from_step": 4},
        "/v1/runs/run/releases": {"step": 3},
        "/v1/runs/run/findings": SAMPLING,
        "/v1/runs/run/corrections": event(0, 1, sampling=FULL) | {"reason": "as the log says"},
        "/v1/runs/run/reservations": {"name": "ahead", "event": _ahead(), "ttl_seconds": 3600},
        "/v1/reservations/ahead:release": {"last_step": 17},
        "/v1/runs/planned:finish": {"state": "aborted"},
        "/v1/runs/run:finish": {"state": "finished"},
    }
    for path, body in post.items():
        api.post(path, json=body).raise_for_status()
    send(api, event(16, 1))  # reopens the run
    api.post("/v1/runs/run/findings", json=RANK).raise_for_status()
    api.post("/v1/runs/run/audits", json=AUDIT).raise_for_status()
    api.post("/v1/runs/run/audits/1:result", json={"correct": 50}).raise_for_status()
    change = {"budget": {"epsilon": 60.0, "delta": 1e-5}, "reason": "more is allowed"}
    changed = api.patch("/v1/datasets/data", json=change, headers={"If-Match": '"1"'})
    changed.raise_for_status()


def _loud() -> Json:
    return {"mechanism": {"kind": "gaussian", "noise_multiplier": 30.0}, "sampling": FULL}


def _ahead() -> Json:
    return {"steps": 5, "mechanism": _loud()["mechanism"], "sampling": POISSON}


def test_everything_that_happened_is_a_leaf_in_its_order(api: httpx.Client, engine: Engine) -> None:
    _everything(api)
    with snapshot(engine) as connection:
        require_logged(connection)
        kinds = set(connection.scalars(select(acts.c.kind)))
    assert kinds == {
        "dataset", "lineage", "settings", "run", "run_state", "branch", "release", "finding",
        "correction", "reservation", "reservation_end", "appends",
    }  # fmt: skip


def test_what_is_asked_again_adds_no_leaf(api: httpx.Client, engine: Engine) -> None:
    _everything(api)
    size = select(datasets.c.log_size).where(datasets.c.name == "data")
    with snapshot(engine) as connection:
        before = connection.scalar(size)
    send(api, event(0, 10))
    for path, body in {
        "/v1/runs": run(),
        "/v1/runs/run/branches": {"name": "again", "writer": WRITER, "from_step": 4},
        "/v1/runs/run/releases": {"step": 3},
        "/v1/runs/run/findings": SAMPLING,
        "/v1/runs/run/corrections": event(0, 1, sampling=FULL) | {"reason": "as the log says"},
        "/v1/reservations/ahead:release": {"last_step": 17},
        "/v1/runs/planned:finish": {"state": "aborted"},
    }.items():
        assert api.post(path, json=body).status_code == 200
    with snapshot(engine) as connection:
        assert connection.scalar(size) == before


def test_a_long_log_keeps_the_roots_of_its_tiles(api: httpx.Client, engine: Engine) -> None:
    setup(api)
    for begin in range(0, 900, 300):
        events = [
            event(step, 1, mechanism={"kind": "gaussian", "noise_multiplier": 1.0 + step / 1000})
            for step in range(begin, begin + 300)
        ]
        send(api, *events)
    with snapshot(engine) as connection:
        require_logged(connection)
        assert connection.scalar(select(func.count()).select_from(log_tiles)) == 3


def test_the_installation_has_a_log_of_its_own(engine: Engine) -> None:
    with transaction(engine) as connection:
        append_leaves(
            connection, None, [Act("reconciled", {}, "key"), Act("copied", {"said": '\u00e9"\\'})]
        )
        append_leaves(connection, None, [])
        append_leaves(connection, None, [Act("reconciled", {})])
    with snapshot(engine) as connection:
        assert list(connection.scalars(select(acts.c.position).order_by(acts.c.id))) == [0, 1, 2]
        assert connection.scalar(select(installation.c.log_size)) == 3


def test_an_older_version_that_still_runs_cannot_record_beside_the_log(
    api: httpx.Client, engine: Engine
) -> None:
    setup(api)
    send(api, event(0, 1))
    with snapshot(engine) as connection:
        row = connection.execute(select(entries)).one()
        older = {k: v for k, v in row._mapping.items() if k != "leaf"}
    with pytest.raises(DBAPIError, match="leaf"), transaction(engine) as connection:
        connection.execute(entries.insert().values(older | {"sequence": 2, "first_step": 1}))
