"""JAX-Privacy: the steps of a `DPExecutionPlan` in a ledger.

    plan = with_secret_key(plan)
    ledger = Ledger(run, plan)
    for indices in ledger.batches(num_examples, rng):  # as of plan.batch_selection_strategy

What is recorded is read from the parts of the plan that run: noise and norm bound from its
privatizer and its clipping, sampling from its batch selection. `plan.dp_event` is a word about
them: it counts where it says less noise. Where noise is correlated between steps, the plan is one
pass. A plan whose noise is drawn from a seed of at most 32 bits is refused.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final, NoReturn
from weakref import WeakKeyDictionary

import numpy as np
from jax_privacy import batch_selection
from jax_privacy.batch_selection import PartitionType

from dpledger_client import schemas
from dpledger_client.integrations.dp_event_checks import UntranslatableEvent, events_of
from dpledger_client.integrations.jax_noise import (
    PlanNoise,
    UnsupportedPlan,
    correlated_sampling,
    noise_of,
    plan_count,
    refuse_plan,
    with_secret_key,
)
from dpledger_client.training.budget_fit import DatasetBudget, check_budget
from dpledger_client.training.run import Run

try:
    from jax_privacy.execution_plan import DPExecutionPlan
except ModuleNotFoundError:  # where it was before JAX-Privacy 2.2
    from jax_privacy.experimental.execution_plan import DPExecutionPlan

__all__ = ["Ledger", "UnsupportedPlan", "plan_events", "with_secret_key"]

_NOISE_OFF: Final = 1e-12  # relative: what two ways of computing one noise multiplier differ by
KeepStrategy = Callable[[Mapping[str, Any]], str]

# The branch and the steps into a pass that a plan has begun and not ended, by run. Another plan
# must not go on with that pass: a record of it may come again.
_begun: WeakKeyDictionary[Run, tuple[str, int]] = WeakKeyDictionary()
# Keys of correlated noise from which a plan has begun to draw: a second time it is the same noise.
_drawn_from: set[bytes] = set()


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
        noise = _noise(plan)
        self._key: Final[bytes] = noise.key
        self._require_fresh_noise()
        event = _event(plan, noise, run.dataset_size, relation, partial(_keep_strategy, run))
        self.run: Final = run
        self.plan: Final = plan
        self.steps_left: int = event["steps"]
        self._mechanism: Final[dict[str, Any]] = event["mechanism"]
        self._sampling: Final[dict[str, Any]] = event["sampling"]
        self._length: Final[int] = event["sampling"].get("steps_per_pass", 0)
        self._exact: Final[bool] = not noise.strategy and _is_exact(
            plan.batch_selection_strategy, event["sampling"]
        )
        self._begun = False
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
        if not self._begun:
            self._require_fresh_noise()
        # Not as the run declares by now: other plans may have been declared since.
        self.run.step(
            mechanism=self._mechanism,
            sampling=self._sampling,
            size=size if self._exact else None,
        )
        self.steps_left -= 1
        self._begun = True
        if self._key:
            _drawn_from.add(self._key)
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

    def _require_fresh_noise(self) -> None:
        if self._key in _drawn_from:
            raise UnsupportedPlan(
                "Correlated noise of this key was begun before in this process, and would be drawn "
                "again: use with_secret_key(plan)."
            )

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
    plan: DPExecutionPlan,
    *,
    dataset_size: int | None = None,
    relation: str | None = None,
    keep_strategy: KeepStrategy | None = None,
) -> list[dict[str, Any]]:
    """What a plan will do, as ledger events.

    Args:
        plan: made for the library's privatizers and batch selections.
        dataset_size: records; needed where batches are of a fixed size, truncated or in a cycle.
        relation: the dataset's neighbouring relation; needed by cycles.
        keep_strategy: of a `Client`; needed where noise is correlated between steps.

    Returns:
        One event of all its steps.

    Raises:
        UnsupportedPlan: the plan has no equal in the ledger.
    """
    return [_event(plan, _noise(plan), dataset_size, relation, keep_strategy)]


def _noise(plan: DPExecutionPlan) -> PlanNoise:
    strategy = plan.batch_selection_strategy
    if type(strategy) not in (*_STRATEGIES, batch_selection.BMinSepSampling):
        _no_equal(strategy)
    steps = plan_count("iterations", strategy.iterations)
    return noise_of(plan.noise_addition_transform, steps=steps)


def _event(
    plan: DPExecutionPlan,
    noise: PlanNoise,
    dataset_size: int | None,
    relation: str | None,
    keep_strategy: KeepStrategy | None,
) -> dict[str, Any]:
    strategy = plan.batch_selection_strategy
    steps = plan_count("iterations", strategy.iterations)
    if noise.strategy is not None:
        sampling = correlated_sampling(strategy, steps=steps, bands=noise.bands, relation=relation)
    elif type(strategy) in _STRATEGIES:
        sampling = _STRATEGIES[type(strategy)](strategy, dataset_size, relation)
    else:
        _no_equal(strategy)
    multiplier = _noise_multiplier(plan, noise, dataset_size, relation)
    if not multiplier:
        mechanism = schemas.no_noise()
    elif noise.strategy is None:
        mechanism = schemas.gaussian(noise_multiplier=multiplier)
    elif keep_strategy is None:
        refuse_plan("Noise that is correlated between steps needs keep_strategy of a Client.")
    else:
        digest = keep_strategy(noise.strategy)
        mechanism = schemas.matrix_gaussian(noise_multiplier=multiplier, strategy=digest)
    return schemas.event(mechanism=mechanism, sampling=sampling, steps=steps)


def _keep_strategy(run: Run, strategy: Mapping[str, Any]) -> str:
    return str(run._transport.post("/v1/strategies", {"strategy": strategy})["digest"])


def _no_equal(strategy: Any) -> NoReturn:
    refuse_plan(f"{type(strategy).__name__} has no equal among the ledger's samplings.")


def _is_exact(strategy: Any, sampling: Mapping[str, Any]) -> bool:
    """Whether batches have the sizes that are recorded; for a cycle what costs more is."""
    cycles = getattr(strategy, "cycle_length", 1) > 1
    return not cycles or sampling["kind"] == "balls_and_bins"


def _cyclic_poisson(
    strategy: batch_selection.CyclicPoissonSampling, dataset_size: int | None, relation: str | None
) -> dict[str, Any]:
    length = plan_count("cycle_length", strategy.cycle_length)
    chance, most = float(strategy.sampling_prob), strategy.truncated_batch_size
    if not 0 < chance <= 1:
        refuse_plan("sampling_prob must be in (0, 1].")
    if length > 1:
        if most is not None:
            refuse_plan(
                "A cycle of truncated batches has no equal: its groups are smaller datasets."
            )
        return _cycle(strategy, length, chance, dataset_size, relation)
    if most is not None:
        if dataset_size is None:
            refuse_plan("Truncated batches need dataset_size.")
        most = plan_count("truncated_batch_size", most)
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
        refuse_plan("A cycle of EQUAL_SPLIT groups needs a replace relation: say relation.")
    if chance < 1:
        # A record is up for each step of its group, which are not told apart: it counts for all.
        return schemas.poisson(sampling_probability=chance)
    return _in_turn(length, by_itself, dataset_size, relation)


def _balls_in_bins(
    strategy: batch_selection.BallsInBinsSampling, dataset_size: int | None, relation: str | None
) -> dict[str, Any]:
    length = plan_count("cycle_length", strategy.cycle_length)
    if plan_count("iterations", strategy.iterations) <= length:
        return schemas.balls_and_bins(steps_per_pass=length)
    # The bins are drawn once: from the second cycle on they hide nothing.
    return _in_turn(length, True, dataset_size, relation)


def _in_turn(
    length: int, by_itself: bool, dataset_size: int | None, relation: str | None
) -> dict[str, Any]:
    if dataset_size is None:
        refuse_plan("A cycle needs dataset_size.")
    if relation == "add_or_remove_one" and by_itself:
        # No pass is bounded there; a record that found its group by itself moves no other one, so
        # that each step costs at most what it does with all records.
        return schemas.full()
    return schemas.cyclic(batch_size=max(1, dataset_size // length), steps_per_pass=length)


def _fixed(
    strategy: batch_selection.FixedBatchSampling, dataset_size: int | None, _: str | None
) -> dict[str, Any]:
    if dataset_size is None:
        refuse_plan("Batches of a fixed size need dataset_size.")
    size = plan_count("batch_size", strategy.batch_size)
    if strategy.replace:
        return schemas.with_replacement(batch_size=size)
    if size > dataset_size:
        refuse_plan("batch_size is above dataset_size.")
    return schemas.fixed_size(batch_size=size)


_STRATEGIES: Final[dict[type, Any]] = {
    batch_selection.CyclicPoissonSampling: _cyclic_poisson,
    batch_selection.BallsInBinsSampling: _balls_in_bins,
    batch_selection.FixedBatchSampling: _fixed,
}
_OF_KNOWN_SIZE: Final = ("truncated_poisson", "fixed_size", "with_replacement", "cyclic")


def _noise_multiplier(
    plan: DPExecutionPlan, noise: PlanNoise, dataset_size: int | None, relation: str | None
) -> float:
    runs = noise.deviation / _norm_bound(plan)
    # An event speaks of columns of norm 1.
    told = _told(plan, dataset_size, relation) * noise.column_norm
    # The multiplier that was asked for, unless less noise than that is drawn.
    found = told if told <= runs * (1 + _NOISE_OFF) else runs
    if math.isinf(found) or found != found:
        refuse_plan("The noise multiplier is not finite.")
    return found if noise.strategy is None else min(found, math.nextafter(runs, 0.0))


def _norm_bound(plan: DPExecutionPlan) -> float:
    """What the sum of clipped gradients moves by for one record, as the plan clips it."""
    try:
        bound = float(plan.clipped_grad(lambda: None).l2_norm_bound)
    except (AttributeError, TypeError, ValueError):
        refuse_plan("The norm bound of plan.clipped_grad cannot be read.")
    if not 0 < bound < math.inf:
        refuse_plan("The norm bound of plan.clipped_grad is not positive and finite.")
    return bound


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
