"""Many passes of projected noisy gradient steps: what each pass shows at its end is composed.

A bound of delta that holds at every epsilon at once, and from every start, is the profile of a
pair of laws that dominates the pass; pairs compose. docs/theory/contraction.md has the proofs.
"""

import math
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from accounting.gaussian import log_gaussian_delta
from accounting.guarantees import Assumption, Status, theorem
from accounting.literature.contraction.contraction import (
    DECLARED_FACTS,
    RELATIONS,
    DeltaBound,
    ProjectedNoisySgd,
    record_delta,
    require_steps,
    shuffled_delta,
)
from accounting.literature.contraction.inversion import least_epsilon
from accounting.literature.contraction.kernels import Noise
from accounting.pld.certified_composition import delta_bracket, epsilon_bracket
from accounting.pld.dense_pairs import loss_grid, profile_pair
from accounting.pld.pairs import DensePair, GaussianPair, LaplacePair, Pair
from accounting.pld.profiles import LOSS_MAX
from accounting.rounding import least_true, rounded_down, rounded_up

TAIL: Final = 1e-40  # of a pass's profile: what is left where its grid ends is put at infinity
GROUPS: Final = 40  # of places, composed one by one; the rest count as the last of them
PASSES_MAX: Final = 2**40
MU_SEARCHED: Final = 1e6  # of Gaussian releases that a pass is held against
_MU_FIRST: Final = 1e-100
SCALE_MIN: Final = 1e-6  # nats, of a grid
_SINGLE: Final = 4  # groups of one place, before they grow by half
_NEGLIGIBLE: Final = 1e-4  # of the mean over places: what need not be told apart
_WIDTH: Final = 1e-3  # relative, of the search for epsilon where places are averaged


def _pair(delta_at: Callable[[float], DeltaBound], run: ProjectedNoisySgd) -> DensePair:
    """The pair whose profile joins upper bounds of a profile that is the same in both orders."""
    shift = run.record_shift
    top = shift if run.noise is Noise.LAPLACE else least_epsilon(delta_at, delta=TAIL)
    top = min(max(top, SCALE_MIN), LOSS_MAX)
    losses = loss_grid(scale=min(max(shift, SCALE_MIN), top), top=top)
    deltas = np.array([delta_at(float(one)).delta for one in losses])
    return profile_pair(losses, removed=deltas, added=deltas)


@theorem(
    id="pnsgd-pass",
    source="docs/theory/contraction.md, Theorem 5",
    status=Status.CONDITIONAL,
    relations=RELATIONS,
    assumptions=(*DECLARED_FACTS, Assumption.FRESH_SECRET_ORDER),
)
def pass_pair(run: ProjectedNoisySgd, *, steps: int) -> DensePair:
    """A pair that dominates one pass in a fresh secret order, from any start.

    A and B fall and are convex in e^epsilon, and so is A (1 - B^n)/(n (1 - B)), a mean of their
    products: a profile, which joining its dots keeps above.

    Args:
        run: what was declared.
        steps: n, >= 1; batches of the pass.

    Returns:
        The pair, the same in both orders; passes compose as its products do. Upper.

    Raises:
        ValueError: steps is out of range.
    """
    require_steps(steps)
    return _pair(lambda epsilon: shuffled_delta(run, epsilon=epsilon, steps=steps), run)


def _composed(
    delta_at: Callable[[float], DeltaBound], pair: Callable[[], Pair], passes: int, delta: float
) -> float:
    """Epsilon of passes that each have this profile, and are dominated by this pair. Upper."""
    if not 0 < delta < 1:
        raise ValueError("delta lies in (0, 1).")
    if _variation(delta_at, passes) <= delta:
        return 0.0
    return epsilon_bracket([(pair(), passes)], delta=delta).upper


def _variation(delta_at: Callable[[float], DeltaBound], passes: int) -> float:
    """The total variation of all passes is at most the sum of theirs. Upper."""
    if not 1 <= passes <= PASSES_MAX:
        raise ValueError(f"passes lies in [1, {PASSES_MAX}].")
    return rounded_up(passes * delta_at(0.0).delta)


def passes_epsilon(run: ProjectedNoisySgd, *, steps: int, passes: int, delta: float) -> float:
    """Epsilon of passes in fresh secret orders, each of which shows its last iterate. Upper.

    Args:
        run: what was declared.
        steps: n, >= 1; batches of each pass.
        passes: in [1, PASSES_MAX].
        delta: in (0, 1).

    Raises:
        ValueError: an argument is out of range.
    """
    require_steps(steps)
    return _composed(
        lambda epsilon: shuffled_delta(run, epsilon=epsilon, steps=steps),
        lambda: pass_pair(run, steps=steps),
        passes,
        delta,
    )


