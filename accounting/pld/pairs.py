"""Dominating pairs: two distributions that tell neighbours apart at least as well as a step does.

Each pair (P, Q) is read in both orders. The loss of an order is log dP/dQ under P where a record is
removed, and log dQ/dP under Q where it is added. A pair is a value: equal pairs are one entry of
every cache.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from accounting.events import Direction


@dataclass(frozen=True, slots=True, kw_only=True)
class GaussianPair:
    """P = N(1, sigma^2) and Q = N(0, sigma^2); the same in both orders."""

    noise_multiplier: float  # sigma, noise std over the distance of the means; > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledGaussianPair:
    """P = (1-q) N(0, sigma^2) + q N(1, sigma^2) and Q = N(0, sigma^2)."""

    noise_multiplier: float  # sigma, noise std over the distance of the means; > 0
    sampling_probability: float  # q, in (0, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacedGaussianPair:
    """P = (1-q) N(0, sigma^2) + q N(1, sigma^2) and Q = (1-q) N(0, sigma^2) + q N(-1, sigma^2).

    A reflection exchanges them: it is the same in both orders.
    """

    noise_multiplier: float  # sigma, noise std over the norm bound; > 0
    sampling_probability: float  # q, in (0, 1)


MixturePair = SampledGaussianPair | ReplacedGaussianPair


@dataclass(frozen=True, slots=True, kw_only=True)
class LaplacePair:
    """P = (1-q) Lap(0, b) + q Lap(1, b) and Q = Lap(0, b), densities e^(-|x|/b) / (2b)."""

    scale: float  # b, scale over the distance of the centres; > 0
    sampling_probability: float  # q, in (0, 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Atomic:
    """P and Q known outcome by outcome."""

    first: tuple[float, ...]  # what P gives each outcome
    second: tuple[float, ...]  # what Q does, same length
    # They may be many, and are looked up often: their hash is worked out once.
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Work out the hash."""
        object.__setattr__(self, "_hash", hash((type(self), self.first, self.second)))

    def __hash__(self) -> int:
        """Of the kind and of both laws."""
        return self._hash


class DiscretePair(Atomic):
    """P and Q on finitely many outcomes; a probability may be zero under one of them."""

    __slots__ = ()


class DensePair(Atomic):
    """P and Q on outcomes so many that no single one of them matters.

    The sums may differ from one by what rounding costs: a pair with somewhat larger masses has a
    larger profile, and dominates.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SymmetricPair:
    """A pair known by its profile, equal in both orders.

    For a >= 1, H_a = q ((1-c) H_a'(near) + c H_a'(far)) with a' = 1 + (a-1)/q and c = a/a'; below,
    H_a = 1 - a + a H_(1/a). Equal near and far pairs give q H_a'(near).
    """

    near: GaussianPair | LaplacePair  # without sampling
    far: GaussianPair | LaplacePair  # without sampling, of the same kind; not less than near
    sampling_probability: float  # q, in (0, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class InterpolatedSteps:
    """Several steps, each the pair share * near + (1 - share) * far; these are known line by line.

    A share in [0, 1] is a published coin that chooses between the two. A larger one takes some of
    far away from near, as long as that leaves every loss a positive density.
    """

    near: MixturePair  # with less noise than far
    far: MixturePair  # of the same kind and sampling probability
    shares: tuple[float, ...]  # of near, >= 0
    counts: tuple[int, ...]  # of the steps with each share
    # Steps that dominate these, with coins alone: they bound the moments where a share exceeds 1.
    above: "InterpolatedSteps | None" = None


Pair = (
    GaussianPair
    | SampledGaussianPair
    | ReplacedGaussianPair
    | LaplacePair
    | DiscretePair
    | DensePair
    | SymmetricPair
    | InterpolatedSteps
)
Units = Sequence[tuple[Pair, int]]  # pairs, and how often each counts


def different_orders(pairs: Iterable[Pair]) -> tuple[Direction, ...]:
    """The orders that tell different things of some pairs: one if both orders of each are alike."""
    same = all(map(_is_symmetric, pairs))
    return (Direction.REMOVE,) if same else (Direction.REMOVE, Direction.ADD)


def _is_symmetric(pair: Pair) -> bool:
    match pair:
        case GaussianPair() | ReplacedGaussianPair() | SymmetricPair():
            return True
        case InterpolatedSteps():
            return isinstance(pair.near, ReplacedGaussianPair)
        case LaplacePair():
            return pair.sampling_probability == 1
        case DiscretePair() | DensePair():
            if max(pair.first) != max(pair.second):
                return False
            forth = sorted(zip(pair.first, pair.second, strict=True))
            return forth == sorted(zip(pair.second, pair.first, strict=True))
        case _:
            return False
