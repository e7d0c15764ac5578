"""The least sum of squared shifts: adjacent steps pooled into blocks of one rate, in logarithms.

A block ends with both iterates together. Its S is the distance that would have gathered at its end
if nothing were released, its N the variance there, and S^2 / N what releasing it costs. Two blocks
become one if the first would release at a higher rate than the second. Each block bounds its own
rounding errors, and blocks are pooled only where they surely should be: a pooling left out costs
little and is valid, a wrong one would understate. docs/theory/last_iterate.md has the proofs.
"""

import math
from dataclasses import dataclass, fields
from typing import Final

import numpy as np
import numpy.typing as npt

from accounting.rounding import UNIT_ROUNDOFF, Array, rounded_up

Mask = npt.NDArray[np.bool_]
# While a round pools at least this share of the blocks, all pairs are pooled at once; then the few
# that are left are pooled one after the other.
_SHARE: Final = 0.05
_STEP: Final = 16 * UNIT_ROUNDOFF  # of one log-sum-exp: its exponential, logarithm and sum


def _size(values: Array) -> Array:
    """Magnitudes of logarithms; what is exactly zero has no rounding error."""
    return np.where(np.isfinite(values), np.abs(values), 0.0)


@dataclass(slots=True)
class Blocks:
    """Blocks in a row; arrays of shape (k,), logarithms with bounds on their errors."""

    shift: Array  # log S; -inf where nothing has to be released
    noise: Array  # log N; -inf where nothing can be
    lipschitz: Array  # log of the product of the block's Lipschitz constants; finite
    error: Array  # absolute, of `shift`; that of `noise` is at most twice as large
    lipschitz_error: Array  # absolute, of `lipschitz`
    fresh: Mask  # whether the block has to begin with both iterates together

    @classmethod
    def of_steps(cls, *, lipschitz: Array, shifts: Array, noises: Array, fresh: Mask) -> "Blocks":
        """One block for each step; constants are positive and finite except where fresh."""
        with np.errstate(divide="ignore"):
            shift, noise = np.log(shifts), np.log(noises)
        log_lipschitz = np.log(np.where(fresh, 1.0, lipschitz))
        # Logarithms are off by LIBRARY_ULPS; the shifts may be sums of a product and a number.
        return cls(
            shift=shift,
            noise=2 * noise,
            lipschitz=log_lipschitz,
            error=8 * UNIT_ROUNDOFF * (2 + np.maximum(_size(shift), _size(noise))),
            lipschitz_error=8 * UNIT_ROUNDOFF * np.abs(log_lipschitz),
            fresh=fresh.copy(),
        )

    def __len__(self) -> int:
        return len(self.shift)

    def violators(self) -> Mask:
        """Whether each block but the last surely releases at a higher rate than the next."""
        # Zero shifts and zero noises are exact; what they make of the comparison is not used.
        with np.errstate(invalid="ignore"):
            before = self.shift[:-1] - self.noise[:-1]
            after = self.lipschitz[1:] + self.shift[1:] - self.noise[1:]
            margin = 4 * (self.error[:-1] + self.error[1:]) + self.lipschitz_error[1:]
            higher = before - after >= margin
        idle = (self.shift[1:] == -np.inf) | (self.noise[:-1] == -np.inf)
        return np.asarray((higher | idle) & ~self.fresh[1:])

    def pool(self, firsts: npt.NDArray[np.intp]) -> "Blocks":
        """Each of these blocks pooled with the next; no two are neighbours. `self` is used up."""
        seconds = firsts + 1
        grown = self.lipschitz[seconds]
        shift = np.logaddexp(grown + self.shift[firsts], self.shift[seconds])
        noise = np.logaddexp(2 * grown + self.noise[firsts], self.noise[seconds])
        lipschitz = self.lipschitz[firsts] + grown
        carried = self.error[firsts] + self.lipschitz_error[seconds]
        largest = np.maximum(_size(shift), _size(noise))
        self.error[seconds] = np.maximum(carried, self.error[seconds]) + (
            _STEP + 4 * UNIT_ROUNDOFF * largest
        )
        self.lipschitz_error[seconds] += self.lipschitz_error[firsts]
        self.lipschitz_error[seconds] += UNIT_ROUNDOFF * np.abs(lipschitz)
        self.shift[seconds], self.noise[seconds] = shift, noise
        self.lipschitz[seconds], self.fresh[seconds] = lipschitz, self.fresh[firsts]
        left = np.ones(len(self), dtype=bool)
        left[firsts] = False
        return Blocks(*(getattr(self, one.name)[left] for one in fields(self)))

    def pooled(self) -> "Blocks":
        """All that surely should be one block made one. The order makes no difference."""
        blocks = self
        while len(blocks) > 1:
            wrong = blocks.violators()
            # The first of each run of violators, the third, and so on.
            counts = np.cumsum(wrong)
            runs: npt.NDArray[np.intp] = counts - np.maximum.accumulate(np.where(wrong, 0, counts))
            firsts = np.flatnonzero(wrong & (runs % 2 == 1))
            if len(firsts) < _SHARE * len(blocks):
                return blocks.pooled_in_turn() if len(firsts) else blocks
            blocks = blocks.pool(firsts)
        return blocks

    def pooled_in_turn(self) -> "Blocks":
        """The same from the first violator on, one by one; there is a violator."""
        start = int(np.flatnonzero(self.violators())[0])
        rows = list(zip(*(getattr(self, one.name).tolist() for one in fields(self)), strict=True))
        stack = rows[:start]
        for row in rows[start:]:
            last = row
            while stack and _violates(stack[-1], last):
                last = _pool(stack.pop(), last)
            stack.append(last)
        columns = [np.array(column) for column in zip(*stack, strict=True)]
        return Blocks(*columns)

    def mu(self) -> float:
        """The root of the sum of S^2 / N. Upper; inf where something is left and nothing hides."""
        used = self.shift > -np.inf
        if np.any(self.noise[used] == -np.inf):
            return math.inf
        if not used.any():
            return 0.0
        shift, noise, error = self.shift[used], self.noise[used], self.error[used]
        errors = 4 * error + 4 * UNIT_ROUNDOFF * (2 * np.abs(shift) + np.abs(noise))
        costs = 2 * shift - noise + errors
        top = float(np.max(costs))
        total = math.fsum(np.exp(costs - top))
        log_mu = 0.5 * (top + math.log(total))
        log_mu += 8 * UNIT_ROUNDOFF * (2 + abs(log_mu))
        return rounded_up(math.exp(log_mu), ulps=4) if log_mu < _LOG_MAX else math.inf


