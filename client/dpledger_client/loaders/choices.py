"""A loader that shuffles, and what can stand in its place at the same cost: four epsilons."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from dpledger_client import schemas
from dpledger_client.errors import UnsupportedEvent
from dpledger_client.loaders.secret_orders import shuffled
from dpledger_client.wire_types import NeighboringRelation, TheoremStatus

_ACCEPT: Final[tuple[TheoremStatus, ...]] = ("published", "declared", "derived")


class _Planner(Protocol):
    def plan(
        self,
        *,
        neighboring_relation: NeighboringRelation,
        events: Sequence[Mapping[str, object]],
        delta: float,
        dataset_size: int | None = None,
        accept: Sequence[TheoremStatus] | None = None,
    ) -> dict[str, Any]: ...


def compare_sampling(
    client: _Planner,
    *,
    dataset_size: int,
    batch_size: int,
    passes: float,
    noise_multiplier: float,
    neighboring_relation: NeighboringRelation,
    delta: float,
    accept: Sequence[TheoremStatus] = _ACCEPT,
) -> dict[str, dict[str, Any]]:
    """Epsilon of a shuffled loader and of three that cost the trainer as much, by four plans.

    Args:
        client: of the service; nothing is recorded.
        dataset_size: records, >= 1.
        batch_size: of each, or on average; in [1, dataset_size].
        passes: how often the training goes through the data, > 0.
        noise_multiplier: standard deviation of the noise / per-record norm bound, > 0.
        neighboring_relation: add_or_remove_one, replace_one or replace_special.
        delta: in (0, 1).
        accept: statuses of bounds that count; by default with `derived`, which leaving records
            out needs.

    Returns:
        By choice: `as_it_is` (all records are used), `leave_out` (as `shuffled` does),
        `balls_and_bins`, `poisson`. Each is an answer of `Client.plan` with its `event`; `epsilon`
        (nats, upper) is None, and `reason` says why, where no accepted bound is finite. Without
        `leave_out` if no batch remains.

    Raises:
        ValueError: a number is out of range.
        DPLedgerError: the service refused for another reason, or does not answer.
    """
    if not 0 < passes < math.inf:
        raise ValueError("passes must be positive and finite.")
    if not 1 <= batch_size <= dataset_size:
        raise ValueError("batch_size must lie in [1, dataset_size].")
    mechanism = schemas.gaussian(noise_multiplier=noise_multiplier)
    found = {}
    for name, (sampling, per_pass) in _choices(dataset_size, batch_size).items():
        steps = max(1, math.ceil(passes * per_pass * (1 - 1e-12)))
        event = schemas.event(mechanism=mechanism, sampling=sampling, steps=steps)
        try:
            answer = client.plan(
                neighboring_relation=neighboring_relation,
                dataset_size=dataset_size,
                delta=delta,
                accept=accept,
                events=[event],
            )
        except UnsupportedEvent as refusal:
            answer = {"epsilon": None, "epsilon_lower": None, "reason": str(refusal)}
        found[name] = answer | {"event": event}
    return found


def _choices(records: int, size: int) -> Mapping[str, tuple[dict[str, Any], float]]:
    """The samplings, and how many steps go once through the data."""
    whole = -(-records // size)
    made: dict[str, tuple[dict[str, Any], float]] = {
        "as_it_is": (schemas.shuffle(batch_size=size, steps_per_pass=whole), whole)
    }
    if size < records:
        batches = shuffled(records, size)
        made["leave_out"] = (batches.sampling, len(batches))
    made["balls_and_bins"] = (schemas.balls_and_bins(steps_per_pass=whole), whole)
    made["poisson"] = (schemas.poisson(expected_batch_size=size), records / size)
    return made
