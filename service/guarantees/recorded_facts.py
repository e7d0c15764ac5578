"""What a run or a dataset did: now, as of a sequence, on a branch's path, and as corrected."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, exists, func, select

from accounting.event_counts import EventCounts
from accounting.events import Event, NeighboringRelation
from service.errors import InvalidRequestError, NotFoundError
from service.guarantees.event_counts import (
    DESCENDANTS,
    RecordedCounts,
    count_reserved_anew,
    dataset_counts,
    run_counts,
    seen_by_ancestor,
    total,
    without_starts,
)
from service.guarantees.replay import (
    CORRECTIONS_OF_DATASET,
    CORRECTIONS_OF_RUN,
    LATEST,
    OF_BRANCH,
    OF_DATASET,
    Corrections,
    Fold,
    RecordedPart,
    by_branch,
    correction_count,
    fold_entries,
    parts_of,
    read_entries,
    require_few,
    stream_rows,
)
from service.ledger.budgets.lineage import rows_of
from service.ledger.budgets.pass_positions import taken_in_dataset, taken_in_run
from service.ledger.lookups import branches_of, dataset_of
from service.schemas.event_codec import Taken
from service.storage.tables import branches, corrections, entries, runs
from service.storage.versioned_cache import VersionedCache

_NEXT_MOMENT: Final = select(entries.c.recorded_at).where(
    entries.c.dataset_id == bindparam("dataset"), entries.c.sequence == bindparam("after") + 1
)
_REACHED: Final = select(func.max(entries.c.sequence)).where(
    entries.c.dataset_id == bindparam("dataset"), entries.c.recorded_at <= bindparam("moment")
)
REASON_NO_ORIGIN: Final = "was opened before the ledger kept where branches begin; ask without it"
_KNOWN_MAX: Final = 1000  # corrected runs that are kept; some kilobytes each
_known: VersionedCache[RecordedCounts] = VersionedCache(_KNOWN_MAX)
_CORRECTED_RUNS: Final = select(runs).where(
    runs.c.dataset_id.in_(bindparam("datasets", expanding=True)),
    exists().where(corrections.c.run_id == runs.c.id),
)
_BRANCHES: Final = select(
    branches.c.id,
    branches.c.name,
    branches.c.from_branch_id,
    branches.c.from_step,
    branches.c.next_step,
).where(branches.c.run_id == bindparam("run"))


def refold_run(connection: Connection, run: Row[Any], dataset_size: int) -> EventCounts:
    """The run's counts from its entries alone; the stored one is a cache of this."""
    fold = Fold(dataset_size, taken_in_run(connection, run.id))
    for row in read_entries(connection, run):
        fold.add_entry(row)
    return fold.counts()


def run_facts(
    connection: Connection,
    run: Row[Any],
    dataset: Row[Any],
    *,
    branch: str | None = None,
    until: int | None = None,
    known: int = LATEST,
) -> RecordedCounts:
    """What a run did.

    Args:
        connection: a snapshot.
        run: the run's row.
        dataset: its dataset's row.
        branch: the name of the branch whose path to the root alone counts; None for all.
        until: the last sequence that counts; None for all.
        known: the last sequence at which a correction was known.

    Raises:
        NotFoundError: the run has no such branch.
        TooExpensiveError: more entries would have to be read than one question may read.
    """
    rows = connection.execute(CORRECTIONS_OF_RUN, {"run": run.id, "known": known}).all()
    if branch is None and until is None and not rows:
        counts = run_counts(connection, run.id, dataset.dataset_size)
        return RecordedCounts(recorded=counts, corrected=None, corrections=0)
    found, taken = by_branch(rows), taken_in_run(connection, run.id)
    last = LATEST if until is None else until
    if branch is not None:
        path = _path(connection, run, branch)
        along = {number for number, _ in path}
        followed = [one for one in taken if one.by in along]  # none of those that leave the path
        parts = _parts_on(connection, path, last)
        facts = fold_entries(parts, found, dataset.dataset_size, followed)
        _require_whole(facts, path, last)
        return facts
    if until is not None:
        parts = parts_of(read_entries(connection, run, until=last))
        return fold_entries(parts, found, dataset.dataset_size, taken)
    counts = run_counts(connection, run.id, dataset.dataset_size)
    changed = _corrected_branches(connection, found, dataset.dataset_size, taken)
    corrected = _replace_corrected(counts, [changed])
    return RecordedCounts(recorded=counts, corrected=corrected, corrections=changed.corrections)


