"""Projected noisy gradient steps on one record each, of which the last iterate alone is shown.

A record moves one step, which keeps a divergence of at most A; each later step keeps at most a
share B of it. A and B are divergences of one noise, shifted: by what a record can move a step, and
by how far apart a step can leave two points of the domain. docs/theory/contraction.md has the
proof.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from accounting.events import NeighboringRelation
from accounting.guarantees import Assumption, Status, theorem
from accounting.literature.contraction.kernels import Kernel, Noise, log_mean_power, step_kernel
from accounting.rounding import UNIT_ROUNDOFF, rounded_down, rounded_up

DECLARED_MIN: Final = 1e-100  # of quantities with units: ratios of three stay doubles
DECLARED_MAX: Final = 1e100
STEPS_MAX: Final = 2**53  # whole numbers of this size are doubles

_SOURCE: Final = "Document 001 (Sordello, Bu, Dong and Su 2021), {}, after Asoodeh, Diaz and "
_SOURCE_AFTER: Final = "Calmon 2020, arXiv:2001.06546"
RELATIONS: Final = (NeighboringRelation.REPLACE_ONE, NeighboringRelation.REPLACE_SPECIAL)
DECLARED_FACTS: Final = (
    Assumption.HIDDEN_ITERATES,
    Assumption.LOSS_CURVATURE,
    Assumption.BOUNDED_GRADIENTS,
    Assumption.PROJECTION_EVERY_STEP,
    Assumption.INDEPENDENT_NOISE,
    Assumption.DATA_INDEPENDENT_START,
    Assumption.ONE_STEP_PER_PASS,
    Assumption.PARAMETERS_FIXED_IN_ADVANCE,
)
ONE_RECORD: Final = (
    *DECLARED_FACTS,
    Assumption.DATA_INDEPENDENT_ORDER,
    Assumption.SINGLE_RECORD,
)


class Lipschitz(StrEnum):
    """Which constant bounds how far a step without noise can take two points apart."""

    DOCUMENT = "document"  # sqrt(1 - 2 eta beta rho / (beta + rho))
    TIGHT = "tight"  # 1 - eta rho, never larger


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectedNoisySgd:
    """w <- Proj_K(w - eta (mean gradient of a batch + noise)); each record in one batch a pass."""

    learning_rate: float  # eta, in (0, 2 / (smoothness + convexity)]
    smoothness: float  # beta, >= 0: gradients of each record's loss are Lipschitz in w on K
    convexity: float  # rho, in [0, beta]: each record's loss is strongly convex; 0 is convex
    gradient_bound: float  # L, >= rho D / 2: no gradient on K or at the start is longer
    diameter: float  # D of the closed convex set K; infinity without projection
    dimension: int  # of w, >= 1
    clip_can_be_active: bool  # a clipped gradient is one of a convex loss in one dimension only
    noise: Noise
    noise_scale: float  # sigma, or v of Laplace noise; added to the gradient, before eta
    batch_size: int  # records in the mean gradient of a step, >= 1
    lipschitz: Lipschitz  # which constant of a step to use

    def __post_init__(self) -> None:
        """Refuse what is out of range, and facts that contradict each other."""
        for name in ("learning_rate", "gradient_bound", "noise_scale"):
            if not DECLARED_MIN <= getattr(self, name) <= DECLARED_MAX:
                raise ValueError(f"{name} lies in [{DECLARED_MIN:g}, {DECLARED_MAX:g}].")
        if not 0 <= self.convexity <= self.smoothness <= DECLARED_MAX:
            raise ValueError(f"0 <= convexity <= smoothness <= {DECLARED_MAX:g}.")
        if not (DECLARED_MIN <= self.diameter <= DECLARED_MAX or self.diameter == math.inf):
            raise ValueError(f"diameter lies in [{DECLARED_MIN:g}, {DECLARED_MAX:g}] or is inf.")
        if not (self.dimension >= 1 and 1 <= self.batch_size <= STEPS_MAX):
            raise ValueError(f"dimension >= 1, and batch_size lies in [1, {STEPS_MAX}].")
        self._require_consistent()

    def _require_consistent(self) -> None:
        if not self.learning_rate * (self.smoothness + self.convexity) <= 2:
            raise ValueError("learning_rate is at most 2 / (smoothness + convexity).")
        if self.convexity > 0 and not self.gradient_bound >= 0.5 * self.convexity * self.diameter:
            raise ValueError("gradient_bound is at least convexity * diameter / 2.")
        if self.noise is Noise.LAPLACE and self.dimension != 1:
            raise ValueError("dimension is 1 where the noise is Laplace.")
        if self.clip_can_be_active and (self.dimension != 1 or self.convexity > 0):
            raise ValueError("clip_can_be_active needs dimension 1 and convexity 0.")

    @property
    def lipschitz_constant(self) -> float:
        """M: by which factor at most a step without noise changes a distance. Upper, in (0, 1]."""
        eta, beta, rho = self.learning_rate, self.smoothness, self.convexity
        if rho == 0:
            return 1.0
        # The slack also covers a learning rate that exceeds its limit by rounding.
        if self.lipschitz is Lipschitz.TIGHT:
            return min(1.0, max(0.0, 1 - eta * rho) + 8 * UNIT_ROUNDOFF)
        square = max(0.0, 1 - 2 * eta * rho * (beta / (beta + rho))) + 16 * UNIT_ROUNDOFF
        return min(1.0, rounded_up(math.sqrt(square)))

    @property
    def record_shift(self) -> float:
        """By how many noise scales one record can move its step, 2 L / (b sigma). Upper."""
        return rounded_up(2 * self.gradient_bound / self.batch_size / self.noise_scale, ulps=3)

    @property
    def domain_shift(self) -> float:
        """How many noise scales apart two points are after a step, M D / (eta sigma). Upper."""
        reach = self.lipschitz_constant * self.diameter / self.learning_rate
        return rounded_up(reach / self.noise_scale, ulps=4)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaBound:
    """An upper bound of delta, and whom it is for."""

    log_delta: float  # natural logarithm, <= 0; minus infinity where delta is 0
    record: int | None  # the one record it holds for; None: every record of the data set

    @property
    def delta(self) -> float:
        """Delta in [0, 1]. Upper."""
        if self.log_delta == -math.inf:
            return 0.0
        return min(1.0, rounded_up(math.exp(self.log_delta), ulps=4))


def run_kernels(run: ProjectedNoisySgd, epsilon: float) -> tuple[Kernel, Kernel]:
    """What the record's own step keeps at e^epsilon, A, and each later step, B."""
    first = step_kernel(run.noise, epsilon, shift=run.record_shift)
    return first, step_kernel(run.noise, epsilon, shift=run.domain_shift)


