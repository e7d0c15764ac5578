"""How a script that is started again goes on with its run, where it has no checkpoint of it."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

from dpledger_client.errors import NotFound, Unavailable
from dpledger_client.recording.outbox import Opening
from dpledger_client.training import checkpoints
from dpledger_client.training.checkpoints import opening_of, spools_of, state_at, sync_what_was_left
from dpledger_client.training.distributed import Broadcast
from dpledger_client.training.reserved_runs import reserved_opening
from dpledger_client.transport import Transport

Resume = Literal["never", "allow", "must"]
RESUMES: Final = ("never", "allow", "must")
_ANEW: Final = -1  # what rank 0 says instead of a step: there is no such run
_FAILED: Final = -2


def opening(
    transport: Transport,
    registered: Mapping[str, Any],
    *,
    state: Mapping[str, Any] | None,
    resume: Resume,
    folder: Path,
    observed: bool,
    rank: int,
    world_size: int,
    broadcast: Broadcast | None,
    reserved: str | Mapping[str, Any] | None = None,
) -> Opening:
    """How a process comes to its run: from a checkpoint, after its last step, or as a new one.

    Args:
        transport: to the service.
        registered: the run, as it is registered if it is new.
        state: of a checkpoint.
        resume: without one, whether a run of that name goes on.
        folder: of the spools.
        observed: the service need not be there.
        rank: of this process.
        world_size: of the job.
        broadcast: by which the other ranks hear rank 0.
        reserved: the request by which the run was registered before the job began.

    Raises:
        ValueError: an argument is out of range, or belongs to another run or dataset.
        DPLedgerError: as `resumed`, and `checkpoints.resumed`.
    """
    if resume not in RESUMES:
        raise ValueError(f"resume must be one of {', '.join(RESUMES)}.")
    if reserved is not None:
        return reserved_opening(
            transport,
            reserved,
            registered,
            state=state,
            resume=resume,
            observed=observed,
            rank=rank,
            world_size=world_size,
            broadcast=broadcast,
        )
    run, dataset = registered["name"], registered["dataset"]
    found = None
    if state is not None:
        found = checkpoints.resumed(
            transport, run, dataset, state, folder=folder, observed=observed, rank=rank
        )
    elif resume != "never":
        if world_size > 1 and broadcast is None:
            raise ValueError("Give broadcast=, so that all ranks resume at the same step.")
        found = resumed(
            transport,
            run,
            dataset,
            must=resume == "must",
            folder=folder,
            observed=observed,
            rank=rank,
            broadcast=broadcast,
        )
    return replace(found or Opening(run=registered), schedule=registered.get("plan"))


def resumed(
    transport: Transport,
    run: str,
    dataset: str,
    *,
    must: bool,
    folder: Path,
    observed: bool,
    rank: int,
    broadcast: Broadcast | None,
) -> Opening | None:
    """A new branch after the last step of a run; None where there is no such run.

    What earlier processes left in the spools of this machine is sent first.

    Args:
        transport: to the service.
        run: its name.
        dataset: of the run.
        must: whether there has to be one.
        folder: of the spools.
        observed: the service need not be there; then the spools say where the run is.
        rank: of this process; rank 0 alone asks.
        broadcast: by which the other ranks hear it.

    Raises:
        NotFound: there is none, and must be.
        Conflict: a process of this machine still writes to it.
        ValueError: it is of another dataset.
        DPLedgerError: rank 0 failed; or the service refused something, or is away.
    """
    if broadcast is None:
        return _asked(transport, run, dataset, must=must, folder=folder, observed=observed)
    if rank:
        step = broadcast(0)
        if step == _FAILED:
            raise Unavailable({"title": "Rank 0 could not go on with the run"}, 0)
        return None if step == _ANEW else opening_of(state_at(run, dataset, next_step=step))
    said = _FAILED
    try:
        found = _asked(transport, run, dataset, must=must, folder=folder, observed=observed)
        said = _ANEW if found is None else found.first_step
    finally:
        broadcast(said)
    return found


def _asked(
    transport: Transport, run: str, dataset: str, *, must: bool, folder: Path, observed: bool
) -> Opening | None:
    try:
        sync_what_was_left(transport, run, folder)
        found = transport.get(f"/v1/runs/{run}", retries=0 if observed else None)
    except NotFound:
        if must:
            raise
        return None
    except Unavailable:
        if not observed:
            raise
        return _by_spools(run, dataset, folder)
    _require_dataset(run, found["dataset"], dataset)
    latest = found["branches"][-1]
    step, branch = latest["next_step"], latest["name"]
    return opening_of(state_at(run, dataset, next_step=step, branch=branch))


def _by_spools(run: str, dataset: str, folder: Path) -> Opening | None:
    """After the last step that a process of this machine took of a run."""
    known = list(spools_of(run, folder))
    if not known:
        return None
    _, contents = max(known, key=lambda one: one[0].stat().st_mtime_ns)
    left = Opening.of(contents.header)
    _require_dataset(run, left.run["dataset"], dataset)
    state = state_at(run, dataset, next_step=contents.next_step, branch=left.branch_name)
    return opening_of(state)


def _require_dataset(run: str, found: Any, dataset: str) -> None:
    if found != dataset:
        raise ValueError(f"run {run} is of dataset {found}, not of {dataset}.")
