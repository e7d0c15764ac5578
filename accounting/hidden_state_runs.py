"""Runs that hide iterates: what they planned and declared, and which of them a bound covers."""

from dataclasses import dataclass
from typing import Final

from accounting.bounds.event_bounds import (
    ADD_OR_REMOVE_ONE,
    REPLACE_ONE,
    REPLACE_SPECIAL,
    NoBoundError,
    sensitivity_of,
)
from accounting.events import (
    Cyclic,
    FixedSize,
    Full,
    Gaussian,
    NeighboringRelation,
    Poisson,
    Reshuffle,
    Sampling,
    Shuffle,
    Span,
)
from accounting.last_iterate.declared import DataOrder, Declared
from accounting.last_iterate.stretches import Stretch, stretches

PLACES_MAX: Final = 10**6  # of a shuffled pass, whose places are averaged
PASSES_MAX: Final = 10**5  # in fresh orders, each told from the others
SHOWN_MAX: Final = 3 * 10**4  # iterates, each of which ends a segment of its own length

_REASON_RELATION: Final = (
    "Under add_or_remove_one no bound for hidden iterates is proved. Use replace_special or "
    "replace_one."
)
_REASON_MECHANISM: Final = "Only a run whose every step adds Gaussian noise hides its iterates."
_REASON_SAMPLINGS: Final = "A run that hides its iterates has one sampling throughout."
_REASON_ORDER: Final = "data_order says something else than the plan's sampling."
_REASON_SIZE: Final = "A bound for hidden iterates needs the dataset's size here."
_REASON_FIXED_SIZE: Final = "Batches of fixed size hide iterates under replace_one only."
_REASON_POISSON: Final = "Poisson batches hide iterates under replace_special only."
_REASON_NO_PASSES: Final = "every_pass is for cyclic and shuffled batches: others have no passes."
_REASON_SHOWN: Final = (
    "An iterate was shown in mid-run: of batches drawn afresh no bound is proved then."
)
_REASON_TOO_MANY: Final = f"More than {SHOWN_MAX} iterates were shown."
_REASON_PASSES: Final = f"A run in fresh orders has at most {PASSES_MAX} passes here."
_REASON_PLACES: Final = f"A shuffled pass has at most {PLACES_MAX} steps here."


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenRun:
    """A run that was planned, and which of its iterates were shown beside the last."""

    spans: tuple[Span, ...]  # at least one
    declared: Declared
    dataset_size: int | None
    every_pass: bool = False  # whether the iterate after each pass is shown
    releases: tuple[int, ...] = ()  # steps after which an iterate was shown

    @property
    def sampling(self) -> Sampling:
        """How records came into batches, throughout."""
        return self.spans[0].event.sampling

    @property
    def steps(self) -> int:
        """How many steps there are."""
        return sum(span.steps for span in self.spans)

    @property
    def steps_per_pass(self) -> int:
        """Steps from one use of a record to the next; 1 where each step may use it."""
        sampling = self.sampling
        return sampling.steps_per_pass if isinstance(sampling, Cyclic | Shuffle) else 1

    @property
    def passes(self) -> int:
        """How many passes are begun."""
        return -(-self.steps // self.steps_per_pass)

    def ends(self) -> list[int]:
        """After how many steps iterates are shown; they rise, and the last is the run's end."""
        ends = {step + 1 for step in self.releases} | {self.steps}
        if self.every_pass:
            ends |= set(range(self.steps_per_pass, self.steps, self.steps_per_pass))
        return sorted(ends)

    def batch_sizes(self, relation: NeighboringRelation) -> tuple[int, int]:
        """The least and the most records in a batch that have a loss.

        Under replace_special a dataset may hold any number of null records, which have none.
        """
        least, most = self._counts()
        return (0 if relation is REPLACE_SPECIAL else least), most

    def _counts(self) -> tuple[int, int]:
        sampling, size = self.sampling, self.dataset_size
        match sampling:
            case FixedSize():
                return sampling.batch_size, sampling.batch_size
            case Cyclic() | Shuffle() if size is None:
                return 0, sampling.batch_size
            case Cyclic() | Shuffle():
                left = (size or 0) - (sampling.steps_per_pass - 1) * sampling.batch_size
                return max(0, min(sampling.batch_size, left)), sampling.batch_size
            case _:
                return (size or 0) if isinstance(sampling, Full) else 0, size or 0

    def stretches(self, relation: NeighboringRelation) -> list[Stretch]:
        """The steps in units of the iterate."""
        return stretches(
            self.spans,
            self.declared,
            reach=sensitivity_of(relation),
            batch_sizes=self.batch_sizes(relation),
        )


def require_bound(run: HiddenRun, relation: NeighboringRelation) -> None:
    """Refuse what no bound for hidden iterates covers.

    Raises:
        NoBoundError: the text says why.
    """
    sampling = run.sampling
    in_order = isinstance(sampling, Cyclic | Shuffle)
    shown = len(run.releases) + (run.passes if run.every_pass else 0)
    reasons = {
        _REASON_RELATION: relation is ADD_OR_REMOVE_ONE,
        _REASON_MECHANISM: not all(isinstance(s.event.mechanism, Gaussian) for s in run.spans),
        _REASON_SAMPLINGS: any(span.event.sampling != sampling for span in run.spans),
        _REASON_ORDER: run.declared.data_order is not order_of(sampling),
        _REASON_SIZE: run.dataset_size is None and not isinstance(sampling, Cyclic | FixedSize),
        _REASON_FIXED_SIZE: isinstance(sampling, FixedSize) and relation is not REPLACE_ONE,
        _REASON_POISSON: isinstance(sampling, Poisson) and relation is not REPLACE_SPECIAL,
        _REASON_NO_PASSES: run.every_pass and not in_order,
        _REASON_TOO_MANY: shown > SHOWN_MAX,
        _REASON_SHOWN: isinstance(sampling, FixedSize | Poisson) and _shows_midway(run),
        _REASON_PASSES: _fresh_orders(sampling) and run.passes > PASSES_MAX,
        _REASON_PLACES: isinstance(sampling, Shuffle) and run.steps_per_pass > PLACES_MAX,
    }
    for reason, holds in reasons.items():
        if holds:
            raise NoBoundError(reason)


def _fresh_orders(sampling: Sampling) -> bool:
    return isinstance(sampling, Shuffle) and sampling.reshuffle is Reshuffle.EACH_PASS


def _shows_midway(run: HiddenRun) -> bool:
    return any(step + 1 < run.steps for step in run.releases)


def order_of(sampling: Sampling) -> DataOrder | None:
    """What data_order must say of a sampling; None where no bound for hidden iterates is known."""
    match sampling:
        case Full():
            return DataOrder.FULL
        case Cyclic():
            return DataOrder.CYCLIC
        case Shuffle(reshuffle=Reshuffle.ONCE):
            return DataOrder.SHUFFLE_ONCE
        case Shuffle():
            return DataOrder.SHUFFLE_EACH_PASS
        case FixedSize():
            return DataOrder.FIXED_SIZE
        case Poisson():
            return DataOrder.POISSON
        case _:
            return None
