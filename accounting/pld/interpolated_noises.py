"""Many steps whose noises all differ, between few noises that they are interpolated between.

The profile of a sampled Gaussian step is convex in the total variation of its noise, so that a
published coin between two noises tells at least as much as a noise between them, and the line
through two larger noises, prolonged, at most as much. Both are off by the square of how far the
noises lie apart (docs/theory/interpolated_noises.md).
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from accounting import special
from accounting.events import NeighboringRelation
from accounting.guarantees import Status, theorem
from accounting.pld.contour.interpolated_moments import density_ratio
from accounting.pld.pairs import InterpolatedSteps, MixturePair, Pair, ReplacedGaussianPair, Units
from accounting.rounding import LIBRARY_ULPS, UNIT_ROUNDOFF

# Between nodes, in the logarithm of a step's standard deviation; coarser where they are too many.
_SPACINGS: Final = (0.005, 0.007, 0.01, 0.014, 0.02, 0.03, 0.04)
_CELLS_MAX: Final = 300  # that hold a step, of one sampling
_FEWER: Final = 3  # steps for each such cell on average, or interpolating them saves nothing
_NOISES: Final = (0.05, 1e6)  # that are interpolated: others are as good as none, or as all
_ERROR_MAX: Final = 1e-8  # of a share; more where the total variations can hardly be told apart
_SHARES_MAX: Final = 24  # of a cell; more are rounded outward to multiples of a fraction
_SHARES: Final = 16
_KEPT_MIN: Final = 0.5  # of the density of near that a prolonged line must leave


@dataclass(frozen=True, slots=True)
class _Cell:
    """Two neighbouring nodes, and the steps between them."""

    near: MixturePair
    far: MixturePair
    beyond: MixturePair  # the node after far
    steps: list[tuple[MixturePair, int]]


def interpolate_noises(units: Units, *, upper: bool) -> Units | None:
    """Fewer pairs in place of those of many noises; None where that saves nothing.

    Args:
        units: distinct pairs and how often each counts.
        upper: whether what is returned dominates the units, or is dominated by them.
    """
    kinds: defaultdict[tuple[type, float], list[tuple[MixturePair, int]]] = defaultdict(list)
    found: list[tuple[Pair, int]] = []
    for pair, count in units:
        if isinstance(pair, MixturePair) and _NOISES[0] <= pair.noise_multiplier <= _NOISES[1]:
            kinds[type(pair), pair.sampling_probability].append((pair, count))
        else:
            found.append((pair, count))
    for steps in kinds.values():
        for cell in _cells(steps):
            found += _coins(cell) if upper else _prolong_cell(cell)
    return found if 2 * len(found) <= len(units) else None


@theorem(
    id="noise-interpolation",
    source="docs/theory/interpolated_noises.md, Proposition 1",
    status=Status.DERIVED,
    relations=tuple(NeighboringRelation),
)
def interpolate_above(units: Units) -> Units | None:
    """Fewer pairs that together dominate those of many noises: coins between neighbouring noises.

    With v = 2 Phi(r/(2 sigma)) - 1, r the distance of the means, the profile of a Gaussian step
    under Poisson sampling is convex in v at each loss, so that it is at most
    s H(near) + (1 - s) H(far) with s = (v - v_far) / (v_near - v_far).

    Args:
        units: distinct pairs and how often each counts.

    Returns:
        Pairs that dominate, or None where they would not be far fewer. Upper.
    """
    return interpolate_noises(units, upper=True)


def interpolate_below(units: Units) -> Units | None:
    """Fewer pairs that those of many noises dominate: lines through two larger noises. Lower."""
    return interpolate_noises(units, upper=False)


def _cells(steps: list[tuple[MixturePair, int]]) -> Iterable[_Cell]:
    """The steps by the nodes that they lie between, as finely as there may be cells."""
    # Where their shares are rounded, fewer cells serve as well.
    most = _CELLS_MAX if len(steps) <= _SHARES_MAX * _CELLS_MAX else _CELLS_MAX // 2
    for spacing in _SPACINGS:
        cells: defaultdict[int, list[tuple[MixturePair, int]]] = defaultdict(list)
        for pair, count in steps:
            cells[_place(pair.noise_multiplier, spacing)].append((pair, count))
        if len(cells) <= min(most, len(steps) / _FEWER):
            break
    for place, held in cells.items():
        near, far, beyond = (_node(held[0][0], place - n, spacing) for n in (-1, 0, 1))
        yield _Cell(near, far, beyond, held)


def _place(noise: float, spacing: float) -> int:
    """Which node is the next one with no less noise: they are counted as noise falls."""
    square = 1 / (noise * noise)
    log_deviation = 0.5 * (math.log(math.expm1(square)) if square < 30 else square)
    place = math.floor(log_deviation / spacing)
    # Rounding may have put it on the other side of a node.
    while _noise_at(place, spacing) < noise:
        place -= 1
    while _noise_at(place + 1, spacing) >= noise:
        place += 1
    return place


def _noise_at(place: int, spacing: float) -> float:
    """The noise of a node: e^(1/noise^2) - 1 = e^(2 place spacing)."""
    twice = 2 * place * spacing
    square = math.log1p(math.exp(twice)) if twice < 30 else twice
    return 1 / math.sqrt(square)


def _node(like: MixturePair, place: int, spacing: float) -> MixturePair:
    return type(like)(
        noise_multiplier=_noise_at(place, spacing), sampling_probability=like.sampling_probability
    )


def _variation(pair: MixturePair) -> float:
    """v, the total variation of the pair without sampling; to a few roundoffs."""
    distance = 2 if isinstance(pair, ReplacedGaussianPair) else 1
    return float(special.erf(distance / (2 * math.sqrt(2) * pair.noise_multiplier)))


def _share(pair: MixturePair, near: MixturePair, far: MixturePair) -> tuple[float, float]:
    """(share, error): where v of a pair lies between far's and near's."""
    low, high = _variation(far), _variation(near)
    gap = high - low
    if not gap > 0:
        return math.nan, math.inf
    error = 64 * LIBRARY_ULPS * UNIT_ROUNDOFF * (high / gap)
    return (_variation(pair) - low) / gap, error


def _coins(cell: _Cell) -> list[tuple[Pair, int]]:
    """Steps that dominate those of a cell; as they are where the coins are not known well."""
    shares, counts, left = [], [], []
    for pair, count in cell.steps:
        share, error = _share(pair, cell.near, cell.far)
        if error <= _ERROR_MAX:
            # Near has no more noise than the pair, so that one is enough.
            shares.append(min(1.0, share + error * (1 + abs(share))))
            counts.append(count)
        else:
            left.append((pair, count))
    if len(shares) > _SHARES_MAX:
        shares = [min(1.0, math.ceil(share * _SHARES) / _SHARES) for share in shares]
    return [*_steps(cell.near, cell.far, shares, counts), *left]


def _prolong_cell(cell: _Cell) -> list[tuple[Pair, int]]:
    """Steps that those of a cell dominate."""
    coins, shares, counts, left = [], [], [], []
    near, far = cell.far, cell.beyond
    ratio = density_ratio(near, far)
    for pair, count in cell.steps:
        coin, error = _share(pair, cell.near, cell.far)
        share, off = _share(pair, near, far)
        share = max(1.0, share - off * (1 + abs(share)))  # near itself tells no more than the pair
        kept = share - (share - 1) * ratio
        if max(error, off) <= _ERROR_MAX and kept >= _KEPT_MIN:
            coins.append(min(1.0, coin + error * (1 + abs(coin))))
            shares.append(share)
            counts.append(count)
        else:
            left.append((pair, count))
    if len(shares) > _SHARES_MAX:
        coins = [math.ceil(coin * _SHARES) / _SHARES for coin in coins]
        shares = [math.floor(share * _SHARES) / _SHARES for share in shares]
    above = _steps(cell.near, cell.far, coins, counts)
    return [
        *_steps(near, far, shares, counts, above=above[0][0] if above else None),
        *left,
    ]


def _steps(
    near: MixturePair,
    far: MixturePair,
    shares: list[float],
    counts: list[int],
    above: InterpolatedSteps | None = None,
) -> list[tuple[InterpolatedSteps, int]]:
    if not shares:
        return []
    times: Counter[float] = Counter()
    for share, count in zip(shares, counts, strict=True):
        times[share] += count
    steps = InterpolatedSteps(
        near=near, far=far, shares=tuple(times), counts=tuple(times.values()), above=above
    )
    return [(steps, 1)]


THEOREMS = (interpolate_above,)
