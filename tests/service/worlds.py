"""A ledger that processes share, what may happen to it, and what must then be so."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from sqlalchemy import Engine, select, text

from service.clock import now
from service.errors import LedgerError
from service.ledger.append.append import Append
from service.ledger.append.rdp_reading import read_reply
from service.ledger.append.unit_of_work import DatasetCache, UnitOfWork
from service.ledger.branches import create_branch
from service.ledger.datasets import create_dataset
from service.ledger.fixed_plans import certify_plan
from service.ledger.reservation_ends import GiveBack
from service.ledger.reservations import Reserve, find_reservation
from service.ledger.runs import create_run, finish_run
from service.schemas.requests import EventMessage, NewBranch, NewDataset, NewReservation, NewRun
from service.storage.engine import transaction
from service.storage.tables import (
    branches,
    datasets,
    distinct_events,
    entries,
    reservations,
    run_balances,
    runs,
)
from tests.service.correlated import CORRELATED, ROWS
from tests.service.samples import BUDGET, FULL, POISSON, WRITER, Json, dataset, run

PAST = "2020-01-01 00:00:00.000000"
QUIET: Json = {"kind": "gaussian", "noise_multiplier": 20.0}
LOUD: Json = {"kind": "gaussian", "noise_multiplier": 10.0}
CYCLIC: Json = {"kind": "cyclic", "batch_size": 20000, "steps_per_pass": 3}  # three steps a pass
SHUFFLE: Json = {
    "kind": "shuffle", "batch_size": 15000, "reshuffle": "each_pass", "steps_per_pass": 4,
}  # fmt: skip
POOL: list[Json] = [
    {"mechanism": QUIET, "sampling": FULL},
    {"mechanism": LOUD, "sampling": POISSON},
    {"mechanism": QUIET, "sampling": CYCLIC},
    {"mechanism": LOUD, "sampling": CYCLIC},
    {"mechanism": LOUD, "sampling": SHUFFLE},
    {"mechanism": CORRELATED, "sampling": ROWS},
    {"mechanism": CORRELATED | {"noise_multiplier": 10.0}, "sampling": ROWS},
    {"mechanism": CORRELATED, "sampling": ROWS | {"noise_restarts_each_pass": True}},
    {"mechanism": {"kind": "none"}, "sampling": FULL},
]
PLAN: list[Json] = [POOL[0] | {"steps": 4}, POOL[2] | {"steps": 5}]
RUNS = ("first", "second", "planned", "low")
RUN_OF = {"first": "data", "second": "data", "planned": "child", "low": "child"}


@dataclass
class World:
    """A database with as many processes on it as there are shelves."""

    engine: Engine
    shelves: list[DatasetCache]
    turn: int = 0
    names: dict[str, list[str]] = field(default_factory=lambda: {name: ["main"] for name in RUNS})
    leases: list[str] = field(default_factory=list)

    def together(self, requests: Sequence[Any]) -> list[Any]:
        """Several requests in one transaction, in the next process."""
        cache = self.shelves[self.turn % len(self.shelves)]
        self.turn += 1
        try:
            with transaction(self.engine) as connection:
                work = cache.open(connection, [one.place for one in requests])
                outcomes = [_outcome(work, one) for one in requests]
                work.write()
        except BaseException:
            cache.forget()
            raise
        cache.settle(one.place[0] for one in requests)
        return [read_reply(one) if "guarantee" in one else one for one in outcomes]

    def plainly(self, work: Any) -> Any:
        """In a transaction of its own, beside the books."""
        try:
            with transaction(self.engine) as connection:
                return repr(work(connection))
        except LedgerError as refusal:
            return refusal.slug

    def next_step(self, run_name: str, branch: str) -> int:
        with self.engine.connect() as connection:
            query = (
                select(branches.c.next_step)
                .join(runs, runs.c.id == branches.c.run_id)
                .where(runs.c.name == run_name, branches.c.name == branch)
            )
            return int(connection.scalar(query) or 0)


def _outcome(work: UnitOfWork, request: Any) -> Any:
    try:
        answer = dict(request.apply(work, now()))
    except LedgerError as refusal:
        return refusal.slug, str(refusal)
    return {k: v for k, v in answer.items() if k not in ("created_at", "expires_at")}


def create(engine: Engine) -> None:
    with transaction(engine) as connection:
        given: Json = {"dataset_size": 60000, "neighboring_relation": "replace_special"}
        given |= {"accept": ["published", "declared", "derived"]}
        limit: Json = {"budget": {"epsilon": 2.0, "delta": 1e-5}}
        new = NewDataset.model_validate(dataset(**given, **limit))
        create_dataset(connection, new, by="tests")
        made_from: Json = {"parents": ["data"], "rows_per_parent_record": "exactly_one"}
        new = NewDataset.model_validate(dataset("child", **given, **made_from, budget=BUDGET))
        create_dataset(connection, new, by="tests")
        for name in RUNS:
            own: Json = {"plan": PLAN, "budget": {"epsilon": 6.0, "delta": 1e-5}}
            if name != "planned":
                own = {"budget": BUDGET} if name == "low" else {}
            asked = NewRun.model_validate(run(name, dataset=RUN_OF[name], **own))
            certificate = certify_plan(connection, asked)
            create_run(connection, asked, certificate=certificate)


# ---- what may happen

NUMBER = st.integers(0, 11)
DOES_OFTEN = ("append", "append", "append", "charge", "group", "reserve", "release", "void")
OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from((*DOES_OFTEN, "expire", "branch", "finish", "again")),
        st.sampled_from(RUNS),
        NUMBER,
        NUMBER,
        st.integers(1, 8),
    ),
    min_size=4,
    max_size=25,
)
Operation = tuple[str, str, int, int, int]


def _append(world: World, op: Operation, *, back: int = 0) -> Append:
    kind, name, a, b, steps = op
    branch = world.names[name][a % len(world.names[name])]
    first = max(0, world.next_step(name, branch) - back)
    sizes = [steps] if b % 3 else [steps, 1 + b % 4]
    messages = []
    for index, size in enumerate(sizes):
        content = POOL[(a + b + index) % len(POOL)]
        body = {"first_step": first, "steps": size} | content
        messages.append(EventMessage.model_validate(body))
        first += size
    mode = "charge" if kind == "charge" else "record"
    return Append(run_name=name, branch_name=branch, mode=mode, events=messages)


def _followed(world: World, op: Operation) -> Append:
    """What the plan has next."""
    first = world.next_step("planned", "main")
    ends, spans = [4, 9], PLAN
    index = next((i for i, end in enumerate(ends) if first < end), len(ends) - 1)
    size = max(1, min(op[4], ends[index] - first))
    body = {"first_step": first} | spans[index] | {"steps": size}
    events = [EventMessage.model_validate(body)]
    return Append(run_name="planned", branch_name="main", mode="charge", events=events)


def _reserve(world: World, op: Operation) -> Reserve:
    _, name, a, b, steps = op
    world.leases.append(f"lease-{len(world.leases)}")
    body = {"name": world.leases[-1], "branch": world.names[name][a % len(world.names[name])]}
    first, *more = [
        {"steps": steps, **POOL[(b + number) % (len(POOL) - 1)]} for number in range(1 + a % 3)
    ]
    ahead = {"events": [first, *more]} if more or steps % 2 else {"event": first}
    asked = body | ahead | {"ttl_seconds": 9999}
    return Reserve(run_name=name, new=NewReservation.model_validate(asked))


def _give_back(world: World, op: Operation) -> GiveBack | None:
    kind, _, a, b, _ = op
    with world.engine.connect() as connection:
        try:
            row, *_ = find_reservation(connection, world.leases[a % len(world.leases)])
        except (LedgerError, ZeroDivisionError):
            return None
        place = (row.run, row.branch)
        last = row.first_step + b - 2
    if kind == "void":
        return GiveBack(name=row.name, place=place, reason="lost")
    return GiveBack(name=row.name, place=place, last_step=last)


def _expire(world: World, op: Operation) -> Any:
    with transaction(world.engine) as connection:
        name = f"lease-{op[2] % max(1, len(world.leases))}"
        change = text(
            "UPDATE reservations SET expires_at = :past WHERE name = :name OR name LIKE :part"
        )
        connection.execute(change, {"past": PAST, "name": name, "part": f"{name}/%"})


def _branch(world: World, op: Operation) -> Any:
    _, name, a, b, _ = op
    origin = world.names[name][a % len(world.names[name])]
    fresh = f"b{len(world.names[name])}"
    step = max(0, world.next_step(name, origin) - b)
    body = {"name": fresh, "writer": WRITER, "from_step": step, "from_branch": origin}
    new = NewBranch.model_validate(body)
    told = world.plainly(lambda connection: create_branch(connection, name, new)[1])
    if told == "True":
        world.names[name].append(fresh)
    return told


def _returned(world: World, op: Operation) -> Any:
    request = _give_back(world, op)
    return world.together([request]) if request else None


def _finish(world: World, op: Operation) -> Any:
    state = "finished" if op[2] % 2 else "aborted"
    return world.plainly(lambda found: finish_run(found, op[1], state).state)


def _appended(world: World, op: Operation) -> Any:
    kept = op[1] == "planned" and op[3] % 2
    return world.together([_followed(world, op) if kept else _append(world, op)])


def _group(world: World, op: Operation) -> Any:
    return world.together([_append(world, op), _reserve(world, op), _append(world, op)])


DOES: dict[str, Any] = {
    "append": _appended,
    "charge": _appended,
    "again": lambda world, op: world.together([_append(world, op, back=op[4])]),
    "group": _group,
    "reserve": lambda world, op: world.together([_reserve(world, op)]),
    "release": _returned,
    "void": _returned,
    "expire": _expire,
    "branch": _branch,
    "finish": _finish,
}


def do(world: World, op: Operation) -> Any:
    return DOES[op[0]](world, op)


def dump(engine: Engine) -> Json:
    """All that was recorded, but for times and versions."""
    skipped = {"recorded_at", "created_at", "expires_at", "version", "occurred_at"}
    skipped |= {"leaf", "log_frontier"}  # which hash times
    found: Json = {}
    with engine.connect() as connection:
        for table in (entries, distinct_events, run_balances, branches, reservations, datasets):
            kept = [column for column in table.c if column.name not in skipped]
            rows = connection.execute(select(*kept)).all()
            found[table.name] = sorted(json.dumps(list(row), default=str) for row in rows)
    return found
