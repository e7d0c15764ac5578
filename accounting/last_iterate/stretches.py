"""A declared run in the terms of the bounds: Lipschitz constants, shifts and noise by stretch."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from accounting.events import Gaussian, Span
from accounting.last_iterate.declared import Declared
from accounting.last_iterate.lipschitz import step_constant
from accounting.rounding import rounded_down, rounded_up


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Equal steps in a row, in units of the iterate."""

    steps: int
    lipschitz: float  # of the step without its noise; upper
    sensitivity: float  # how far one record moves a step that uses it; upper
    noise: float  # standard deviation of the step's noise, > 0; lower


def stretches(
    spans: Sequence[Span],
    declared: Declared,
    *,
    reach: float,
    batch_sizes: tuple[int, int],
) -> list[Stretch]:
    """The steps of a run as stretches, split where the learning rate changes.

    A step constant is convex in the learning rate, and so in the size of the batch: the larger of
    the constants of the smallest and the largest batch serves all between.

    Args:
        spans: of Gaussian events.
        declared: what the trainer says.
        reach: how far one record moves a step's sum, in norm bounds.
        batch_sizes: (least, most) records in a batch; least may be 0.

    Returns:
        Stretches, adjacent equal ones merged.
    """
    starts = [stage.first_step for stage in declared.learning_rate]
    found: list[Stretch] = []
    first_step = 0
    for span in spans:
        assert isinstance(span.event.mechanism, Gaussian)  # noqa: S101 (the caller has seen to it)
        sigma = span.event.mechanism.noise_multiplier
        end = first_step + span.steps
        while first_step < end:
            stage = bisect_right(starts, first_step)
            until = min(end, starts[stage]) if stage < len(starts) else end
            rate = declared.learning_rate[stage - 1].learning_rate
            found.append(_stretch(until - first_step, rate, sigma, declared, reach, batch_sizes))
            first_step = until
    return merge_stretches(found)


def _stretch(
    steps: int,
    rate: float,
    sigma: float,
    declared: Declared,
    reach: float,
    batch_sizes: tuple[int, int],
) -> Stretch:
    move = rate * declared.max_grad_norm / declared.gradient_divisor
    constants = [_constant(rate, size, declared) for size in batch_sizes]
    return Stretch(
        steps=steps,
        lipschitz=max(constants),
        sensitivity=rounded_up(reach * move, ulps=4),
        noise=rounded_down(sigma * move, ulps=4),
    )


def _constant(rate: float, size: int, declared: Declared) -> float:
    """The Lipschitz constant of a step over a batch of this size. Upper."""
    if size == 0:
        return 1.0
    constant = step_constant(
        learning_rate=rate * size / declared.gradient_divisor,
        smoothness=declared.loss_smoothness,
        convexity=declared.loss_convexity,
        clipping_can_be_active=declared.clipping_can_be_active,
        generalized_linear_model=declared.generalized_linear_model,
    )
    # It moves by at most smoothness times what rounding moves the learning rate, relative to
    # 1 + that product, which |1 - product| <= constant bounds by 2 + constant.
    return rounded_up(constant + (2 + constant) * 2.0**-50, ulps=4)


def merge_stretches(parts: Iterable[Stretch]) -> list[Stretch]:
    """Adjacent equal stretches as one."""
    found: list[Stretch] = []
    for part in parts:
        if found and replace(found[-1], steps=part.steps) == part:
            part = replace(part, steps=found.pop().steps + part.steps)
        found.append(part)
    return found


def envelope(parts: Sequence[Stretch]) -> Stretch:
    """One stretch that bounds them all: mu rises in the constants and shifts and falls in noise."""
    return Stretch(
        steps=sum(part.steps for part in parts),
        lipschitz=max(part.lipschitz for part in parts),
        sensitivity=max(part.sensitivity for part in parts),
        noise=min(part.noise for part in parts),
    )


def split_stretches(parts: Sequence[Stretch], ends: Sequence[int]) -> list[list[Stretch]]:
    """The stretches of each segment; `ends` rise and the last is the number of steps."""
    segments: list[list[Stretch]] = [[]]
    done, at = 0, 0
    for part in parts:
        left = part.steps
        while left:
            count = min(left, ends[at] - done)
            segments[-1].append(replace(part, steps=count))
            done, left = done + count, left - count
            if done == ends[at] and at + 1 < len(ends):
                at += 1
                segments.append([])
    return segments
