"""How a training takes a run whose plan was reserved before its job began.

What starts jobs registers the run with its plan and its budget, and gives the job the text of that
request. Each process that takes the run is then one writer with the others: a step is taken by the
one whose charge the service had not before.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from dpledger_client.errors import Conflict, NotFound, Unavailable
from dpledger_client.names import name_of
from dpledger_client.recording.outbox import Opening
from dpledger_client.training.distributed import Broadcast
from dpledger_client.transport import Transport

_WANTED: Final = {"name": str, "writer": str, "dataset": str, "plan": list, "budget": Mapping}
_WITHOUT_PASSES: Final = ("poisson", "full")  # samplings whose steps do not depend on one another
_FAILED: Final = -1  # what rank 0 says instead of a step


def reserved_opening(
    transport: Transport,
    reserved: str | Mapping[str, Any],
    registered: Mapping[str, Any],
    *,
    state: Mapping[str, Any] | None,
    resume: str,
    observed: bool,
    rank: int,
    world_size: int,
    broadcast: Broadcast | None,
) -> Opening:
    """A run that was registered for this job; with `resume`, after its last recorded step.

    Args:
        transport: to the service.
        reserved: the request that registered it, or its JSON.
        registered: what the training script says of the run.
        state: of a checkpoint, which such a run does not take.
        resume: whether steps of an earlier process of the job are gone on from.
        observed: the service need not be there.
        rank: of this process; rank 0 alone asks.
        world_size: of the job.
        broadcast: by which the other ranks hear it.

    Raises:
        ValueError: the text is no such request, or the script says something else.
        Conflict: it was recorded in passes, or on another branch, and does not go on here.
        DPLedgerError: the service refused something, or is away.
    """
    run = _read(reserved)
    if observed or state is not None:
        raise ValueError("A reserved run is neither observed nor continued from a state.")
    for key, value in registered.items():
        if key not in ("writer", "labels") and run.get(key, "every_step") != value:
            raise ValueError(f"{key} is not that of the reserved run {run['name']}.")
    step = 0
    if resume != "never":
        if world_size > 1 and broadcast is None:
            raise ValueError("Give broadcast=, so that all ranks resume at the same step.")
        step = _heard(transport, run, rank, broadcast, must=resume == "must")
    return Opening(run=run, first_step=step, schedule=run["plan"], reserved=True)


def reserved_name(reserved: str | Mapping[str, Any]) -> str:
    """The name of the run that was registered for a job.

    Raises:
        ValueError: the text is no request that registers one.
    """
    return str(_read(reserved)["name"])


def _read(reserved: str | Mapping[str, Any]) -> dict[str, Any]:
    try:
        run = json.loads(reserved) if isinstance(reserved, str) else dict(reserved)
    except ValueError:
        raise ValueError("reserved is no JSON.") from None
    for name, kind in _WANTED.items():
        if not isinstance(run, dict) or not isinstance(run.get(name), kind):
            raise ValueError(f"reserved lacks {name}, or it has another type.")
    name_of(run["name"])
    return run


def _heard(
    transport: Transport,
    run: Mapping[str, Any],
    rank: int,
    broadcast: Broadcast | None,
    *,
    must: bool,
) -> int:
    """The next step of the run, which rank 0 asks for."""
    if broadcast is None:
        return _next_step(transport, run, must=must)
    if rank:
        step = broadcast(0)
        if step == _FAILED:
            raise Unavailable({"title": "Rank 0 could not go on with the run"}, 0)
        return step
    said = _FAILED
    try:
        said = _next_step(transport, run, must=must)
    finally:
        broadcast(said)
    return said


def _next_step(transport: Transport, run: Mapping[str, Any], *, must: bool) -> int:
    try:
        found = transport.get(f"/v1/runs/{run['name']}")
    except NotFound:
        if must:
            raise
        return 0
    if len(found["branches"]) > 1:
        raise Conflict(
            {"title": "The run went on on another branch; resume it without reserved"}, 0
        )
    step = int(found["branches"][0]["next_step"])
    kinds = {one.get("sampling", {"kind": "full"})["kind"] for one in run["plan"]}
    if step and (
        kinds.difference(_WITHOUT_PASSES) or run.get("release", "every_step") != "every_step"
    ):
        title = (
            "A pass or a hidden iterate does not go on in another process; resume without reserved"
        )
        raise Conflict({"title": title}, 0)
    return step
