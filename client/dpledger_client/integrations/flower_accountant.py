"""Flower's privacy accountant, kept by a ledger; `integrations.flower` says what a round is."""

import math
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from flwr.serverapp import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyConfig,
    PrivacySpent,
    SamplingMethod,
)
from flwr.serverapp.exception import PrivacyBudgetExhausted

from dpledger_client.errors import BudgetExhausted, DPLedgerError
from dpledger_client.schemas import fixed_size, gaussian
from dpledger_client.training.run import Run

SCHEMA_VERSION: Final = 1
BACKEND: Final = "dpledger"
# Flower asks `would_exceed` only if there is a limit. The ledger has its own; this never binds.
ASK_ALWAYS: Final = sys.float_info.max


class LedgerAccountant:
    """Flower's `PrivacyAccountant`, which composes in a ledger. Give it to a strategy.

    Flower asks it before clients are asked to train, and tells it before a model is released.

    Args:
        run: its dataset's records are the clients, `dataset_size` of them.
        delta: at which epsilon is reported, in (0, 1).

    Raises:
        ValueError: the run does not know the dataset's size, or delta is out of range.
    """

    def __init__(self, run: Run, *, delta: float) -> None:
        if run.dataset_size is None:
            raise ValueError("The number of clients is not known: give start_run dataset_size.")
        self.run: Final = run
        self.sampled_from: int | None = None  # nodes of a uniform, secret sample; None: it is told
        self._compositions: list[tuple[GaussianPrivacyEvent, int]] = []
        # The one pair of relation and sampling that Flower takes; the ledger knows its dataset's.
        self._config = PrivacyConfig(
            target_delta=delta,
            population_size=run.dataset_size,
            neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
            sampling_method=SamplingMethod.NO_AMPLIFICATION,
            max_epsilon=ASK_ALWAYS,
        )

    @property
    def config(self) -> PrivacyConfig:
        """What Flower's strategies read; its relation is Flower's label, not the dataset's."""
        return self._config

    @property
    def num_releases(self) -> int:
        """Rounds whose model was released."""
        return sum(count for _, count in self._compositions)

    def would_exceed(
        self, event: GaussianPrivacyEvent, max_epsilon: float | None = None, count: int = 1
    ) -> bool:
        """Whether the ledger refuses the next rounds. Nothing is counted.

        Raises:
            ValueError: a limit of one's own was given; the budget is the ledger's.
            Unavailable, DPLedgerError: the ledger did not answer, or refused for another reason.
        """
        if max_epsilon is not None:
            raise ValueError("max_epsilon cannot be given: the budget of the ledger decides.")
        self.run.declare(**self._step(event))
        try:
            self.run.admit(count)
        except BudgetExhausted:
            return True
        return False

    def compose(self, event: GaussianPrivacyEvent, count: int = 1) -> None:
        """Count rounds whose model is about to be released. When it raises, do not release it.

        Raises:
            PrivacyBudgetExhausted: they do not fit in a budget. Nothing was counted.
            ValueError: the event is of another number of clients.
            Unavailable, DPLedgerError: as `Run.step` does.
        """
        try:
            self.run.step(**self._step(event), steps=count)
        except BudgetExhausted as refusal:
            raise PrivacyBudgetExhausted(str(refusal)) from refusal
        self._compositions.append((event, count))

    def get_epsilon(self, delta: float) -> float:
        """Epsilon of the run, nats, upper. Infinite when no accepted bound is finite.

        Raises:
            DPLedgerError: the service is away, or refused the question.
        """
        return _upper(self.run.guarantee(delta=delta)["epsilon"], otherwise=math.inf)

    def get_delta(self, epsilon: float) -> float:
        """Delta of the run at an epsilon in nats, upper; 1 when there is no bound.

        Raises:
            DPLedgerError: the service is away, or refused the question.
        """
        return _upper(self.run.guarantee(epsilon=epsilon)["delta"], otherwise=1.0)

    def get_privacy_spent(self, delta: float | None = None) -> PrivacySpent:
        """What the run has spent. Flower logs it each round.

        Epsilon is infinite while the service is away: rounds that it does not know count, too.
        """
        delta = self._config.target_delta if delta is None else delta
        epsilon = math.inf
        if self.run.trouble is None:  # else the round would wait for a service that is away
            with suppress(DPLedgerError):
                epsilon = self.get_epsilon(delta)
        return PrivacySpent(
            epsilon=epsilon,
            delta=delta,
            num_releases=self.num_releases,
            accounting_method=BACKEND,
        )

    def state_dict(self) -> dict[str, object]:
        """For a checkpoint, as JSON: Flower's own form, and the state of the run."""
        config = self._config
        return {
            "schema_version": SCHEMA_VERSION,
            "backend": BACKEND,
            "config": {
                "target_delta": config.target_delta,
                "population_size": config.population_size,
                "neighboring_relation": config.neighboring_relation.value,
                "sampling_method": config.sampling_method.value,
                "max_epsilon": None,
            },
            "compositions": [
                {"event": _fields(event), "count": count} for event, count in self._compositions
            ],
            "run": self.run.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on from a checkpoint. Nothing is taken back: a rewind opens a branch.

        Raises:
            ValueError: it is no state of this accountant's run and configuration.
            DPLedgerError: the branch could not be opened.
        """
        if (state.get("schema_version"), state.get("backend")) != (SCHEMA_VERSION, BACKEND):
            raise ValueError("state must be what LedgerAccountant.state_dict() returned.")
        if state.get("config") != self.state_dict()["config"]:
            raise ValueError("state has another delta or number of clients.")
        run, compositions = state.get("run"), state.get("compositions")
        if not isinstance(run, Mapping) or not isinstance(compositions, list):
            raise ValueError("state lacks the run or its compositions.")
        restored = [_composition(one) for one in compositions]
        # A process that goes on by `start_run(state=)` is there already, on a branch of its own.
        if run["run"] != self.run.name or run["next_step"] != self.run.next_step:
            self.run.load_state_dict(run)
        self._compositions = restored

    def _step(self, event: GaussianPrivacyEvent) -> dict[str, Any]:
        clients = self._config.population_size
        if event.population_size != clients:
            raise ValueError("The event is of another number of clients than the dataset.")
        if self.sampled_from is not None and self.sampled_from != clients:
            raise ValueError(
                f"{self.sampled_from} nodes are connected, and the dataset has {clients} clients: "
                "the sample is not one of all clients."
            )
        size = clients if self.sampled_from is None else event.sample_size
        return {
            "mechanism": gaussian(noise_multiplier=event.noise_multiplier),
            "sampling": fixed_size(batch_size=size),
        }


def _fields(event: GaussianPrivacyEvent) -> dict[str, float | int]:
    return {
        "noise_multiplier": event.noise_multiplier,
        "sample_size": event.sample_size,
        "population_size": event.population_size,
    }


def _composition(one: Any) -> tuple[GaussianPrivacyEvent, int]:
    try:
        event, count = GaussianPrivacyEvent(**one["event"]), one["count"]
    except (KeyError, TypeError) as error:
        raise ValueError("state has a composition that is none.") from error
    if type(count) is not int or count < 1:
        raise ValueError("state has a composition without a count of at least 1.")
    return event, count


def _upper(value: float | None, *, otherwise: float) -> float:
    return otherwise if value is None else float(value)
