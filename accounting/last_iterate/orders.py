"""What the shown iterates of a run tell, by how records come into its batches."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from accounting.last_iterate.closed_forms import cyclic_mus, worst_cyclic_mu
from accounting.last_iterate.random_order import averaged_pair
from accounting.last_iterate.shift import best_start_mu, shift_mu
from accounting.last_iterate.stretches import Stretch, envelope, merge_stretches, split_stretches
from accounting.pld.pairs import GaussianPair, Pair, Units
from accounting.rounding import Array, rounded_down, rounded_up, sum_up

ARRAY_STEPS_MAX: Final = 5 * 10**5  # of unequal steps told one by one, over all places of a pass
BOUNDED_SEGMENTS_MAX: Final = 300  # of different lengths whose best starts are sought


def segments_mu(
    parts: Sequence[Stretch], *, ends: Sequence[int], places: int, diameter: float | None
) -> float:
    """Mu of a run in a told order, of which the iterates after some steps are shown.

    Each segment starts from an iterate that was shown, or from the run's start; their bounds add up
    in squares, each for the record that is worst off in it.

    Args:
        parts: the run's steps.
        ends: after how many steps an iterate is shown; they rise, and the last is the run's end.
        places: steps from one use of a record to the next, >= 1.
        diameter: of the set that every step projects onto; None: there is none.

    Returns:
        mu. Upper.
    """
    segments = Counter(tuple(merge_stretches(part)) for part in split_stretches(parts, ends))
    told = sum(_steps_told(segment, places) for segment in segments) <= ARRAY_STEPS_MAX
    if len(segments) > BOUNDED_SEGMENTS_MAX:
        diameter = None  # a start from where the iterates are together is one that is allowed
    squares: list[float] = []
    for segment, times in segments.items():
        mu = _segment_mu(segment, places, diameter, told=told)
        squares.append(rounded_up(times * mu * mu, ulps=2))
    return rounded_up(math.sqrt(sum_up(squares)), ulps=2)


def _steps_told(segment: Sequence[Stretch], places: int) -> int:
    """How many steps are told one by one, over all places; none where they are equal."""
    steps = sum(part.steps for part in segment)
    return steps * min(places, steps) if len(segment) > 1 else 0


def _segment_mu(
    segment: Sequence[Stretch], places: int, diameter: float | None, *, told: bool
) -> float:
    """Mu of one segment for the record in the worst place. Upper.

    Where steps differ each is told by itself, for each place of a pass, if they are few enough;
    one stretch that bounds them all serves otherwise.
    """
    whole = envelope(segment)
    mu = worst_cyclic_mu(
        lipschitz=whole.lipschitz,
        sensitivity=whole.sensitivity,
        noise=whole.noise,
        steps=whole.steps,
        steps_per_pass=places,
        diameter=diameter,
    )
    if len(segment) == 1 or not told:
        return mu
    used = min(places, whole.steps)
    constants, noises, shifts = (
        np.repeat([getattr(part, field) for part in segment], [part.steps for part in segment])
        for field in ("lipschitz", "noise", "sensitivity")
    )
    turn = np.arange(whole.steps) % places
    mus = [
        _told_mu(constants, np.where(turn == place, shifts, 0.0), noises, diameter)
        for place in range(used)
    ]
    return min(mu, max(mus))


def _told_mu(constants: Array, shifts: Array, noises: Array, diameter: float | None) -> float:
    if diameter is None:
        return shift_mu(lipschitz=constants, sensitivities=shifts, noises=noises)
    return best_start_mu(
        lipschitz=constants, sensitivities=shifts, noises=noises, diameter=diameter
    )


def shuffled_mus(part: Stretch, *, steps_per_pass: int, passes: int) -> Array:
    """Mu for the record in each place of a pass, and at last for one that no pass uses.

    Returns:
        Shape (steps_per_pass + 1,). Upper.
    """
    mus = cyclic_mus(
        lipschitz=part.lipschitz,
        sensitivity=part.sensitivity,
        noise=part.noise,
        steps_per_pass=steps_per_pass,
        passes=passes,
    )
    return np.append(mus, 0.0)


def place_weights(*, batch_size: int, dataset_size: int, steps: int) -> Array:
    """The chance that a record is in each of the first steps of a shuffled pass, or in none.

    Args:
        batch_size: records of a batch; the last may hold fewer.
        dataset_size: records in all.
        steps: of the pass that are taken, all of them starting within the dataset.

    Returns:
        Shape (steps + 1,), adding up to one. Exact, to rounding.
    """
    counts = np.full(steps + 1, batch_size, dtype=np.float64)
    counts[-2] = min(batch_size, dataset_size - (steps - 1) * batch_size)
    counts[-1] = dataset_size - np.sum(counts[:-1])
    return counts / dataset_size


def shuffled_units(
    passes: Iterable[tuple[Stretch, bool]], *, batch_size: int, dataset_size: int
) -> Units:
    """Pairs that dominate passes in fresh secret orders, each from the iterate before it.

    Args:
        passes: each as one stretch, and whether an iterate within it was shown. Such a pass counts
            as told: one Gaussian release.
        batch_size: records of a batch.
        dataset_size: records in all.

    Returns:
        Pairs and how often each counts. Upper.
    """
    units: Counter[Pair] = Counter()
    for (part, told), times in Counter(passes).items():
        if told:
            ratio = rounded_down(part.noise / part.sensitivity)
            pair: Pair = GaussianPair(noise_multiplier=ratio)
        else:
            weights = place_weights(
                batch_size=batch_size, dataset_size=dataset_size, steps=part.steps
            )
            mus = shuffled_mus(part, steps_per_pass=part.steps, passes=1)
            pair = averaged_pair(mus=mus, weights=weights)
        units[pair] += times
    return sorted(units.items(), key=lambda unit: repr(unit[0]))
