"""What is promised and what it rests on: theorems, their vocabulary, and guarantees from them."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from inspect import getdoc, signature
from typing import Final, Generic, ParamSpec, TypeVar

from accounting.events import NeighboringRelation
from accounting.work_limit import spend

P = ParamSpec("P")
R = TypeVar("R", covariant=True)
_CALL: Final = 6500  # points that even the plainest formula is taken for


class Status(StrEnum):
    """How well a theorem is established; it grades the theorem, never the arithmetic."""

    PUBLISHED = "published"  # peer-reviewed
    DERIVED = "derived"  # proved in docs/theory, not reviewed
    DECLARED = "declared"  # someone else's word
    CONDITIONAL = "conditional"  # needs declared facts nobody can check from the events
    CONJECTURE = "conjecture"
    ESTIMATE = "estimate"
    RETRACTED = "retracted"  # its authors took it back
    REFUTED = "refuted"  # false as stated, with a counterexample


# From the best to the least established; a guarantee has the status of its weakest theorem.
STATUS_ORDER: tuple[Status, ...] = tuple(Status)
# What may ever be accepted as a headline. What is not proved may not, and what is false least.
ACCEPTABLE: frozenset[Status] = frozenset(
    {Status.PUBLISHED, Status.DERIVED, Status.DECLARED, Status.CONDITIONAL}
)
DEFAULT_ACCEPT: frozenset[Status] = frozenset({Status.PUBLISHED, Status.DECLARED})


class Assumption(StrEnum):
    """What a theorem needs and no parameter shows."""

    INDEPENDENT_GAUSSIAN_NOISE = "independent_gaussian_noise"  # fresh noise, every step
    INDEPENDENT_LAPLACE_NOISE = "independent_laplace_noise"  # fresh for each step and coordinate
    INDEPENDENT_ANSWERS = "independent_answers"  # fresh randomness for each record and step
    UNIFORM_NULL_ANSWER = "uniform_null_answer"  # a null record reports each category alike
    DECLARED_GUARANTEE = (
        "declared_guarantee"  # holds under this relation at every step, whatever came before
    )
    ANSWERS_ABOVE_MIXTURES = (
        "answers_above_mixtures"  # R(y|x) >= (R(y|a) + R(y|b)) / (e^epsilon0 + 1), a other than b
    )
    POISSON_SAMPLING = "poisson_sampling"
    FIXED_SIZE_SAMPLING = "fixed_size_sampling"  # fresh uniform subsets of constant size
    TRUNCATED_POISSON_SAMPLING = (
        "truncated_poisson_sampling"  # constant probability; of a surplus a uniform subset is kept
    )
    WITH_REPLACEMENT_SAMPLING = "with_replacement_sampling"  # fresh independent uniform draws
    DATA_INDEPENDENT_WEIGHTS = "data_independent_weights"  # one record a step, drawn by weight
    FRESH_SECRET_ORDER = (  # of all records, uniform, anew for each pass, never shown
        "fresh_secret_order"  # noqa: S105
    )
    SECRET_ORDER = "secret_order"  # noqa: S105 (uniform over all records, once, never shown)
    BALLS_AND_BINS_SAMPLING = "balls_and_bins_sampling"  # each record's step of a pass is uniform
    RANDOM_ALLOCATION_SAMPLING = "random_allocation_sampling"  # each record's steps are uniform
    ONE_STEP_PER_PASS = "one_step_per_pass"  # noqa: S105
    # A record's steps of a pass are as far apart, and as few, as declared, whatever was answered.
    SEPARATED_PARTICIPATION = "separated_participation"
    CYCLIC_POISSON_SAMPLING = "cyclic_poisson_sampling"  # groups are fixed before the pass
    OTHERS_UNAFFECTED = (
        "others_unaffected"  # at most once a step; nobody else's place depends on it
    )
    BOUNDED_GRADIENTS = "bounded_gradients"  # by the loss, not by clipping, the start included
    INDEPENDENT_NOISE = "independent_noise"  # fresh, every step, of the declared law and scale
    SECRET_UNIFORM_STOP = "secret_uniform_stop"  # noqa: S105 (a step drawn once, never shown)
    SINGLE_RECORD = "single_record"  # holds for one named record, not for a data set
    PARAMETERS_FIXED_IN_ADVANCE = "parameters_fixed_in_advance"
    OTHER_BRANCHES_UNUSED = (
        "other_branches_unused"  # neither shown, nor looked at to choose this branch or its steps
    )
    # What a sweep that releases its best trial alone must keep to.
    INDEPENDENT_TRIALS = "independent_trials"  # on the same input, none reads another's answers
    CANDIDATES_DRAWN_AFRESH = "candidates_drawn_afresh"  # each trial's, from weights fixed before
    SCORE_IN_BASE = "score_in_base"  # what ranks a trial is part of its private output
    TRIAL_COUNT_SECRET = "trial_count_secret"  # noqa: S105 (nothing tells how many trials there were)
    # What a run that shows its last iterate alone must declare.
    HIDDEN_ITERATES = "hidden_iterates"  # none but the released is shown, nor a metric of it
    LOSS_CURVATURE = "loss_curvature"  # every record's loss is as smooth and as convex as declared
    CLIPPING_INACTIVE = "clipping_inactive"  # no gradient is ever above the norm bound
    GENERALIZED_LINEAR_MODEL = "generalized_linear_model"  # a clipped gradient is one, of a loss
    PROJECTION_EVERY_STEP = "projection_every_step"  # onto a convex set of the declared diameter
    FIXED_DIVISOR = "fixed_divisor"  # sums are divided by a constant
    DATA_INDEPENDENT_START = "data_independent_start"  # the first iterate says nothing of the data
    DATA_INDEPENDENT_ORDER = "data_independent_order"  # who is in which batch says nothing either
    FAIR_CANARY_COINS = (
        "fair_canary_coins"  # one a canary, independent, kept from the guesser; nothing else varies
    )
    CONSTANT_CURVATURE = "constant_curvature"  # gradients are affine; their slopes are public


class ValidFor(StrEnum):
    """Whether later steps may have been chosen after seeing earlier answers."""

    FIXED_SCHEDULE = "fixed_schedule"
    ADAPTIVE = "adaptive"


def weakest(statuses: list[Status]) -> Status:
    """The least established of the statuses; published when there is none."""
    return max(statuses, key=STATUS_ORDER.index, default=Status.PUBLISHED)


@dataclass(frozen=True, kw_only=True)
class Theorem(Generic[P, R]):
    """A pure function that is a bound, with its source, status and assumptions."""

    id: str  # stable; what a guarantee names
    source: str  # author, year, version and number
    status: Status
    relations: tuple[NeighboringRelation, ...]
    assumptions: tuple[Assumption, ...]
    function: Callable[P, R]
    counterexample: str = ""  # what is known against it; never empty where it is refuted

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Evaluate the bound."""
        spend(_CALL)
        return self.function(*args, **kwargs)

    @property
    def statement(self) -> str:
        """What is claimed, in words and formulas: the function's docstring."""
        return getdoc(self.function) or ""

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the arguments."""
        return tuple(signature(self.function).parameters)


def theorem(
    *,
    id: str,
    source: str,
    status: Status,
    relations: tuple[NeighboringRelation, ...],
    assumptions: tuple[Assumption, ...] = (),
    counterexample: str = "",
) -> Callable[[Callable[P, R]], Theorem[P, R]]:
    """Turn a function into a theorem; the docstring is its statement."""

    def state(function: Callable[P, R]) -> Theorem[P, R]:
        return Theorem(
            id=id,
            source=source,
            status=status,
            relations=relations,
            assumptions=assumptions,
            function=function,
            counterexample=counterexample,
        )

    return state


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """One way to bound a ledger's loss: an upper bound, and what it rests on."""

    epsilon: float  # nats, upper; rounding included
    delta: float
    accountant: str
    bound: str  # the theorem's id, or "composition" when several were used
    theorems: tuple[str, ...]  # ids: of the events, sorted; then of the sum and its reading
    status: Status
    assumptions: tuple[Assumption, ...]
    valid_for: ValidFor = ValidFor.FIXED_SCHEDULE
    order: float | None = None  # the Renyi order attained, where there is one
    epsilon_lower: float | None = None  # nats; some dataset loses at least this, where known


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantee:
    """The answer for a ledger: the best accepted bound, or the reason why none is finite."""

    epsilon: float | None  # nats, upper; None means no accepted finite bound
    epsilon_lower: float | None  # nats, lower; None where no lower bound is proved
    delta: float | None  # None only where it was asked for and no bound was found
    neighboring_relation: NeighboringRelation
    headline: Bound | None
    reason: str | None  # why epsilon is None
    unamplified_epsilon: float | None  # nats, upper; the same events with sampling full
    # Nats; what Poisson accounting would claim where batches were not Poisson-sampled but taken in
    # turn. It bounds nothing; None where the question does not arise.
    poisson_would_say: float | None = None
    hidden_reason: str | None = None  # why no bound for hidden iterates is the headline
    alternatives: tuple[Bound, ...] = field(default=())

    @property
    def smaller_bound(self) -> Bound | None:
        """The least alternative of another status, where it is less than half of the headline.

        What is compared is what was asked for: epsilon at the same delta, or delta at the same
        epsilon. Without a headline every finite alternative is less.
        """
        headline = self.headline
        others = [
            bound
            for bound in self.alternatives
            if headline is None or (bound.status != headline.status and _halves(bound, headline))
        ]
        return min(others, key=lambda bound: (bound.epsilon, bound.delta), default=None)


