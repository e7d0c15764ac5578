"""JAX-Privacy: the steps of a `DPExecutionPlan` in a ledger.

    ledger = Ledger(run, plan)
    for indices in ledger.batches(num_examples, rng):  # as of plan.batch_selection_strategy

What is recorded is read from the parts of the plan that run: noise and norm bound from its
privatizer and its clipping, sampling from its batch selection. `plan.dp_event` is a word about
them: it counts where it says less noise.
"""

import inspect
import math
from collections.abc import Iterator, Mapping
from typing import Any, Final, NoReturn
from weakref import WeakKeyDictionary

import numpy as np
from jax_privacy import batch_selection
from jax_privacy.batch_selection import PartitionType

from dpledger_client import schemas
from dpledger_client.budget_fit import DatasetBudget, check_budget
from dpledger_client.integrations.dp_event_checks import UntranslatableEvent, events_of
from dpledger_client.run import Run

try:
    from jax_privacy.execution_plan import DPExecutionPlan
except ModuleNotFoundError:  # where it was before JAX-Privacy 2.2
    from jax_privacy.experimental.execution_plan import DPExecutionPlan

__all__ = ["Ledger", "UnsupportedPlan", "plan_events"]

_NOISE_OFF: Final = 1e-12  # relative: what two ways of computing one noise multiplier differ by
_PRIVATIZERS: Final = "jax_privacy.noise_addition"
_MATRICES: Final = "jax_privacy.matrix_factorization"


class UnsupportedPlan(ValueError):  # noqa: N818 - as the client's other refusals
    """A part of a plan has no equal in the ledger, or cannot be read for certain."""


# The branch and the steps into a pass that a plan has begun and not ended, by run. Another plan
# must not go on with that pass: a record of it may come again.
_begun: WeakKeyDictionary[Run, tuple[str, int]] = WeakKeyDictionary()


class Ledger:
    """Counts the steps of a plan in a run, each before it is taken.

    Make one for each iterator of batches: a second iterator from the same seed would draw the same
    batches again.

    Args:
        run: from `start_run`.
        plan: what the training loop runs.
        relation: the dataset's neighbouring relation; needed by cycles.
        dataset_budget: "this plan" makes the dataset's budget an envelope of the plan if it does
            not admit all of it as it is, as `dpledger_client.check_budget` does. By default it is
            only printed how many steps fit.

    Raises:
        UnsupportedPlan: the plan has no equal in the ledger.
        BudgetExhausted, DPLedgerError: the plan cannot be made the budget.
    """

    def __init__(
        self,
        run: Run,
        plan: DPExecutionPlan,
        *,
        relation: str | None = None,
        dataset_budget: DatasetBudget | None = None,
    ) -> None:
        [event] = plan_events(plan, dataset_size=run.dataset_size, relation=relation)
        self.run: Final = run
        self.plan: Final = plan
        self.steps_left: int = event["steps"]
        self._mechanism: Final[dict[str, Any]] = event["mechanism"]
        self._sampling: Final[dict[str, Any]] = event["sampling"]
        self._length: Final[int] = event["sampling"].get("steps_per_pass", 0)
        self._exact: Final[bool] = _is_exact(plan.batch_selection_strategy, event["sampling"])
        self._drawn = False
        if self._length and self._into_pass():
            raise UnsupportedPlan(
                "The last plan of this run stopped within a pass: continue with its batches, or "
                "with a new branch."
            )
        run.declare(mechanism=event["mechanism"], sampling=event["sampling"])
        check_budget(run, [event], dataset_budget=dataset_budget)

    def step(self, *, size: int | None = None) -> None:
        """Count the next step. When it raises, do not take it.

        Args:
            size: how many records the batch really has, without padding. It stays in this process,
                and is tested where the sampling is told as it is, not as a costlier one.

        Raises:
            ValueError: the plan has no step left.
            BudgetExhausted, Unavailable, DPLedgerError: as `run.step` does.
        """
        if not self.steps_left:
            raise ValueError("The plan has no step left: make a Ledger for each iterator.")
        # Not as the run declares by now: other plans may have been declared since.
        self.run.step(
            mechanism=self._mechanism,
            sampling=self._sampling,
            size=size if self._exact else None,
        )
        self.steps_left -= 1
        if self._length:
            _begun[self.run] = (self.run.branch, (self._into_pass() + 1) % self._length)

    def batches(
        self, num_examples: int, rng: np.random.Generator | int | None = None
    ) -> Iterator[np.ndarray[Any, Any]]:
        """The batches of the plan's selection strategy, each counted before it is given.

        Args:
            num_examples: records that batches are drawn from.
            rng: a secret source of coins, as the strategy takes it.

        Raises:
            ValueError: batches were drawn before, or from another number of records than the
                dataset's where the ledger counts with that.
            BudgetExhausted, Unavailable, DPLedgerError: before a batch that must not be used.
        """
        if self._drawn:
            raise ValueError("Batches were already drawn: make a Ledger for each iterator.")
        if self._sampling["kind"] in _OF_KNOWN_SIZE and num_examples != self.run.dataset_size:
            raise ValueError("num_examples differs from dataset_size, which the sampling needs.")
        self._drawn = True
        return self._counted(num_examples, rng)

    def _into_pass(self) -> int:
        branch, steps = _begun.get(self.run, (self.run.branch, 0))
        return steps if branch == self.run.branch else 0

    def _counted(
        self, num_examples: int, rng: np.random.Generator | int | None
    ) -> Iterator[np.ndarray[Any, Any]]:
        for indices in self.plan.batch_selection_strategy.batch_iterator(num_examples, rng):
            self.step(size=len(indices))
            yield indices


