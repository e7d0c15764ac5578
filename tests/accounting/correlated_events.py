"""Passes of correlated noise that tests share."""

from accounting.events import (
    CyclicPoisson,
    Event,
    MatrixGaussian,
    MinSeparation,
    NeighboringRelation,
    Placement,
)

ADD, ONE, SPECIAL = (
    NeighboringRelation.ADD_OR_REMOVE_ONE,
    NeighboringRelation.REPLACE_ONE,
    NeighboringRelation.REPLACE_SPECIAL,
)


def square_root(steps: int) -> tuple[float, ...]:
    found = [1.0]
    for i in range(1, steps):
        found.append(found[-1] * (2 * i - 1) / (2 * i))
    return tuple(found)


def a_pass(
    n: int = 64,
    b: int = 8,
    k: int = 8,
    *,
    noise: float = 4.0,
    squared: float = 50.15585143397344,
    placement: Placement = Placement.BY_RECORD,
    restarts: bool = False,
    strategy: str = "a",
) -> Event:
    return Event(
        mechanism=MatrixGaussian(
            noise_multiplier=noise, strategy=strategy, sensitivity_squared=squared
        ),
        sampling=MinSeparation(
            steps_per_pass=n,
            min_separation=b,
            participations=k,
            placement=placement,
            noise_restarts_each_pass=restarts,
        ),
    )


def in_turns(
    q: float,
    b: int,
    n: int,
    *,
    noise: float = 1.0,
    placement: Placement = Placement.BY_RECORD,
    restarts: bool = False,
) -> Event:
    return Event(
        mechanism=MatrixGaussian(noise_multiplier=noise, strategy="a", sensitivity_squared=1.0),
        sampling=CyclicPoisson(
            sampling_probability=q,
            cycle_length=b,
            steps_per_pass=n,
            placement=placement,
            noise_restarts_each_pass=restarts,
        ),
    )