def fixed_order_epsilon(
    run: ProjectedNoisySgd, *, steps: int, record: int, passes: int, delta: float
) -> float:
    """Epsilon of passes in one fixed order, for the record of one step alone. Upper.

    Nothing is said of any other record: that of the last step has no amplification at all.

    Args:
        run: what was declared.
        steps: n, >= 1; of each pass.
        record: i, in [1, n].
        passes: in [1, PASSES_MAX].
        delta: in (0, 1).

    Raises:
        ValueError: an argument is out of range.
    """
    require_steps(steps, record)
    return _place_epsilon(run, steps - record, passes, delta)


def _place_delta(run: ProjectedNoisySgd, later: int) -> Callable[[float], DeltaBound]:
    """The profile of a pass for a record that some steps come after."""
    return lambda epsilon: record_delta(run, epsilon=epsilon, steps=later + 1, record=1)


def _place_pair(run: ProjectedNoisySgd, later: int) -> Pair:
    """A pair that dominates a pass for such a record; the noise itself in the last place."""
    if later > 0:
        return _pair(_place_delta(run, later), run)
    scale = rounded_down(1 / run.record_shift)
    if run.noise is Noise.LAPLACE:
        return LaplacePair(scale=scale, sampling_probability=1.0)
    return GaussianPair(noise_multiplier=scale)


def _place_epsilon(run: ProjectedNoisySgd, later: int, passes: int, delta: float) -> float:
    return _composed(_place_delta(run, later), lambda: _place_pair(run, later), passes, delta)


@theorem(
    id="pnsgd-one-order",
    source="docs/theory/contraction.md, Theorem 6",
    status=Status.CONDITIONAL,
    relations=RELATIONS,
    assumptions=(*DECLARED_FACTS, Assumption.SECRET_ORDER),
)
def one_order_epsilon(run: ProjectedNoisySgd, *, steps: int, passes: int, delta: float) -> float:
    """Epsilon of passes in one secret uniform order, drawn once for all of them.

    Given the place, a pass costs A B^(n-j) and passes compose; the mean over places of what they
    cost together is what they cost. Places are taken in groups, at the worst of each.

    Args:
        run: what was declared.
        steps: n, >= 1; batches of each pass.
        passes: in [1, PASSES_MAX].
        delta: in (0, 1).

    Returns:
        epsilon in nats, >= 0. Upper: at it, delta was evaluated to be small enough.

    Raises:
        ValueError: an argument is out of range.
    """
    require_steps(steps)
    high = _place_epsilon(run, 0, passes, delta)
    mean, low = _MeanOverPlaces(run, steps, passes), 0.0
    while high - low > max(_WIDTH * high, SCALE_MIN):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if mean.is_at_most(delta, epsilon=middle) else (middle, high)
    return high


class _MeanOverPlaces:
    """The delta of all passes, averaged over the place of a record."""

    def __init__(self, run: ProjectedNoisySgd, steps: int, passes: int) -> None:
        self._run, self._steps, self._passes = run, steps, passes
        self._pairs: dict[int, Pair] = {}

    def is_at_most(self, delta: float, *, epsilon: float) -> bool:
        """Whether it is shown to be: a place that more steps come after costs less."""
        total = rest = 0.0
        for later, count in _groups(self._steps):
            value = self._place(later, epsilon, _NEGLIGIBLE * total)
            total += value * (count / self._steps)
            rest = value * ((self._steps - later - count) / self._steps)
            if total > delta or rest <= _NEGLIGIBLE * total:
                break
        return (total + rest) * (1 + 1e-12) <= delta

    def _place(self, later: int, epsilon: float, negligible: float) -> float:
        variation = _variation(_place_delta(self._run, later), self._passes)
        if variation <= negligible:
            return variation
        if later not in self._pairs:
            self._pairs[later] = _place_pair(self._run, later)
        units = [(self._pairs[later], self._passes)]
        return min(variation, delta_bracket(units, epsilon=epsilon, width=_NEGLIGIBLE).upper)


def _groups(steps: int) -> Iterator[tuple[int, int]]:
    """(how many steps come after the last place of a group, places in it), the last place first."""
    later = 0
    for _ in range(GROUPS):
        count = min(steps - later, 1 if later < _SINGLE else later // 2)
        yield later, count
        later += count
        if later == steps:
            return


def gdp_needed(*, epsilon: float, log_delta: float) -> float:
    """The least mu for which mu-GDP allows a delta at an epsilon, to 1e-10; no bound of anything.

    Of a shuffled pass it rises to 2L/(b sigma) as epsilon grows: as one Gaussian release, a pass
    has no amplification at all.

    Args:
        epsilon: nats, finite, >= 0.
        log_delta: natural logarithm, < 0.

    Raises:
        ValueError: no mu up to MU_SEARCHED allows it, or epsilon is out of range.
    """
    if not 0 <= epsilon < math.inf:
        raise ValueError("epsilon lies in [0, infinity).")

    def allowed(log_mu: float) -> bool:
        return log_gaussian_delta(epsilon, mu=math.exp(log_mu))[0] >= log_delta

    return math.exp(least_true(allowed, low=math.log(_MU_FIRST), high=math.log(MU_SEARCHED)))


THEOREMS: Final = (pass_pair, one_order_epsilon)