def _halves(bound: Bound, headline: Bound) -> bool:
    if bound.delta == headline.delta:
        return 2 * bound.epsilon < headline.epsilon
    return bound.epsilon == headline.epsilon and 2 * bound.delta < headline.delta


def covering(first: Guarantee, second: Guarantee) -> Guarantee:
    """A guarantee that holds whichever of two accounts of the facts is right.

    Of what bounds from above the larger is taken, bound by bound; of lower bounds the smaller.
    Where an epsilon was asked for, each account has a delta of its own: what is lost at the smaller
    one need not be lost at the larger, which is told, so that nothing bounds it from below. The
    larger bound holds for the other account by what proves the smaller one, and rests on both.
    """
    more, less = (first, second) if _rank(first) >= _rank(second) else (second, first)
    known = more.headline is not None and less.headline is not None
    lower = _least(first.epsilon_lower, second.epsilon_lower)
    headline = more.headline
    if headline is not None and less.headline is not None:
        headline = _resting_on(headline, less.headline)
    return replace(
        more,
        headline=headline,
        epsilon_lower=lower if known and _rank(less)[1] >= _rank(more)[1] else None,
        unamplified_epsilon=_most(first.unamplified_epsilon, second.unamplified_epsilon),
        alternatives=tuple(
            _both(bound, like)
            for bound in more.alternatives
            if (like := _like(bound, less)) is not None
        ),
    )


