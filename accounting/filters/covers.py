"""Which item of an envelope covers which event: docs/theory/envelopes.md, Proposition 2."""

from accounting.events import (
    ApproximateDp,
    Event,
    FixedSize,
    Full,
    Gaussian,
    Laplace,
    MatrixGaussian,
    Mechanism,
    NoNoise,
    NonUniform,
    Poisson,
    Sampling,
    Zcdp,
)


def covers(item: Event, event: Event) -> bool:
    """Whether a unit of an event may be charged to an item: whether it never tells more.

    Proposition 2 of docs/theory/envelopes.md.
    """
    if item == event:
        return True
    if not _mechanism_covers(item.mechanism, event.mechanism):
        return False
    return _sampling_covers(item.mechanism, item.sampling, event.sampling)


def _mechanism_covers(item: Mechanism, other: Mechanism) -> bool:
    match item, other:
        case Gaussian(noise_multiplier=least), Gaussian(noise_multiplier=noise):
            return least <= noise
        case Laplace(noise_multiplier=least), Laplace(noise_multiplier=noise):
            return least <= noise
        case MatrixGaussian(), MatrixGaussian():
            same = item.strategy == other.strategy
            least = item.sensitivity_squared >= other.sensitivity_squared
            return same and least and item.noise_multiplier <= other.noise_multiplier
        case ApproximateDp(), ApproximateDp():
            return other.epsilon <= item.epsilon and other.delta <= item.delta
        case _:
            return item == other and not isinstance(item, NoNoise | Zcdp)


def _sampling_covers(mechanism: Mechanism, item: Sampling, other: Sampling) -> bool:
    if item == other:
        return True
    match item, other:
        case Full(), Poisson():
            return True
        case Poisson(), Poisson():
            thinned = isinstance(mechanism, Gaussian | Laplace | ApproximateDp)
            return thinned and other.sampling_probability <= item.sampling_probability
        case FixedSize(), FixedSize():
            # A batch of all records is another mechanism: no record can stand in for one.
            of_item = item.batch_size * other.dataset_size
            return item.batch_size < item.dataset_size and (
                other.batch_size * item.dataset_size <= of_item
            )
        case NonUniform(), NonUniform():
            return other.max_weight <= item.max_weight < 1
        case _:
            return False
