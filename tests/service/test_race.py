"""Trainers race one budget while clients and services are killed, and the audit can say no."""

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, delete, update

from benchmarks import audit, race, trainers
from service.storage.engine import snapshot, transaction
from service.storage.tables import branches, distinct_events, entries, run_balances
from tests.conftest import without_triggers
from tests.service.samples import BUDGET, Json, dataset, event, run

SHORT = race.Campaign(
    seconds=4, processes=4, trainers=16, replicas=2, kill_seconds=0.6, steps_a_second=4
)
# Room for as many steps, where a slow disk leaves some of it in the short time.
LONGER = replace(SHORT, seconds=20, steps_a_second=0.8)
REFUSED = "refused for the budget's sake"
STEPS = 60
KINDS = Counter(trainers.kind_of("main", step) for step in range(STEPS))


def test_trainers_race_one_budget_while_clients_and_services_are_killed(
    database_url: str, tmp_path: Path
) -> None:
    report = race.hold(database_url, tmp_path, SHORT)
    assert report.faults == [], report.logged
    if not report.numbers[REFUSED]:
        report = race.hold(database_url, tmp_path, LONGER)
        assert report.faults == [], report.logged
    assert min(report.kills.values()) > 0
    numbers = report.numbers
    assert numbers["steps in the ledger"] >= numbers["steps acknowledged"] > 0
    for what in ("charges admitted", "records", REFUSED):
        assert numbers[what] > 0, what
    for what in ("reservations admitted", "  released"):
        assert numbers[what] > 0, what
    assert 0.5 < numbers["admitted, of the limit"] <= 1


CONFIG = trainers.Config(
    ports=[], key="", dataset="data", dataset_size=60000, noise_multiplier=400.0, trainers=[],
    incarnation=0, seed=0, start_at=0.0, stop_at=0.0, log="",
)  # fmt: skip


def line(what: str, **given: Any) -> Json:
    return {"what": what, "run": "run", "branch": "main"} | given


@pytest.fixture
def account(api: httpx.Client) -> audit.Account:
    """What one trainer wrote down who charged, recorded and reserved; nothing is wrong."""
    given: Json = {"neighboring_relation": "replace_special", "budget": BUDGET}
    assert api.post("/v1/datasets", json=dataset(**given)).status_code == 201
    assert api.post("/v1/runs", json=run()).status_code == 201
    lines = []
    for first in range(0, STEPS, 2):
        mode = "charge" if first < STEPS / 2 else "record"
        events = trainers.events_of("main", first, 2, CONFIG)
        answer = api.post("/v1/runs/run/events", json={"mode": mode, "events": events})
        assert answer.status_code == 201, answer.text
        span = {"first": first, "steps": 2, "mode": mode}
        lines += [line("sent", **span), line("taken", **span)]
    dear = event(STEPS, 9) | trainers.content(0, CONFIG)
    held: Json = {"name": "ahead", "ttl_seconds": 60, "event": dear}
    answer = api.post("/v1/runs/run/reservations", json=held)
    assert answer.status_code == 201, answer.text
    lines += [line("asked", name="ahead", steps=9), line("reserved", name="ahead", steps=9)]
    return audit.Account(lines)


def faults(engine: Engine, account: audit.Account, noise_multiplier: float = 400.0) -> str:
    findings = audit.Findings()
    with snapshot(engine) as connection:
        ledger = audit.Ledger.read(connection, "data", CONFIG.noise_multiplier)
        audit.check_steps(ledger, account, findings)
        audit.check_counts(connection, ledger, findings)
        audit.check_reservations(connection, ledger, account, findings)
    audit.check_limit(ledger, findings, **BUDGET, order=8.0, noise_multiplier=noise_multiplier)
    return "; ".join(findings.faults)


def test_the_audit_finds_nothing_where_nothing_is_wrong(
    engine: Engine, account: audit.Account
) -> None:
    assert min(KINDS.values()) > 0
    assert faults(engine, account) == ""


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        (line("taken", first=STEPS, steps=1, mode="record"), "acknowledged steps were lost"),
        (line("reserved", name="gone", steps=3), "an admitted reservation was lost"),
        (line("released", name="ahead", last=STEPS), "not released"),
    ],
)
def test_the_audit_misses_what_was_acknowledged(
    engine: Engine, account: audit.Account, said: Json, fault: str
) -> None:
    account.lines.append(said)
    assert fault in faults(engine, account)


@pytest.mark.parametrize(
    ("unsaid", "fault"),
    [("sent", "steps were invented"), ("asked", "a reservation was invented")],
)
def test_the_audit_sees_what_nobody_sent(
    engine: Engine, account: audit.Account, unsaid: str, fault: str
) -> None:
    account.lines = [said for said in account.lines if said["what"] not in (unsaid, "taken")]
    assert fault in faults(engine, account)


TAMPERED: Json = {
    "a gap": delete(entries).where(entries.c.sequence == 5),
    "altered": update(entries).where(entries.c.sequence == 5).values(
        event_id=entries.c.event_id + 1 - 2 * (entries.c.event_id % 2)
    ),
    "next_step is not the end": update(branches).values(next_step=branches.c.next_step - 1),
    "not the refold": update(run_balances).values(steps=run_balances.c.steps + 1),
    "are not the runs'": update(distinct_events).values(passes=distinct_events.c.passes + 1),
    "are left": update(distinct_events).values(reserved_steps=8),
}  # fmt: skip


@pytest.mark.parametrize("fault", TAMPERED)
def test_the_audit_sees_rows_that_were_tampered_with(
    engine: Engine, account: audit.Account, fault: str
) -> None:
    with transaction(engine) as connection, without_triggers(connection):
        connection.execute(TAMPERED[fault])
    assert fault in faults(engine, account)


def test_the_audit_sees_a_charge_that_was_admitted_beyond_the_limit(
    engine: Engine, account: audit.Account
) -> None:
    found = faults(engine, account, noise_multiplier=1.0)
    assert "the last charge was admitted at" in found
    assert "of the limit was admitted" in found


@dataclass(frozen=True)
class Entry:
    first_step: int
    steps: int
    branch_id: int = 1
    event_id: int = 2


@pytest.mark.parametrize(
    ("entries", "passes"),
    [
        ([Entry(0, 4), Entry(4, 6)], [1, 0]),
        ([Entry(0, 4), Entry(4, 7)], [1, 1]),
        ([Entry(0, 4), Entry(6, 4)], [1, 1]),  # another event was between
        ([Entry(0, 4), Entry(4, 6, branch_id=2)], [1, 1]),
        ([Entry(0, 35), Entry(35, 6)], [4, 1]),
    ],
)
def test_passes_are_counted_where_they_begin(entries: Any, passes: list[int]) -> None:
    found = audit.added(entries, {2: audit.CYCLIC})
    assert [counts[audit.CYCLIC] for counts in found] == passes


def test_the_limit_is_the_formula_of_the_filter() -> None:
    # epsilon 3 at delta 1e-5 and order 8: 3 + log(8/7) - (log 1e5 - log 8)/7, by hand.
    assert audit.limit(epsilon=3.0, delta=1e-5, order=8.0) == pytest.approx(1.7858908, abs=1e-7)