def _rank(found: Guarantee) -> tuple[float, float]:
    if found.headline is None:
        return math.inf, math.inf
    return found.headline.epsilon, found.headline.delta


def _like(bound: Bound, other: Guarantee) -> Bound | None:
    """The same accountant's best bound for the other account of the facts."""
    known = () if other.headline is None else (other.headline,)
    same = [one for one in (*known, *other.alternatives) if one.accountant == bound.accountant]
    return min(same, key=lambda one: (one.epsilon, one.delta), default=None)


def _both(first: Bound, second: Bound) -> Bound:
    smaller, larger = sorted((first, second), key=lambda one: (one.epsilon, one.delta))
    lower = _least(first.epsilon_lower, second.epsilon_lower)
    covers = _resting_on(larger, smaller)
    return replace(covers, epsilon_lower=lower if smaller.delta >= larger.delta else None)


def _resting_on(bound: Bound, other: Bound) -> Bound:
    """A bound that holds only where another one does, too."""
    adaptive = bound.valid_for is other.valid_for is ValidFor.ADAPTIVE
    return replace(
        bound,
        theorems=tuple(dict.fromkeys((*bound.theorems, *other.theorems))),
        status=weakest([bound.status, other.status]),
        assumptions=tuple(sorted({*bound.assumptions, *other.assumptions})),
        valid_for=ValidFor.ADAPTIVE if adaptive else ValidFor.FIXED_SCHEDULE,
    )


def _least(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else min(first, second)


def _most(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else max(first, second)
