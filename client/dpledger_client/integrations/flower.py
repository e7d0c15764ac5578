"""Flower: its privacy accountant kept by a ledger, where one record is one client.

    strategy = DifferentialPrivacyServerSideFixedClipping(
        FedAvg(), 1.0, 0.5, 10, accountant=LedgerAccountant(run, delta=1e-5)
    )

or `LedgerStrategy(strategy, run, delta=1e-5)` around a strategy that has no accountant yet.

What a round is. Flower divides the sum of the clipped updates by the number m of replies and adds
noise of deviation noise_multiplier * clipping_norm / m: on the scale of the sum it is the ledger's
noise_multiplier. A client that leaves makes room for another, or changes m, and moves the mean by
up to twice clipping_norm / m. So rounds are recorded as `fixed_size`, which counts that, and never
as `full` or `unknown`, which under add_or_remove_one count half of it.

Who joins a round is told unless the trainer says otherwise: a round counts as if every client had
joined. A round without all replies releases nothing, so those that do release have a sample of the
clients that answer, and these may be few: a rate of m / dataset_size then promises too much.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.exception import AggregationError
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    FedProx,
)
from flwr.serverapp.strategy.strategy import Strategy

from dpledger_client.integrations.flower_accountant import LedgerAccountant
from dpledger_client.schemas import event, fixed_size, gaussian
from dpledger_client.training.budget_fit import DatasetBudget, check_budget
from dpledger_client.training.run import Run

__all__ = ["LedgerAccountant", "LedgerStrategy"]

_UNIFORM: Final = (FedAvg.configure_train, FedProx.configure_train)  # random.sample of the nodes


class LedgerStrategy(Strategy):
    """A strategy with fixed clipping, whose every released round is in the ledger.

    An update that is not finite raises Flower's `AggregationError`, and the round releases nothing.
    A round that the budget refuses raises Flower's `PrivacyBudgetExhausted` before its clients are
    asked; `arrays` is then the model of the last round that was released.

    Args:
        strategy: DifferentialPrivacyServerSideFixedClipping or its client-side sister. Under the
            latter clients are trusted to clip.
        run: its dataset's records are the clients.
        delta: at which epsilon is reported, in (0, 1).
        every_client_answers: the trainer says that all `dataset_size` clients are connected and
            would answer in any round, and that the sampled clients stay secret. Rounds then count
            at the rate m / dataset_size. A round that shows otherwise raises and releases nothing.
        rounds: that training has; with it, it is printed how many of them the budgets admit.
        dataset_budget: "this plan" makes the dataset's budget an envelope of these rounds if it
            does not admit all of them as it is, as `dpledger_client.check_budget` does.

    Raises:
        ValueError: the strategy is of another kind, has no noise, has another accountant, does not
            aggregate as FedAvg does, or does not sample uniformly though a rate was asked for.
        BudgetExhausted, DPLedgerError: the rounds cannot be made the budget.
    """

    def __init__(
        self,
        strategy: Strategy,
        run: Run,
        *,
        delta: float,
        every_client_answers: bool = False,
        rounds: int | None = None,
        dataset_budget: DatasetBudget | None = None,
    ) -> None:
        self.strategy: Final = _accounted(strategy, LedgerAccountant(run, delta=delta))
        self.accountant: Final[LedgerAccountant] = self.strategy.accountant
        self.arrays: ArrayRecord | None = None
        self.every_client_answers: Final = every_client_answers
        if every_client_answers and type(self.strategy.strategy).configure_train not in _UNIFORM:
            name = type(self.strategy.strategy).__name__
            raise ValueError(f"{name} is not known to sample clients uniformly.")
        clients = self.accountant.config.population_size
        size = self.strategy.num_sampled_clients if every_client_answers else clients
        round_of = event(
            mechanism=gaussian(noise_multiplier=self.strategy.noise_multiplier),
            sampling=fixed_size(batch_size=size),
            steps=rounds or 1,
        )
        known = rounds is not None
        check_budget(run, [round_of], length_known=known, dataset_budget=dataset_budget)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Choose the clients of a round, once the ledger admits it."""
        self.arrays = arrays
        watched: Any = _Watched(grid, self.accountant) if self.every_client_answers else grid
        messages: Iterable[Message] = self.strategy.configure_train(
            server_round, arrays, config, watched
        )
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Clip, average and add noise; the round is in the ledger before the model is returned."""
        messages = list(replies)
        if self.every_client_answers and not self._all_answered(messages):
            raise AggregationError("A client did not answer, although every_client_answers is set.")
        if not all(map(_is_finite, messages)):
            raise AggregationError(
                "An update is not finite, and Flower does not clip such updates."
            )
        arrays, metrics = self.strategy.aggregate_train(server_round, messages)
        if arrays is not None:
            self.arrays = arrays
        return arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the strategy does."""
        messages: Iterable[Message] = self.strategy.configure_evaluate(
            server_round, arrays, config, grid
        )
        return messages

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """As the strategy does. Metrics have no noise, and no epsilon covers them."""
        metrics: MetricRecord | None = self.strategy.aggregate_evaluate(server_round, replies)
        return metrics

    def summary(self) -> None:
        """As the strategy does."""
        self.strategy.summary()

    def state_dict(self) -> dict[str, object]:
        """For a checkpoint, as JSON: the accountant's. The model is the trainer's to keep."""
        return self.accountant.state_dict()

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on from a checkpoint; raises what `LedgerAccountant.load_state_dict` raises."""
        self.accountant.load_state_dict(state)

    def _all_answered(self, messages: list[Message]) -> bool:
        answered = sum(not message.has_error() for message in messages)
        return answered == len(messages) == self.strategy.num_sampled_clients


class _Watched:
    """A grid that tells the accountant how many nodes a sample is drawn from."""

    def __init__(self, grid: Grid, accountant: LedgerAccountant) -> None:
        self._grid = grid
        self._accountant = accountant

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def get_node_ids(self) -> Iterable[int]:
        nodes = list(self._grid.get_node_ids())
        self._accountant.sampled_from = len(nodes)
        return nodes


def _is_finite(message: Message) -> bool:
    # Of an update with NaN the norm is NaN, which is not above the limit: the rest stays as it is.
    records = () if message.has_error() else message.content.array_records.values()
    return all(np.isfinite(one).all() for record in records for one in record.to_numpy_ndarrays())


def _accounted(strategy: Any, accountant: LedgerAccountant) -> Any:
    kind = type(strategy)  # exactly: a subclass may clip or add noise in another way
    if kind not in (
        DifferentialPrivacyServerSideFixedClipping,
        DifferentialPrivacyClientSideFixedClipping,
    ):
        raise ValueError(_why_not(kind))
    if strategy.accountant is not None:
        raise ValueError("The strategy already has an accountant.")
    # Made anew, so that Flower's own checks of an accounted strategy are passed.
    return kind(
        strategy.strategy,
        strategy.noise_multiplier,
        strategy.clipping_norm,
        strategy.num_sampled_clients,
        accountant=accountant,
    )


def _why_not(kind: type) -> str:
    name = f"{kind.__module__}.{kind.__qualname__}"
    if "AdaptiveClipping" in kind.__qualname__:
        return (
            f"{name} scales its noise to the norm that it clips to in the next round, so that the "
            "noise multiplier of a round is not the one it states, and has no lower limit."
        )
    return f"{name} is not one of flwr.serverapp.strategy's two strategies with fixed clipping."
