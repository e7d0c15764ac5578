"""The calls of a client about steps that have not happened: their guarantee, and calibration."""

from collections.abc import Mapping, Sequence

from dpledger_client.answers.bounds import Bound
from dpledger_client.answers.plans import Plan
from dpledger_client.transport import Transport
from dpledger_client.wire_types import NeighboringRelation, Release, SolveFor, TheoremStatus


class PlanningCalls:
    """The calls of a `Client` that plan."""

    _transport: Transport

    def plan(
        self,
        *,
        neighboring_relation: NeighboringRelation,
        events: Sequence[Mapping[str, object]],
        delta: float,
        dataset_size: int | None = None,
        accept: Sequence[TheoremStatus] | None = None,
        release: Release | None = None,
        assumptions: Mapping[str, object] | None = None,
        as_envelope: bool | None = None,
        rows_per_unit: int | None = None,
    ) -> Plan:
        """The guarantee of events that have not happened; nothing is recorded.

        Args:
            neighboring_relation: add_or_remove_one, replace_one or replace_special.
            events: each made by `event(...)`.
            delta: in (0, 1).
            dataset_size: records, where the sampling needs it.
            accept: as for `create_dataset`.
            release: as for `start_run`; by default every_step.
            assumptions: as for `start_run`.
            as_envelope: answer under "envelope" the budget that holds exactly these steps.
            rows_per_unit: answer under "unit" what a person with up to so many rows loses.

        Raises:
            UnsupportedEvent: no accepted theorem bounds an event.
        """
        body = {
            "neighboring_relation": neighboring_relation, "events": list(events), "delta": delta,
            "dataset_size": dataset_size, "accept": accept, "release": release,
            "assumptions": assumptions, "as_envelope": as_envelope, "rows_per_unit": rows_per_unit,
        }  # fmt: skip
        return Plan(self._transport.post("/v1/plan", body))

    def calibrate(
        self,
        *,
        solve_for: SolveFor,
        epsilon: float,
        delta: float,
        neighboring_relation: NeighboringRelation,
        events: Sequence[Mapping[str, object]],
        dataset_size: int | None = None,
        accept: Sequence[TheoremStatus] | None = None,
        as_envelope: bool | None = None,
    ) -> Plan:
        """The parameter with which events have at most a target epsilon; nothing is recorded.

        Args:
            solve_for: noise_multiplier (the least), steps (the most) or sampling_probability (the
                largest). It is in `plan.solved.value`.
            epsilon: the target, in nats.
            delta: in (0, 1).
            neighboring_relation: add_or_remove_one, replace_one or replace_special.
            events: each made by `event(...)`. The parameter that is solved for is left out, or
                replaced where an event has it.
            dataset_size: records, where the sampling needs it.
            accept: as for `create_dataset`.
            as_envelope: answer under "envelope" the budget that holds exactly the solved steps.

        Raises:
            UnsupportedEvent: no accepted theorem bounds an event.
            InvalidRequest: no value of the parameter meets the target.
        """
        body = {
            "solve_for": solve_for, "epsilon": epsilon, "delta": delta,
            "neighboring_relation": neighboring_relation,
            "events": [_open(one, solve_for) for one in events], "dataset_size": dataset_size,
            "accept": accept, "as_envelope": as_envelope,
        }  # fmt: skip
        return Plan(self._transport.post("/v1/plan", body))

    def keep_strategy(self, strategy: Mapping[str, object]) -> str:
        """Keep a strategy of correlated noise; the digest that `matrix_gaussian` takes."""
        return str(self._transport.post("/v1/strategies", {"strategy": strategy})["digest"])

    def bounds(self) -> list[Bound]:
        """Every theorem the service knows."""
        return list(map(Bound, self._transport.get("/v1/bounds")["bounds"]))


def _open(event: Mapping[str, object], parameter: SolveFor) -> dict[str, object]:
    """An event without the parameter that is solved for."""
    found: dict[str, object] = {}
    for name, value in event.items():
        if isinstance(value, Mapping):
            value = {key: one for key, one in value.items() if key != parameter}
        if name != parameter:
            found[name] = value
    return found
