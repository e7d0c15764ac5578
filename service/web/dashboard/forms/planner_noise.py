"""Correlated noise and private selection, as the planner asks about them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, assert_never

from accounting import correlated_noise as core
from accounting.events import CyclicPoisson, MinSeparation
from accounting.work_limit import TooMuchWorkError, limit_work
from service import formatting
from service.errors import InvalidRequestError
from service.schemas.correlated.steps import PASS_MAX
from service.schemas.correlated.strategies import (
    IdentityStrategy,
    StrategyMessage,
    ToeplitzStrategy,
    TreeStrategy,
    sampling_in,
    strategy_content,
    strategy_digest,
    to_strategy,
)

BANDED: Final = "banded"
STRATEGIES: Final[Mapping[str, str]] = {
    BANDED: "Correlated Gaussian, in bands",
    "tree": "Correlated Gaussian, binary tree",
    "identity": "Independent Gaussian, one pass",
}
# Laws of the number of trials: the title, and the shape of the negative binomial; None is Poisson.
TRIALS: Final[Mapping[str, tuple[str, float | None]]] = {
    "logarithmic": ("Best trial, logarithmic number", 0.0),
    "geometric": ("Best trial, geometric number", 1.0),
    "poisson": ("Best trial, Poisson number", None),
}
_POINTS: Final = 60_000_000  # of the work of a sensitivity: up to .3 s of processor time


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrelatedPass:
    """One pass of correlated noise, as the planner's fields have it."""

    kind: str  # of STRATEGIES
    bands: int  # of the strategy, where it has any
    steps: int  # of the pass
    apart: int | None  # steps between two of a record; None where groups take turns by coins
    rate: float  # share of all records that join a step, on average
    by_record: bool  # whether a record's steps depend on it alone

    @property
    def groups(self) -> int:
        """How many groups of records take turns."""
        return min(self.bands, self.steps) if self.kind == BANDED else 1

    def strategy(self) -> StrategyMessage:
        """The strategy as the API takes it."""
        match self.kind:
            case "tree":
                return TreeStrategy(kind="tree")
            case "identity":
                return IdentityStrategy(kind="identity")
            case _:
                coefficients = _square_root(min(self.bands, self.steps))
                return ToeplitzStrategy(kind="toeplitz", coefficients=coefficients)

    def sampling(self) -> dict[str, Any]:
        """Who joins the steps, as the API takes it."""
        message: dict[str, Any] = {
            "placement": "by_record" if self.by_record else "by_slot",
            "steps_per_pass": self.steps,
        }
        if self.apart is not None:
            apart = min(self.apart, self.steps)
            return {"kind": "min_separation", "min_separation": apart, **message}
        rate = min(1.0, self.rate * self.groups)
        return {
            "kind": "cyclic_poisson",
            "sampling_probability": rate,
            "cycle_length": self.groups,
            **message,
        }

    def mechanism(self) -> dict[str, Any]:
        """The noise as the API takes it, with its sensitivity and without its multiplier.

        Raises:
            InvalidRequestError: the pass is too long, no rule serves the strategy under the
                sampling, or its sensitivity takes too much work here.
        """
        return {
            "kind": "matrix_gaussian",
            "strategy": strategy_digest(strategy_content(self.strategy())),
            "sensitivity_squared": self.squared(),
        }

    def squared(self) -> float:
        """The squared sensitivity of the strategy, or the largest squared norm of a column. Upper.

        Raises:
            InvalidRequestError: as `mechanism` does.
        """
        if self.steps > PASS_MAX:
            fault = f"a pass of correlated noise has at most {PASS_MAX:,} steps"
            raise InvalidRequestError("query.length", fault)
        return _squared_sensitivity(self)


@lru_cache(maxsize=256)
def _squared_sensitivity(asked: CorrelatedPass) -> float:
    strategy, sampling = to_strategy(asked.strategy()), sampling_in(asked.sampling())
    try:
        with limit_work(_POINTS):
            match sampling:
                case MinSeparation(steps_per_pass=n, min_separation=b, participations=k):
                    schema = core.Participation(steps=n, min_separation=b, participations=k)
                    return core.sensitivity_of(strategy, schema).squared
                case CyclicPoisson(steps_per_pass=n, cycle_length=groups):
                    return core.column_norm_of(strategy, steps=n, cycle_length=groups)
                case None:
                    raise InvalidRequestError("query.batch_size", "must leave records to draw")
                case _:
                    assert_never(sampling)
    except ValueError as error:
        fault = f"does not serve this sampling: {str(error).rstrip('.').lower()}"
        raise InvalidRequestError("query.mechanism", fault) from None
    except TooMuchWorkError:
        fault = "takes too much work here; a strategy in bands takes least"
        raise InvalidRequestError("query.mechanism", fault) from None


def _square_root(bands: int) -> list[float]:
    """The coefficients 1, 1/2, 3/8, ..., as the code to copy computes them."""
    found = [1.0]
    for i in range(1, bands):
        found.append(found[-1] * (2 * i - 1) / (2 * i))
    return found


def selection_of(base: dict[str, Any], law: str, mean: float) -> dict[str, Any]:
    """The event that releases the best of some trials alone.

    Args:
        base: one trial, as an event.
        law: of TRIALS.
        mean: trials on average.
    """
    shape = TRIALS[law][1]
    repetitions: dict[str, Any] = {"kind": "poisson", "mean": mean}
    if shape is not None:
        repetitions = {"kind": "truncated_negative_binomial", "shape": shape, "mean": mean}
    mechanism = {"kind": "selection", "repetitions": repetitions, "base": base}
    return {"mechanism": mechanism, "sampling": {"kind": "full"}, "steps": 1}


def pass_words(asked: CorrelatedPass, noise_multiplier: float) -> list[str]:
    """What a pass of correlated noise is, in sentences without numbers that are bounds."""
    told = [
        f"The {asked.steps:,} steps are one pass of correlated noise, charged with its first step: "
        "a pass that stops early costs as much."
    ]
    root = math.sqrt(asked.squared())
    each = f"noise multiplier {formatting.down(noise_multiplier / root)}"
    if asked.apart is None:
        turns = -(-asked.steps // asked.groups)
        groups = f"{asked.groups:,} groups take turns" if asked.groups > 1 else "all may join"
        told.append(
            f"Records are sampled by coins, and {groups}: the pass costs as much as {turns:,} "
            f"Poisson steps with {each}."
        )
    else:
        apart = min(asked.apart, asked.steps)
        most = -(-asked.steps // apart)
        joined = "one step" if most == 1 else f"{most:,} steps, {apart:,} apart"
        told.append(
            f"A record takes part in at most {joined}, and moves the pass by at most "
            f"{formatting.up(root)} norm bounds: as much as one release with {each}."
        )
    return told