def require_steps(steps: int, record: int | None = None) -> None:
    """Refuse counts that no run can have.

    Raises:
        ValueError: steps is not in [1, STEPS_MAX], or record not in [1, steps].
    """
    if not 1 <= steps <= STEPS_MAX:
        raise ValueError(f"steps lies in [1, {STEPS_MAX}].")
    if record is not None and not 1 <= record <= steps:
        raise ValueError("record lies in [1, steps].")


def log_product(first: Kernel, later: Kernel, times: int) -> float:
    """log(A B^k). Upper."""
    if times == 0:
        return first.log_kept
    return log_sum_up(first.log_kept, times * later.log_kept)


def log_sum_up(*terms: float) -> float:
    """The sum of logarithms, each of which may be minus infinity, rounded up; at most 0.

    The next double also covers a term that is a product, off by half a unit in its last place, if
    all terms are of one sign.
    """
    if -math.inf in terms:
        return -math.inf
    return min(0.0, math.nextafter(math.fsum(terms), math.inf))


@theorem(
    id="pnsgd-record",
    source=_SOURCE.format("Theorem 1") + _SOURCE_AFTER + ", Theorems 3 and 4",
    status=Status.CONDITIONAL,
    relations=RELATIONS,
    assumptions=ONE_RECORD,
)
def record_delta(run: ProjectedNoisySgd, *, epsilon: float, steps: int, record: int) -> DeltaBound:
    """Delta of a pass in a fixed order, for the record of one step: A B^(n-i).

    Gaussian noise: A = theta(2L/(b sigma)), B = theta(M D/(eta sigma)) with the Gaussian profile
    theta(r) = Phi(r/2 - epsilon/r) - e^epsilon Phi(-r/2 - epsilon/r). Laplace noise in one
    dimension: (1 - e^((epsilon-r)/2))_+ at the same r. Both orders of the neighbours are alike.

    Args:
        run: what was declared; e^epsilon is compared under any start that the data do not choose.
        epsilon: nats, finite, >= 0.
        steps: n, >= 1; of a whole pass.
        record: i, in [1, n], the step that uses the record, in the order of processing.

    Returns:
        The bound, for this record alone: delta is A, without amplification, for the last. Upper.

    Raises:
        ValueError: an argument is out of range.
    """
    require_steps(steps, record)
    log_delta = log_product(*run_kernels(run, epsilon), steps - record)
    return DeltaBound(log_delta=log_delta, record=record)