def plan_events(
    plan: DPExecutionPlan, *, dataset_size: int | None = None, relation: str | None = None
) -> list[dict[str, Any]]:
    """What a plan will do, as ledger events.

    Args:
        plan: with noise that is independent from step to step.
        dataset_size: records; needed where batches are of a fixed size, truncated or in a cycle.
        relation: the dataset's neighbouring relation; needed by cycles.

    Returns:
        One event of all its steps.

    Raises:
        UnsupportedPlan: the plan has no equal in the ledger.
    """
    strategy = plan.batch_selection_strategy
    if type(strategy) not in _STRATEGIES:
        _refuse(f"{type(strategy).__name__} has no equal among the ledger's samplings.")
    sampling = _STRATEGIES[type(strategy)](strategy, dataset_size, relation)
    steps = _count("iterations", strategy.iterations)
    mechanism = _mechanism(plan, dataset_size, relation)
    return [schemas.event(mechanism=mechanism, sampling=sampling, steps=steps)]


def _is_exact(strategy: Any, sampling: Mapping[str, Any]) -> bool:
    """Whether batches have the sizes of what is recorded; a cycle is recorded as dearer ones."""
    cycles = getattr(strategy, "cycle_length", 1) > 1
    return not cycles or sampling["kind"] == "balls_and_bins"


def _refuse(reason: str) -> NoReturn:
    raise UnsupportedPlan(reason)


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        _refuse(f"{name} must be a whole number, at least 1.")
    return int(value)


def _cyclic_poisson(
    strategy: batch_selection.CyclicPoissonSampling, dataset_size: int | None, relation: str | None
) -> dict[str, Any]:
    length = _count("cycle_length", strategy.cycle_length)
    chance, most = float(strategy.sampling_prob), strategy.truncated_batch_size
    if not 0 < chance <= 1:
        _refuse("sampling_prob must be in (0, 1].")
    if length > 1:
        if most is not None:
            _refuse("A cycle of truncated batches has no equal: its groups are smaller datasets.")
        return _cycle(strategy, length, chance, dataset_size, relation)
    if most is not None:
        if dataset_size is None:
            _refuse("Truncated batches need dataset_size.")
        most = _count("truncated_batch_size", most)
        return schemas.truncated_poisson(sampling_probability=chance, max_batch_size=most)
    return schemas.poisson(sampling_probability=chance)


def _cycle(
    strategy: batch_selection.CyclicPoissonSampling,
    length: int,
    chance: float,
    dataset_size: int | None,
    relation: str | None,
) -> dict[str, Any]:
    by_itself = strategy.partition_type is PartitionType.INDEPENDENT
    if not by_itself and relation not in ("replace_one", "replace_special"):
        # A record more moves others into other groups.
        _refuse("A cycle of EQUAL_SPLIT groups needs a replace relation: say relation.")
    if chance < 1:
        # A record is up for each step of its group, which are not told apart: it counts for all.
        return schemas.poisson(sampling_probability=chance)
    return _in_turn(length, by_itself, dataset_size, relation)


def _balls_in_bins(
    strategy: batch_selection.BallsInBinsSampling, dataset_size: int | None, relation: str | None
) -> dict[str, Any]:
    length = _count("cycle_length", strategy.cycle_length)
    if _count("iterations", strategy.iterations) <= length:
        return schemas.balls_and_bins(steps_per_pass=length)
    # The bins are drawn once: from the second cycle on they hide nothing.
    return _in_turn(length, True, dataset_size, relation)