_Row = tuple[float, float, float, float, float, bool]
_LOG_MAX: Final = 709.0


def _violates(first: _Row, second: _Row) -> bool:
    """Whether the first of two blocks surely releases at a higher rate than the second."""
    shift, noise, _, error, _, _ = first
    next_shift, next_noise, next_lipschitz, next_error, lipschitz_error, fresh = second
    if fresh:
        return False
    if next_shift == -math.inf or noise == -math.inf:
        return True
    margin = 4 * (error + next_error) + lipschitz_error
    return (shift - noise) - (next_lipschitz + next_shift - next_noise) >= margin


def _log_sum(a: float, b: float) -> float:
    """The logarithm of a sum."""
    high, low = max(a, b), min(a, b)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))


def _pool(first: _Row, second: _Row) -> _Row:
    """Two blocks as one."""
    shift, noise, lipschitz, error, lipschitz_error, fresh = first
    next_shift, next_noise, grown, next_error, grown_error, _ = second
    shift = _log_sum(grown + shift, next_shift)
    noise = _log_sum(2 * grown + noise, next_noise)
    largest = max(abs(value) if math.isfinite(value) else 0.0 for value in (shift, noise))
    lipschitz += grown
    return (
        shift,
        noise,
        lipschitz,
        max(error + grown_error, next_error) + _STEP + 4 * UNIT_ROUNDOFF * largest,
        lipschitz_error + grown_error + UNIT_ROUNDOFF * abs(lipschitz),
        fresh,
    )
