"""Passes that begin elsewhere than they were counted, since corrections changed what precedes them.

A pass is followed from where its loader begins. A correction that puts steps of a loader in, or
takes some out, makes every later pass of that loader begin at another step, so that other steps
share one. docs/theory/lineage.md proves that what is added here covers them, wherever they begin.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from sqlalchemy import Connection, bindparam, select

from accounting.balances import noise_in_pass, retold
from accounting.events import Event, Sampling
from service import excess
from service.documents import event_of
from service.excess import Corrected
from service.tables import distinct_events, run_balances
from service.tallies import Change, Counts, Move, by_pass, merged, negative

_COUNTED: Final = (
    select(
        distinct_events.c.content,
        run_balances.c.steps,
        run_balances.c.passes,
        run_balances.c.begun,
    )
    .join(distinct_events, distinct_events.c.id == run_balances.c.event_id)
    .where(run_balances.c.run_id == bindparam("run"), distinct_events.c.by_pass)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """A run's passes, and how many of its corrections may have shifted those of each sampling."""

    corrections: Mapping[Sampling, int] = field(default_factory=dict)
    counted: Change = field(default_factory=dict)  # steps and passes, as recorded

    def after(self, recorded: Change) -> "Shift":
        """The same once more is recorded."""
        if not self.corrections:
            return self
        more = {event: counts for event, counts in recorded.items() if by_pass(event)}
        return replace(self, counted=merged([self.counted, more])) if more else self

    def added(self) -> Change:
        """What is counted besides the recorded passes.

        For each correction one pass more; and each recorded one that is not of the loader's
        greatest noise once more, since its steps may lie in two. At what noise any of them began is
        then not known.
        """
        more: dict[Event, Counts] = {}
        loaders: dict[Sampling, dict[Event, Counts]] = {}
        for event, counts in self.counted.items():
            if event.sampling in self.corrections:
                loaders.setdefault(event.sampling, {})[event] = counts
        for sampling, loader in loaders.items():
            count = self.corrections[sampling]
            least = [event for event, counts in loader.items() if counts.passes]
            quietest = max(least, key=_noise, default=None)
            for event, counts in loader.items():
                times = count if event == quietest else count * counts.passes
                more[event] = Counts(passes=times, begun=-counts.begun)
        return more

    def since(self, before: "Shift") -> Change:
        """What is added more than before."""
        return merged([self.added(), negative(before.added())])

    def more(self, recorded: Change) -> Change:
        """What is added more once something is recorded."""
        return self.after(recorded).since(self)


NO_SHIFT: Final = Shift()


def _noise(event: Event) -> tuple[float, str]:
    return noise_in_pass(event.mechanism), repr(event)


def shift(corrected: Iterable[Corrected], counted: Change) -> Shift:
    """The shift of a run, from what was corrected in it and what it has recorded by pass."""
    changed = [one for one in corrected if one.recorded.sampling != one.really.sampling]
    both = [(one, event) for one in changed for event in (one.recorded, one.really)]
    found = {(one.correction, event.sampling, 1) for one, event in both if by_pass(event)}
    # Of a place that is not known, steps in a row that are cut touch a pass more on each side.
    told = [(one.correction, retold(event)) for one, event in both if one.unplaced]
    found |= {
        (row, event.sampling, side) for row, event in told if by_pass(event) for side in (1, 2)
    }
    return Shift(corrections=Counter(sampling for _, sampling, _ in found), counted=counted)


def of_run(connection: Connection, run: int, *, dataset_id: int, dataset_size: int) -> Shift:
    """The shift of a run."""
    corrected = excess.of_run(connection, run, dataset_id=dataset_id, dataset_size=dataset_size)
    return _read(connection, run, corrected, dataset_size)


def of_all(
    connection: Connection, corrected: Iterable[Corrected], sizes: Mapping[int, int]
) -> Move:
    """What the shifts of all corrected runs add, given the sizes of their datasets."""
    by_run: dict[tuple[int, int], list[Corrected]] = {}
    for one in corrected:
        by_run.setdefault((one.run_id, one.dataset_id), []).append(one)
    found = [_read(connection, run, part, sizes[home]) for (run, home), part in by_run.items()]
    return Move(shifted=merged(one.added() for one in found))


def _read(
    connection: Connection, run: int, corrected: Iterable[Corrected], dataset_size: int
) -> Shift:
    rows = connection.execute(_COUNTED, {"run": run})
    counted = {
        event_of(row.content, dataset_size): Counts(
            steps=row.steps, passes=row.passes, begun=row.begun
        )
        for row in rows
        if row.steps or row.passes
    }
    return shift(corrected, counted)