def _in_turn(
    length: int, by_itself: bool, dataset_size: int | None, relation: str | None
) -> dict[str, Any]:
    if dataset_size is None:
        _refuse("A cycle needs dataset_size.")
    if relation == "add_or_remove_one" and by_itself:
        # No pass is bounded there; a record that found its group by itself moves no other one, so
        # that each step costs at most what it does with all records.
        return schemas.full()
    return schemas.cyclic(batch_size=max(1, dataset_size // length), steps_per_pass=length)


def _fixed(
    strategy: batch_selection.FixedBatchSampling, dataset_size: int | None, _: str | None
) -> dict[str, Any]:
    if dataset_size is None:
        _refuse("Batches of a fixed size need dataset_size.")
    size = _count("batch_size", strategy.batch_size)
    if strategy.replace:
        return schemas.with_replacement(batch_size=size)
    if size > dataset_size:
        _refuse("batch_size is above dataset_size.")
    return schemas.fixed_size(batch_size=size)


_STRATEGIES: Final[dict[type, Any]] = {
    batch_selection.CyclicPoissonSampling: _cyclic_poisson,
    batch_selection.BallsInBinsSampling: _balls_in_bins,
    batch_selection.FixedBatchSampling: _fixed,
}
_OF_KNOWN_SIZE: Final = ("truncated_poisson", "fixed_size", "with_replacement", "cyclic")


def _mechanism(
    plan: DPExecutionPlan, dataset_size: int | None, relation: str | None
) -> dict[str, Any]:
    runs = _deviation(plan.noise_addition_transform) / _norm_bound(plan)
    told = _told(plan, dataset_size, relation)
    # The multiplier that was asked for, unless less noise than that is drawn.
    noise = told if told <= runs * (1 + _NOISE_OFF) else runs
    if math.isinf(noise) or noise != noise:
        _refuse("The noise multiplier is not finite.")
    return schemas.gaussian(noise_multiplier=noise) if noise else schemas.no_noise()


def _norm_bound(plan: DPExecutionPlan) -> float:
    """What the sum of clipped gradients moves by for one record, as the plan clips it."""
    try:
        bound = float(plan.clipped_grad(lambda: None).l2_norm_bound)
    except (AttributeError, TypeError, ValueError):
        _refuse("The norm bound of plan.clipped_grad cannot be read.")
    if not 0 < bound < math.inf:
        _refuse("The norm bound of plan.clipped_grad is not positive and finite.")
    return bound


def _deviation(privatizer: Any) -> float:
    """The standard deviation of the noise of a step, if it is independent of other steps'."""
    update: Any = getattr(privatizer, "update", None)
    if getattr(update, "__module__", None) != _PRIVATIZERS:
        _refuse("The noise of plan.noise_addition_transform cannot be read.")
    found = inspect.getclosurevars(update).nonlocals
    if not {"stddev", "noising_matrix"} <= set(found):
        _refuse("The noise of plan.noise_addition_transform cannot be read.")
    return float(found["stddev"]) * _scale(found["noising_matrix"])


def _scale(matrix: Any) -> float:
    """What multiplies the noise of each step, where the matrix does no more than that."""
    following: Any = getattr(matrix, "multiply_next", None)
    if getattr(following, "__module__", "").startswith(_MATRICES):
        if following.__qualname__ == "identity.<locals>.<lambda>":
            return 1.0
        inner: Any = inspect.getclosurevars(following).nonlocals.get("multiply_next_fn")
        if getattr(inner, "__qualname__", "") == "inverse_as_streaming_matrix.<locals>._next":
            bands: Any = inspect.getclosurevars(inner).nonlocals["coef"]
            if bands.shape == (1,):
                return 1.0 / abs(float(bands[0]))
    _refuse("Noise that is correlated between steps has no mechanism in the ledger.")


def _told(plan: DPExecutionPlan, dataset_size: int | None, relation: str | None) -> float:
    """The least noise multiplier that plan.dp_event speaks of; infinite if it speaks of none."""
    try:
        events = events_of(plan.dp_event, dataset_size=dataset_size, relation=relation)
    except UntranslatableEvent:
        return math.inf
    mechanisms = [one["mechanism"] for one in events]
    if any(one["kind"] == "none" for one in mechanisms):
        return 0.0
    return min((one["noise_multiplier"] for one in mechanisms if one["kind"] == "gaussian"),
               default=math.inf)  # fmt: skip
