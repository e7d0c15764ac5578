"""What a declared sampling says about the size of the next batch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from operator import index
from typing import Any, Final, Protocol, Self

from dpledger_client.sampling_check import binomial

RECORDS_MAX: Final = 10**12  # the service's limit
PROBABILITY_MIN: Final = 1e-12  # the service's limit


@dataclass(frozen=True, slots=True)
class Law:
    """The law of one size: binomial, with everything from `cap` up moved to `cap`."""

    trials: int  # records, >= 0
    probability: float  # in (0, 1]; at 1 the size is certain
    cap: int  # <= trials
    log_at_cap: float  # log Pr[binomial >= cap], an upper bound
    mean: float  # of the binomial
    sd: float  # of the binomial; 0 if and only if the size is certain

    @classmethod
    def binomial(cls, trials: int, probability: float) -> Self:
        """No cap but the number of records."""
        return cls._of(trials, probability, trials, trials * math.log(probability))

    @classmethod
    def capped(cls, trials: int, probability: float, cap: int) -> Self:
        """Sizes above the cap, which is below `trials`, are cut down to it."""
        _, upper = binomial.log_tail(cap, trials=trials, probability=probability)
        return cls._of(trials, probability, cap, upper)

    @classmethod
    def certain(cls, size: int) -> Self:
        """One size only."""
        return cls.binomial(size, 1.0)

    @classmethod
    def _of(cls, trials: int, probability: float, cap: int, log_at_cap: float) -> Self:
        mean = trials * probability
        sd = math.sqrt(mean * (1.0 - probability))
        return cls(trials, probability, cap, log_at_cap, mean, sd)

    def log_mass(self, size: int) -> float:
        """The log of the chance of a size, >= 0; -inf for an impossible one."""
        if size >= self.cap:
            return self.log_at_cap if size == self.cap else -math.inf
        return binomial.log_mass(size, trials=self.trials, probability=self.probability)


class Scheme(Protocol):
    """A sampling, one pass after another, each like the first."""

    @property
    def steps_per_pass(self) -> int:
        """Steps, >= 1."""
        ...

    def law(self, step: int, before: int) -> Law:
        """The law of a size, given the past.

        Args:
            step: of the pass, from 0.
            before: the sum of the sizes of the pass so far.
        """
        ...


@dataclass(frozen=True, slots=True)
class Steady:
    """Every size has the same law, whatever came before."""

    same: Law
    steps_per_pass: int = 1

    def law(self, step: int, before: int) -> Law:
        """The same one."""
        return self.same


@dataclass(frozen=True, slots=True)
class Cut:
    """The dataset in some order, cut into batches; a pass may leave out the end."""

    dataset_size: int
    batch_size: int
    steps_per_pass: int

    def law(self, step: int, before: int) -> Law:
        """A full batch, or what is left."""
        return Law.certain(min(self.batch_size, self.dataset_size - step * self.batch_size))


@dataclass(frozen=True, slots=True)
class Bins:
    """Each record lands in one step of the pass."""

    dataset_size: int
    steps_per_pass: int

    def law(self, step: int, before: int) -> Law:
        """Every record that is left lands in any step that is left, with equal chances."""
        return Law.binomial(self.dataset_size - before, 1.0 / (self.steps_per_pass - step))


@dataclass(frozen=True, slots=True)
class Allocation:
    """Each record joins exactly `participations` steps of the pass.

    The law of a size given those before it is no product formula: a record is likelier to come if
    it has not come yet, and sizes do not say who came. Known are the law of each size alone, and
    which sequences of sizes are possible at all.
    """

    dataset_size: int
    steps_per_pass: int
    participations: int  # >= 2; one participation is `Bins`

    def law(self, step: int, before: int) -> Law:
        """Of the size alone, whatever came before."""
        return Law.binomial(self.dataset_size, self.participations / self.steps_per_pass)

    def is_possible(self, step: int, before: int, size: int) -> bool:
        """Whether the steps that are left can still give every record its participations.

        By the theorem of Gale and Ryser, rows of equal sums exist exactly if no size is above the
        number of records and the sizes add up.
        """
        left = self.dataset_size * self.participations - before - size
        steps = self.steps_per_pass - step - 1
        return size <= self.dataset_size and 0 <= left <= self.dataset_size * steps


FIELDS: Final[Mapping[str, frozenset[str]]] = {
    "full": frozenset(),
    "poisson": frozenset({"sampling_probability", "expected_batch_size"}),
    "truncated_poisson": frozenset({"sampling_probability", "max_batch_size"}),
    "fixed_size": frozenset({"batch_size"}),
    "cyclic": frozenset({"batch_size", "steps_per_pass"}),
    "shuffle": frozenset({"batch_size", "reshuffle", "steps_per_pass", "left_out"}),
    "balls_and_bins": frozenset({"steps_per_pass"}),
    "random_allocation": frozenset({"steps_per_pass", "participations"}),
}


def scheme_of(sampling: Mapping[str, Any], *, dataset_size: int) -> Scheme:
    """The scheme that a sampling declares, in the wire form.

    Raises:
        ValueError: a field is missing, unknown or out of range, or the kind says nothing about
            sizes.
    """
    records = _count("dataset_size", dataset_size, RECORDS_MAX)
    kind = str(sampling.get("kind"))
    if kind not in FIELDS:
        raise ValueError(f"kind must be one of {', '.join(FIELDS)}: others do not fix the sizes.")
    if unknown := sorted(sampling.keys() - FIELDS[kind] - {"kind"}):
        raise ValueError(f"{', '.join(unknown)} must not be given with {kind}.")
    match kind:
        case "full":
            return Steady(Law.certain(records))
        case "poisson" | "truncated_poisson":
            return Steady(_poisson(sampling, records))
        case "fixed_size":
            return Steady(Law.certain(_count("batch_size", sampling.get("batch_size"), records)))
        case "cyclic" | "shuffle":
            return _cut(sampling, records)
        case _:
            return _allocation(sampling, records)


def _cut(sampling: Mapping[str, Any], records: int) -> Scheme:
    if sampling.get("reshuffle", "once") not in ("each_pass", "once"):
        raise ValueError("reshuffle must be each_pass or once.")
    batch_size = _count("batch_size", sampling.get("batch_size"), records)
    longest = -(-records // batch_size)
    if sampling.get("steps_per_pass") is None:
        raise ValueError(
            f"steps_per_pass must be given: {longest} if the last, smaller batch is used, "
            f"{records // batch_size} if it is dropped (drop_last)."
        )
    return Cut(records, batch_size, _count("steps_per_pass", sampling["steps_per_pass"], longest))


def _poisson(sampling: Mapping[str, Any], records: int) -> Law:
    q, expected = sampling.get("sampling_probability"), sampling.get("expected_batch_size")
    if expected is not None:
        if q is not None:
            raise ValueError("Give sampling_probability or expected_batch_size, not both.")
        expected = _number("expected_batch_size", expected, 1e-6, records)
        q = max(PROBABILITY_MIN, expected / records)  # as the service reads it
    q = _number("sampling_probability", q, PROBABILITY_MIN, 1)
    if sampling["kind"] == "truncated_poisson":
        cap = _count("max_batch_size", sampling.get("max_batch_size"), RECORDS_MAX)
        if cap < records:
            return Law.capped(records, q, cap)
    return Law.binomial(records, q)


def _allocation(sampling: Mapping[str, Any], records: int) -> Scheme:
    steps = _count("steps_per_pass", sampling.get("steps_per_pass"), RECORDS_MAX)
    if sampling["kind"] == "balls_and_bins":
        return Bins(records, steps)
    participations = _count("participations", sampling.get("participations"), steps)
    if participations == 1:
        return Bins(records, steps)
    return Allocation(records, steps, participations)


def _number(name: str, value: Any, least: float, most: float) -> float:
    is_number = not isinstance(value, bool) and isinstance(value, Real)
    if not (is_number and least <= value <= most):
        raise ValueError(f"{name} must be a number in [{least:g}, {most:g}].")
    return float(value)


def _count(name: str, value: Any, most: int) -> int:
    count = whole(value)
    if count is None or not 1 <= count <= most:
        raise ValueError(f"{name} must be an integer in [1, {most}].")
    return count


def whole(value: object) -> int | None:
    """An integer as an int; None for anything else, truth values among them."""
    if isinstance(value, bool):
        return None
    try:
        return index(value)  # type: ignore[arg-type]
    except TypeError:
        return None