def facts_of_corrected_runs(
    connection: Connection, family: Iterable[int]
) -> Iterator[tuple[Row[Any], RecordedCounts]]:
    """Read each corrected run of some datasets, and what it did; anew only where that changed.

    Raises:
        TooExpensiveError: more entries of a run would have to be read than one question may read.
    """
    for row in connection.execute(_CORRECTED_RUNS, {"datasets": list(family)}).all():
        steps = [one.next_step - one.from_step for one in branches_of(connection, row)]
        version = (*steps, correction_count(connection, row))
        # The time keeps apart the runs of two databases that have the same number.
        yield (
            row,
            _known.compute((row.id, row.created_at), version, partial(_facts, connection, row)),
        )


def _facts(connection: Connection, run: Row[Any]) -> RecordedCounts:
    return run_facts(connection, run, dataset_of(connection, run))


def dataset_facts(
    connection: Connection,
    dataset: Row[Any],
    *,
    until: int | None = None,
    known: int = LATEST,
    reserved: bool = False,
) -> RecordedCounts:
    """What all runs of a dataset did, and of all datasets that were made from it.

    Args:
        connection: a snapshot.
        dataset: the dataset's row.
        until: the last sequence that counts; None for all. Of the other datasets that is what was
            recorded by the time of the next entry.
        known: the last sequence at which a correction was known.
        reserved: whether what is reserved counts, too; of the present alone.

    Raises:
        TooExpensiveError: more entries would have to be read than one question may read.
    """
    family = _family(connection, dataset, until, known)
    if until is not None:
        require_few(sum(min(one.until, one.head) for one in family))  # sequences have no gaps
        return _together([one.seen(_member_facts(connection, one)) for one in family], family)
    counts = dataset_counts(connection, dataset, reserved=reserved)
    changed = [
        member.seen(_corrected_branches(connection, member.found, member.dataset_size, taken))
        for member in family
        if member.found
        for taken in [taken_in_dataset(connection, member.id)]
    ]
    corrected = None
    if changed and not reserved:
        corrected = _replace_corrected(counts, changed)
    elif changed:
        ran = _replace_corrected(dataset_counts(connection, dataset), changed)
        ahead = [
            one.view(count_reserved_anew(connection, one.id, one.dataset_size)) for one in family
        ]
        corrected = without_starts(total([ran, *ahead]))
    count = sum(one.corrections for one in changed)
    inherited = len(family) > 1
    return RecordedCounts(
        recorded=counts, corrected=corrected, corrections=count, inherited=inherited
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    """A dataset whose entries count, and how the records that are asked about see them."""

    id: int
    dataset_size: int
    head: int
    until: int
    found: Corrections
    view: Callable[[EventCounts], EventCounts]

    def seen(self, facts: RecordedCounts) -> RecordedCounts:
        """The facts as those records see them."""
        corrected = None if facts.corrected is None else self.view(facts.corrected)
        return replace(facts, recorded=self.view(facts.recorded), corrected=corrected)


def _family(
    connection: Connection, dataset: Row[Any], until: int | None, known: int
) -> list[_Member]:
    """The dataset, and all that were made from it."""
    relation = NeighboringRelation(dataset.neighboring_relation)

    def member(
        row: Row[Any], last: int, aware: int, view: Callable[[EventCounts], EventCounts]
    ) -> _Member:
        values = {"dataset": row.id, "known": aware}
        found = by_branch(connection.execute(CORRECTIONS_OF_DATASET, values))
        return _Member(
            id=row.id,
            dataset_size=row.dataset_size,
            head=row.head_sequence,
            until=last,
            found=found,
            view=view,
        )

    last = LATEST if until is None else until
    family = [member(dataset, last, known, lambda counts: counts)]
    moment = connection.scalar(_NEXT_MOMENT, {"dataset": dataset.id, "after": last})
    below: list[Any] = list(connection.execute(DESCENDANTS, {"dataset": dataset.id}))
    for row in below:
        theirs = LATEST
        if moment is not None:
            then = {"dataset": row.id, "moment": moment}
            theirs = connection.scalar(_REACHED, then) or 0
        view = partial(seen_by_ancestor, relation=relation, rows=rows_of(row))
        family.append(member(row, theirs, LATEST if known == LATEST else theirs, view))
    return family


def _member_facts(connection: Connection, member: _Member) -> RecordedCounts:
    rows = stream_rows(connection, OF_DATASET, dataset=member.id, until=member.until)
    taken = taken_in_dataset(connection, member.id)
    return fold_entries(parts_of(rows), member.found, member.dataset_size, taken)


def _together(each: Sequence[RecordedCounts], family: Sequence[_Member]) -> RecordedCounts:
    corrections, inherited = sum(one.corrections for one in each), len(family) > 1
    plain = total(one.recorded for one in each)
    better = total(one.accounts[-1] for one in each)
    if inherited:
        plain, better = without_starts(plain), without_starts(better)
    return RecordedCounts(
        recorded=plain,
        corrected=better if corrections else None,
        corrections=corrections,
        inherited=inherited,
    )


def _parts_on(
    connection: Connection, path: Sequence[tuple[int, int]], last: int
) -> Iterator[RecordedPart]:
    """What was recorded on a path, each branch up to the step where the next one left it."""
    for branch, end in path:
        rows = stream_rows(connection, OF_BRANCH, branch=branch, end=end, until=last)
        for number, first_step, steps, content, opens in parts_of(rows):
            yield number, first_step, min(steps, end - first_step), content, opens


def _path(connection: Connection, run: Row[Any], name: str) -> list[tuple[int, int]]:
    """(branch, step before which it is followed), from the root to the branch of that name.

    Raises:
        NotFoundError: there is none of that name.
        InvalidRequestError: it is not known where it, or one before it, began.
    """
    found = {row.id: row for row in connection.execute(_BRANCHES, {"run": run.id})}
    here = next((row for row in found.values() if row.name == name), None)
    if here is None:
        raise NotFoundError("There is no such branch.")
    path, end = [], here.next_step
    while here is not None:
        path.append((here.id, end))
        end = here.from_step
        if end and here.from_branch_id is None:
            raise InvalidRequestError("query.branch", REASON_NO_ORIGIN)
        here = found.get(here.from_branch_id)
    return path[::-1]


def _require_whole(facts: RecordedCounts, path: Sequence[tuple[int, int]], last: int) -> None:
    """A path that misses steps would understate what the model cost."""
    if last == LATEST and sum(facts.recorded.steps.values()) != path[-1][1]:
        raise ArithmeticError("A branch's path does not hold each of its steps once.")


def _corrected_branches(
    connection: Connection, found: Corrections, dataset_size: int, taken: Sequence[Taken]
) -> RecordedCounts:
    """What the branches did on which corrections lie, and those that share a pass with them."""
    wanted: set[Any] = set(found)
    size = 0
    while len(wanted) > size:
        size = len(wanted)
        wanted |= {one.by for one in taken if one.of in wanted}
        wanted |= {one.of for one in taken if one.by in wanted}
    rows = chain.from_iterable(
        stream_rows(connection, OF_BRANCH, branch=branch, end=LATEST, until=LATEST)
        for branch in sorted(wanted)  # a branch before those that begin on it
    )
    return fold_entries(parts_of(rows), found, dataset_size, taken)


def _replace_corrected(counts: EventCounts, changed: Sequence[RecordedCounts]) -> EventCounts:
    """The counts with corrected parts in the place of those that were recorded.

    Raises:
        ArithmeticError: the counts does not hold those parts.
    """
    old, new = total(one.recorded for one in changed), total(one.accounts[-1] for one in changed)
    known = counts.starts or not counts.passes
    return EventCounts(
        steps=_with(counts.steps, old.steps, new.steps),
        passes=_with(counts.passes, old.passes, new.passes),
        begun=_with(counts.begun, old.begun, new.begun),
        # How often loaders began anew is not always known; nothing is taken off it then.
        starts=_with(counts.starts, old.starts, new.starts) if known else {},
    )


def _with(
    whole: Mapping[Event, int], old: Mapping[Event, int], new: Mapping[Event, int]
) -> dict[Event, int]:
    total = Counter(whole)
    total.subtract(old)
    if any(count < 0 for count in total.values()):
        raise ArithmeticError("A balance does not hold what its entries add up to.")
    total.update(new)
    return {event: count for event, count in total.items() if count}
