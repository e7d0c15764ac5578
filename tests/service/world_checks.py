"""What must be so of a ledger, whatever happened to it."""

from collections import Counter, defaultdict

from sqlalchemy import Connection, select, text

from accounting.events import Span
from accounting.filters import Total
from service.guarantees import recorded_facts
from service.guarantees.event_counts import run_counts
from service.ledger.append.admission import count_reserved
from service.ledger.append.state_rows import reservation_of, run_tally, tally_of
from service.ledger.budgets.pass_positions import place_of
from service.schemas.event_codec import event_of
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
from tests.service.worlds import World


def _held(connection: Connection, *, named: bool) -> dict[int, Counter[tuple[str, str]]]:
    """(content, what) held ahead by each run, from the rows of its reservations alone."""
    found: dict[int, Counter[tuple[str, str]]] = defaultdict(Counter)
    query = (
        select(reservations, distinct_events.c.content)
        .join(distinct_events, distinct_events.c.id == reservations.c.event_id)
        .order_by(reservations.c.first_step)
    )
    leases = connection.execute(query).all()
    pass_of = dict(
        connection.execute(select(distinct_events.c.id, distinct_events.c.content)).all()
    )
    for branch in connection.execute(select(branches)).all():
        own = [reservation_of(one, 60000) for one in leases if one.branch_id == branch.id]
        spans = []
        for lease in own:
            steps = lease.end_step - max(lease.first_step, branch.next_step)
            if steps > 0 and (lease.name is not None or not named):
                spans.append(Span(event=lease.event, steps=steps))
        begun = pass_of.get(branch.pass_event_id)
        open_pass = place_of(begun, branch.pass_position, 60000)
        for one, counts in count_reserved(open_pass, spans).items():
            found[branch.run_id][repr(one), "steps"] += counts.steps
            found[branch.run_id][repr(one), "passes"] += counts.passes
            found[branch.run_id][repr(one), "begun"] += counts.begun
    return found


def _nonzero(counts: Counter[tuple[str, str]]) -> dict[tuple[str, str], int]:
    return {key: n for key, n in counts.items() if n}


def require_reserved(connection: Connection) -> None:
    """What is held ahead, by run and by dataset, is what the reservations hold."""
    every, named = _held(connection, named=False), _held(connection, named=True)
    joined = select(run_balances, distinct_events.c.content).join(
        distinct_events, distinct_events.c.id == run_balances.c.event_id
    )
    of_runs: dict[int, Counter[tuple[str, str]]] = defaultdict(Counter)
    for row in connection.execute(joined):
        what = repr(event_of(row.content, 60000))
        of_runs[row.run_id][what, "steps"] += row.reserved_steps
        of_runs[row.run_id][what, "passes"] += row.reserved_passes
        of_runs[row.run_id][what, "begun"] += row.reserved_begun
    homes = dict(connection.execute(select(runs.c.id, runs.c.dataset_id)).all())
    for one in homes:
        assert _nonzero(of_runs[one]) == _nonzero(named[one])
    for home in set(homes.values()):
        total: Counter[tuple[str, str]] = Counter()
        for one, counts in every.items():
            if homes[one] == home:
                total.update(counts)
        stored: Counter[tuple[str, str]] = Counter()
        for row in connection.execute(
            select(distinct_events).where(distinct_events.c.dataset_id == home)
        ):
            what = repr(event_of(row.content, 60000))
            stored[what, "steps"] += row.reserved_steps
            stored[what, "passes"] += row.reserved_passes
            stored[what, "begun"] += row.reserved_begun
        assert _nonzero(stored) == _nonzero(total)


def require_recorded(connection: Connection) -> None:
    """Balances are the fold of the entries; sequences and branches have no gaps."""
    for one in connection.execute(select(runs)).all():
        assert run_counts(connection, one.id, 60000) == recorded_facts.refold_run(
            connection, one, 60000
        )
    for home in connection.execute(select(datasets)).all():
        found = connection.execute(
            select(entries.c.sequence).where(entries.c.dataset_id == home.id).order_by("sequence")
        ).scalars()
        assert list(found) == list(range(1, home.head_sequence + 1))
        for name in ("steps", "passes", "begun", "starts"):
            own = select(distinct_events.c.id, distinct_events.c[name]).where(
                distinct_events.c.dataset_id == home.id
            )
            for event_id, count in connection.execute(own).all():
                parts = select(run_balances.c[name]).where(run_balances.c.event_id == event_id)
                assert sum(connection.execute(parts).scalars()) == count
    for branch in connection.execute(select(branches)).all():
        at = branch.from_step
        own_entries = select(entries).where(entries.c.branch_id == branch.id)
        for entry in connection.execute(own_entries.order_by(entries.c.first_step)).all():
            assert entry.first_step == at
            at += entry.steps
        assert at == branch.next_step


def _totals(connection: Connection) -> list[tuple[Total, Total] | None]:
    """Every budget's sums: of the datasets, and of the runs that have their own."""
    found: list[tuple[Total, Total] | None] = []
    homes = {one.id: one for one in connection.execute(select(datasets).order_by("id")).all()}
    for home in homes.values():
        sums = tally_of(connection, home).sums()
        found.append((sums.spent, sums.held))
    for one in connection.execute(select(runs).order_by("id")).all():
        accumulator = run_tally(connection, homes[one.dataset_id], one)
        found.append((accumulator.sums().spent, accumulator.sums().held) if accumulator else None)
    return found


def require_totals(world: World) -> None:
    """What is stored is what is folded anew, and what the books hold in memory."""
    with transaction(world.engine) as connection:
        stored = _totals(connection)
        for cache in world.shelves:
            for home in connection.execute(select(datasets).order_by("id")).all():
                cache.lock(connection, {home.id})
                sums = cache.state(home.id).accumulator.sums()
                assert (sums.spent, sums.held) == stored[home.id - _first(connection)]
        connection.execute(text("UPDATE datasets SET totals = NULL"))
        connection.execute(text("UPDATE runs SET totals = NULL"))
        assert _totals(connection) == stored
        connection.rollback()


def _first(connection: Connection) -> int:
    return int(connection.execute(select(datasets.c.id).order_by("id")).scalars().first() or 0)
