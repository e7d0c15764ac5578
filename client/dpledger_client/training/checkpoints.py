"""What a checkpoint keeps of a run, and how training goes on from it.

Nothing is ever taken back: steps that ran after the checkpoint stay counted, and a process that
goes on from it writes to a branch of its own.
"""

import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from dpledger_client.errors import Conflict, Unavailable
from dpledger_client.names import name_of
from dpledger_client.recording.event_buffer import Span
from dpledger_client.recording.outbox import LOG, Opening, new_writer
from dpledger_client.recording.sync import Synced, sync_all
from dpledger_client.recording.write_ahead_file import SUFFIX, Contents, SpoolError, is_locked, read
from dpledger_client.transport import Transport

FORMAT: Final = "dpledger-run/1"
Order = Literal["fresh", "continued"]


def token(opening: Opening, next_step: int, unsent: list[Span]) -> dict[str, Any]:
    """The state of a run, as JSON: where it is, and which steps the service may not know yet."""
    dataset, branch = str(opening.run["dataset"]), opening.branch_name
    state = state_at(opening.run_name, dataset, next_step=next_step, branch=branch)
    return {**state, "unsent": [span.event() for span in unsent]}


def state_at(
    run: str, dataset: str, *, next_step: int, branch: str = "main", order: Order | None = None
) -> dict[str, Any]:
    """The state of a run at a step, for a checkpoint that kept none: to fork, or to start over.

    Args:
        run: its name.
        dataset: of the run.
        next_step: the number of steps in the checkpoint.
        branch: on which they were taken; the service must have them.
        order: of the records from here on: fresh if a new pass begins, continued if the sampler
            goes on in an order that it used before; None if that is not known. Continued at the
            last step that was recorded, it costs nothing more. Else, unless it is fresh, the
            service counts one pass more, and no secret order. Any other state takes it as its key
            "order".
    """
    return {
        **({} if order is None else {"order": order}),
        "format": FORMAT,
        "run": run,
        "dataset": dataset,
        "branch": branch,
        "next_step": next_step,
        "unsent": [],
    }


def checked(state: Any) -> Mapping[str, Any]:
    """A state that `token` made.

    Raises:
        ValueError: it is something else; the message names what is missing.
    """
    if not isinstance(state, Mapping) or state.get("format") != FORMAT:
        raise ValueError(f"state must be what run.state_dict() returned, of format {FORMAT}.")
    wanted = {"run": str, "dataset": str, "branch": str, "next_step": int, "unsent": list}
    for name, kind in wanted.items():
        if not isinstance(state.get(name), kind):
            raise ValueError(f"state lacks {name}, or it is not of type {kind.__name__}.")
    for name in ("run", "dataset", "branch"):  # they become part of paths
        name_of(state[name])
    if isinstance(state["next_step"], bool) or not state["next_step"] >= 0:
        raise ValueError("state has a next_step that is no number of steps.")
    if state.get("order") not in (None, "fresh", "continued"):
        raise ValueError("state has an order that is neither fresh nor continued.")
    if not all(isinstance(event, Mapping) for event in state["unsent"]):
        raise ValueError("state has something in unsent that is no event.")
    return state


def resumed(
    transport: Transport,
    run: str,
    dataset: str,
    state: Mapping[str, Any],
    *,
    folder: Path,
    observed: bool,
    rank: int,
) -> Opening:
    """How another process goes on with a run; what the one before left is sent first.

    Args:
        transport: to the service.
        run: its name.
        dataset: of the run.
        state: of the checkpoint.
        folder: of the spools.
        observed: the service need not be there.
        rank: of this process; only rank 0 sends.

    Raises:
        ValueError: it is the state of another run.
        Conflict: the process before still runs.
        DPLedgerError: the service refused something, or is away.
    """
    state = checked(state)
    if (state["run"], state["dataset"]) != (run, dataset):
        of = f"{state['run']} on {state['dataset']}"
        raise ValueError(f"state is of run {of}: give that name and dataset.")
    if rank == 0:
        try:
            sync_what_was_left(transport, run, folder, branch=state["branch"])
        except Unavailable:
            if not observed:
                raise
    return opening_of(state)


def opening_of(
    state: Mapping[str, Any], schedule: Sequence[Mapping[str, Any]] | None = None
) -> Opening:
    """A new branch that goes on from a checkpoint; by default leases are taken kind by kind."""
    step, order = state["next_step"], state.get("order")
    branch = {
        "name": f"from-{step}-{secrets.token_hex(4)}",
        "writer": new_writer(),
        "from_step": step,
        "from_branch": state["branch"],
        **({} if order is None else {"order": order}),
    }
    return Opening(
        run={"name": state["run"], "dataset": state["dataset"]},
        branch=branch,
        first_step=step,
        before={"branch": state["branch"], "events": state["unsent"]},
        schedule=schedule,
    )


def sync_what_was_left(
    transport: Transport, run: str, folder: Path, *, branch: str | None = None
) -> None:
    """Send what earlier processes left of a run in the spools of this machine.

    Of all its branches: who was killed before the first checkpoint of its own left no state.

    Args:
        transport: to the service.
        run: its name.
        folder: of the spools.
        branch: that no process may be writing to; by default any.

    Raises:
        Conflict: a process writes to it.
        Unavailable: the service is away.
    """
    for result in sync_all(transport, list(_left(run, folder, branch))):
        match result:
            case Synced():
                LOG.info("dpledger: sent what an earlier process left in %s", result.path)
            case _, Unavailable() as error:
                raise error
            case path, error:
                LOG.warning("dpledger: %s is left to be sent: %s", path, error)


def spools_of(run: str, folder: Path) -> Iterator[tuple[Path, Contents]]:
    """The spools of a run that can be read, and what they say."""
    for path in sorted(folder.glob(f"{run}.*{SUFFIX}")):
        try:
            contents = read(path)
        except SpoolError as error:
            LOG.warning("dpledger: %s is left to be sent: %s", path, error)
            continue
        if Opening.of(contents.header).run_name == run:  # a name may have dots
            yield path, contents


def _left(run: str, folder: Path, branch: str | None) -> Iterator[Path]:
    """The spools of a run that no process writes to.

    Raises:
        Conflict: a process writes to the branch.
    """
    for path, contents in spools_of(run, folder):
        if contents.closed:
            continue
        written = Opening.of(contents.header).branch_name
        if not is_locked(path):
            yield path
        elif branch in (None, written):
            title = f"Another process still writes to branch {written}; its spool is {path}"
            raise Conflict({"title": title}, 0)
