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

from accounting.balances import noise_in_pass
from accounting.events import Event, Sampling
from service import excess
from service.documents import event_of
from service.excess import Corrected
from service.tables import distinct_events, run_balances
from service.tallies import NOTHING, Change, Counts, by_pass, merged, negative

_PASSES: Final = (
    select(distinct_events.c.content, run_balances.c.passes)
    .join(distinct_events, distinct_events.c.id == run_balances.c.event_id)
    .where(run_balances.c.run_id == bindparam("run"), distinct_events.c.by_pass)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """A run's passes, and how many of its corrections may have shifted those of each sampling."""

    corrections: Mapping[Sampling, int] = field(default_factory=dict)
    passes: Change = field(default_factory=dict)  # as recorded

    def after(self, recorded: Change) -> "Shift":
        """The same once more is recorded."""
        passes = {event: counts for event, counts in recorded.items() if by_pass(event)}
        return replace(self, passes=merged([self.passes, passes])) if passes else self

    def added(self) -> Change:
        """What is counted besides the recorded passes.

        For each correction one pass more; and each recorded one that is not of the loader's
        greatest noise once more, since its steps may lie in two.
        """
        more: dict[Event, Counts] = {}
        for sampling, count in self.corrections.items():
            counted = [
                event
                for event, counts in self.passes.items()
                if event.sampling == sampling and counts.passes
            ]
            for event in counted:
                more[event] = Counts(passes=count * self.passes[event].passes)
            if counted:
                more[max(counted, key=_noise)] = Counts(passes=count)
        return more

    def since(self, before: "Shift") -> Change:
        """What is added more than before."""
        return merged([self.added(), negative(before.added())])

    def more(self, recorded: Change) -> Change:
        """What is added more once something is recorded."""
        return self.after(recorded).since(self) if self.corrections else NOTHING


NO_SHIFT: Final = Shift()


def _noise(event: Event) -> tuple[float, str]:
    return noise_in_pass(event.mechanism), repr(event)


def shift(corrected: Iterable[Corrected], passes: Change) -> Shift:
    """The shift of a run, from what was corrected in it and the passes that it has recorded."""
    found = {
        (one.correction, event.sampling)
        for one in corrected
        if one.recorded.sampling != one.really.sampling
        for event in (one.recorded, one.really)
        if by_pass(event)
    }
    return Shift(corrections=Counter(sampling for _, sampling in found), passes=passes)


def of_run(connection: Connection, run: int, *, dataset_id: int, dataset_size: int) -> Shift:
    """The shift of a run."""
    corrected = excess.of_run(connection, run, dataset_id=dataset_id, dataset_size=dataset_size)
    return of_corrected(connection, run, corrected, dataset_size)


def of_corrected(
    connection: Connection, run: int, corrected: Iterable[Corrected], dataset_size: int
) -> Shift:
    """The shift of a run, given what was corrected in it."""
    rows = connection.execute(_PASSES, {"run": run})
    passes = {event_of(row.content, dataset_size): Counts(passes=row.passes) for row in rows}
    return shift(corrected, passes)