def log_share_up(part: int, whole: int) -> float:
    """log(part / whole) of counts, part <= whole, rounded up; at most 0."""
    return min(0.0, rounded_up(math.log(part / whole), ulps=4) + 4 * UNIT_ROUNDOFF)


@theorem(
    id="pnsgd-random-stop",
    source=_SOURCE.format("Section 1") + _SOURCE_AFTER + ", Theorem 5",
    status=Status.CONDITIONAL,
    relations=RELATIONS,
    assumptions=(
        *DECLARED_FACTS,
        Assumption.DATA_INDEPENDENT_ORDER,
        Assumption.SECRET_UNIFORM_STOP,
    ),
)
def random_stop_delta(
    run: ProjectedNoisySgd, *, epsilon: float, steps: int, record: int | None = None
) -> DeltaBound:
    """Delta of a fixed order that stops after a secret uniform number of the n steps.

    A (1 - B^(n-i+1)) / (n (1 - B)): the mean over stops at i or later of A B^(T-i), and 0 before.
    The first record is the worst, with what a shuffled pass has.

    Args:
        run: what was declared.
        epsilon: nats, finite, >= 0.
        steps: n, >= 1; the stop is uniform on 1, ..., n.
        record: i, in [1, n], the step that would use the record; None for every record at once.

    Returns:
        The bound, for this record alone or for every record. Upper.

    Raises:
        ValueError: an argument is out of range.
    """
    require_steps(steps, record)
    first, later = run_kernels(run, epsilon)
    reached = steps + 1 - (record or 1)
    mean = log_mean_power(later.log_lost, reached)
    log_delta = log_sum_up(first.log_kept, mean, log_share_up(reached, steps))
    return DeltaBound(log_delta=log_delta, record=record)


@theorem(
    id="pnsgd-random-stop-coarse",
    source=_SOURCE.format("Section 1") + _SOURCE_AFTER + ", Theorem 5",
    status=Status.CONDITIONAL,
    relations=RELATIONS,
    assumptions=(
        *DECLARED_FACTS,
        Assumption.DATA_INDEPENDENT_ORDER,
        Assumption.SECRET_UNIFORM_STOP,
    ),
)
def random_stop_coarse_delta(run: ProjectedNoisySgd, *, epsilon: float, steps: int) -> DeltaBound:
    """Delta of a fixed order with a secret uniform stop, as first published: A / (n (1 - B)).

    Args:
        run: what was declared.
        epsilon: nats, finite, >= 0.
        steps: n, >= 1; the stop is uniform on 1, ..., n.

    Returns:
        The bound, for every record. Upper; never below random_stop_delta.

    Raises:
        ValueError: an argument is out of range.
    """
    require_steps(steps)
    first, later = run_kernels(run, epsilon)
    stop = -rounded_down(math.log(steps), ulps=4)
    log_delta = log_sum_up(first.log_kept, stop, -later.log_lost)
    return DeltaBound(log_delta=log_delta, record=None)


@theorem(
    id="pnsgd-shuffled",
    source=_SOURCE.format("Theorem 2") + _SOURCE_AFTER,
    status=Status.CONDITIONAL,
    relations=RELATIONS,
    assumptions=(*DECLARED_FACTS, Assumption.FRESH_SECRET_ORDER),
)
def shuffled_delta(run: ProjectedNoisySgd, *, epsilon: float, steps: int) -> DeltaBound:
    """Delta of one pass in a secret uniform order: A (1 - B^n) / (n (1 - B)).

    The mean of A B^(n-j) over the places j that a record is as likely to have. It is at least A/n:
    the last place is hidden by nothing, so that where A is near 1 no delta below 1/n is reached.

    Args:
        run: what was declared.
        epsilon: nats, finite, >= 0.
        steps: n, >= 1; batches of the pass.

    Returns:
        The bound, for every record. Upper; for all epsilon at once, from any start.

    Raises:
        ValueError: an argument is out of range.
    """
    require_steps(steps)
    first, later = run_kernels(run, epsilon)
    log_delta = log_sum_up(first.log_kept, log_mean_power(later.log_lost, steps))
    return DeltaBound(log_delta=log_delta, record=None)


THEOREMS: Final = (record_delta, random_stop_delta, random_stop_coarse_delta, shuffled_delta)
