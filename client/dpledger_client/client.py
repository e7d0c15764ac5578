"""A service seen from a trainer, a script or a notebook."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from inspect import signature
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, Self, TypeVar

from dpledger_client.calls.change_requests import ChangeRequests
from dpledger_client.calls.datasets import DatasetCalls
from dpledger_client.calls.guarantees import GuaranteeCalls
from dpledger_client.calls.incidents import IncidentCalls
from dpledger_client.calls.planning import PlanningCalls
from dpledger_client.errors import Unavailable
from dpledger_client.names import name_of, new_name, path_of
from dpledger_client.recording import write_ahead_file as spools
from dpledger_client.recording.branch_writer import MODES, Journal, Mode
from dpledger_client.recording.outbox import Opening, new_writer
from dpledger_client.recording.sync import Synced, sync_all
from dpledger_client.training import distributed, library_versions, resuming
from dpledger_client.training.declaration import count_of
from dpledger_client.training.distributed import Broadcast
from dpledger_client.training.reserved_runs import reserved_name
from dpledger_client.training.resuming import Resume
from dpledger_client.training.run import Run
from dpledger_client.transport import Transport
from dpledger_client.wire_types import Release

if TYPE_CHECKING:
    import httpx

DEFAULT_URL: Final = "http://127.0.0.1:8000"
FLUSH_STEPS: Final = 100
FLUSH_SECONDS: Final = 5.0
WAIT_SECONDS: Final = 300.0


_Given = ParamSpec("_Given")
_Answered = TypeVar("_Answered")


class Client(
    ChangeRequests,
    DatasetCalls,
    GuaranteeCalls,
    IncidentCalls,
    PlanningCalls,
):
    """A connection to a dpledger service; safe to share between threads.

    A request without an answer, or answered 502, 503 or 504, is sent again after a random,
    growing wait. Every method raises a DPLedgerError when it is refused, and Unavailable when the
    last retry fails.

    Args:
        base_url: by default the environment's DPLEDGER_URL, else http://127.0.0.1:8000.
        api_key: by default the environment's DPLEDGER_API_KEY, or what DPLEDGER_API_KEY_FILE holds;
            else the start token of a service of the same user on this machine is found by itself.
        timeout_seconds: to connect, and for each read and write.
        retries: how many times a request is sent again, >= 0.
        transport: what carries the requests, for tests.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        timeout_seconds: float = 10.0,
        retries: int = 5,
        transport: "httpx.BaseTransport | None" = None,
    ) -> None:
        self._transport = Transport(
            base_url or os.environ.get("DPLEDGER_URL") or DEFAULT_URL,
            api_key or os.environ.get("DPLEDGER_API_KEY") or None,
            timeout_seconds=timeout_seconds,
            retries=retries,
            transport=transport,
        )

    def __repr__(self) -> str:
        return f"Client({self._transport!r})"

    def start_run(
        self,
        name: str | None,
        dataset: str,
        *,
        mode: Mode = "leased",
        mechanism: Mapping[str, object] | None = None,
        sampling: Mapping[str, object] | None = None,
        state: Mapping[str, object] | None = None,
        resume: Resume = "never",
        reserved: str | Mapping[str, object] | None = None,
        delta: float | None = None,
        release: Release = "every_step",
        assumptions: Mapping[str, object] | None = None,
        plan: Sequence[Mapping[str, object]] | None = None,
        budget: Mapping[str, object] | None = None,
        labels: Mapping[str, str] | None = None,
        dataset_size: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        broadcast: Broadcast | None = None,
        share_batch_size_verdict: bool = False,
        spool: str | os.PathLike[str] | None = None,
        lease_steps: int | None = None,
        flush_steps: int = FLUSH_STEPS,
        flush_seconds: float = FLUSH_SECONDS,
        wait_seconds: float = WAIT_SECONDS,
    ) -> Run:
        """Register a training job, or go on with it, and open it for writing.

        Args:
            name: global, never reused; None makes one of the dataset's name, the day and a random
                part.
            dataset: what it trains on.
            mode: "leased" reserves steps ahead and records them behind; "strict" asks for each step
                before it is taken; "observe" only records, whatever the budget.
            mechanism: what a step is, such as `gaussian(...)`; here, or with each step.
            sampling: who joins a step, such as `poisson(...)`; the same.
            state: `run.state_dict()` of a checkpoint: the run goes on from there, on a branch of
                its own. What follows up to `labels` is then as it was registered.
            resume: without a state, whether a run of that name goes on after its last recorded
                step, on a branch of its own: "allow" if there is one, "must" if there has to be.
            reserved: the request, or its JSON, by which the run and its plan were registered before
                the job began: the steps of the plan are reserved, and this process takes them. With
                `resume`, it goes on after the last step that an earlier process of the job took.
            delta: at which epsilon is told, in (0, 1); by default that of the dataset's budget.
            release: which iterates are ever shown: every_step, every_pass or last_iterate.
            assumptions: what the trainer declares about itself; unless every step is shown, all
                that the service's guide on hidden iterates lists.
            plan: events that are meant to happen, each made by `event(...)`; leases are taken for
                them. Only a run that followed its plan has hidden anything.
            budget: of this run alone: {"epsilon": nats, "delta": in (0, 1)}.
            labels: free text by name; with those of the private libraries that are loaded.
            dataset_size: records; by default the service is asked.
            rank: of this process; by default 0, or with `broadcast` the environment's RANK. Only
                rank 0 reports.
            world_size: of the job; by default the environment's WORLD_SIZE.
            broadcast: a collective that gives every rank the number of rank 0, so that a refusal
                stops all of them at the same step.
            share_batch_size_verdict: at the end, tell the service whether the sizes of batches
                refuted the declared sampling. That is outside what epsilon covers.
            spool: folder of the spool; by default DPLEDGER_SPOOL, else ~/.local/state/dpledger.
            lease_steps: steps of a lease, >= 1; by default what ten minutes of training take.
            flush_steps: recorded steps are sent when so many have come.
            flush_seconds: or when the last attempt to send is so long ago.
            wait_seconds: how long a step that needs an answer waits for a service that is away.

        Raises:
            RunExists: a run of that name exists, and the message says whether it has ended or is
                open in another process. Continue it with `resume` or `state`, or choose a name.
            NotFound: there is no such dataset.
            Unavailable: the service is away, and steps are more than observed.
            ValueError: an argument is out of range.
        """
        if mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}.")
        if lease_steps is not None:
            lease_steps = count_of(lease_steps)
        rank, world_size = distributed.place(rank, world_size, broadcast)
        dataset = name_of(dataset)
        if name is None and reserved is not None:
            name = reserved_name(reserved)
        if name is None:
            if resume != "never" or state is not None or world_size > 1:
                raise ValueError("Give a name to a run that resumes or has several ranks.")
            name = new_name(dataset)
        name = name_of(name)
        transport = self._transport.of_dataset(dataset)
        folder, observed = spools.folder(spool), mode == "observe"
        registered = {
            "name": name,
            "writer": new_writer(),
            "dataset": dataset,
            "delta": delta,
            "release": release,
            "assumptions": assumptions,
            "plan": plan,
            "budget": budget,
            "labels": library_versions.labelled(labels),
        }
        opening = resuming.opening(
            transport,
            {key: value for key, value in registered.items() if value is not None},
            state=state,
            resume=resume,
            reserved=reserved,
            folder=folder,
            observed=observed,
            rank=rank,
            world_size=world_size,
            broadcast=broadcast,
        )
        if dataset_size is None:
            dataset_size = _dataset_size(transport, dataset, observed)
        return _opened(
            transport,
            opening,
            mode=mode,
            mechanism=mechanism,
            sampling=sampling,
            dataset_size=dataset_size,
            rank=rank,
            world_size=world_size,
            broadcast=broadcast,
            share_verdict=share_batch_size_verdict,
            folder=folder,
            lease_steps=lease_steps,
            flush_steps=flush_steps,
            flush_seconds=flush_seconds,
            wait_seconds=wait_seconds,
        )

    def sync(
        self, *paths: Path | str, ended: bool = False, again: bool = False
    ) -> Iterator[Synced | tuple[Path, Exception]]:
        """Send spools whose trainers are gone; those that cannot be sent come with their error.

        Args:
            paths: of spools, or of folders with spools.
            ended: the trainers are gone for certain, though neither spool nor machine tells.
            again: send also what the service had; its database may have been put back.
        """
        return sync_all(self._transport, list(map(Path, paths)), ended=ended, again=again)

    def close(self) -> None:
        """Close the connections. Runs that are still open cannot send any more."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _opened(
    transport: Transport,
    opening: Opening,
    *,
    mode: Mode,
    folder: Path,
    lease_steps: int | None,
    flush_steps: int,
    flush_seconds: float,
    wait_seconds: float,
    **options: Any,
) -> Run:
    def open_journal(opening: Opening) -> Journal:
        return Journal(
            transport,
            opening,
            mode=mode,
            folder=folder,
            lease_steps=lease_steps,
            flush_steps=flush_steps,
            flush_seconds=flush_seconds,
            wait_seconds=wait_seconds,
        )

    return Run(transport, opening, open_journal, mode=mode, **options)


def _dataset_size(transport: Transport, dataset: str, observed: bool) -> int | None:
    try:
        found = transport.get(path_of("datasets", dataset), retries=0 if observed else None)
    except Unavailable:
        if observed:
            return None
        raise
    return found.get("dataset_size")


def _of_environment(
    method: Callable[Concatenate[Client, _Given], _Answered],
) -> Callable[_Given, _Answered]:
    """A function with the arguments of a method, which it calls on a client of its own."""

    @wraps(method)
    def call(*given: _Given.args, **named: _Given.kwargs) -> _Answered:
        return method(Client(), *given, **named)

    ours = signature(method)
    [_, *parameters] = ours.parameters.values()
    call.__signature__ = ours.replace(parameters=parameters)  # type: ignore[attr-defined]
    call.__doc__ = (
        "Open a run at the service that DPLEDGER_URL and DPLEDGER_API_KEY name.\n\n"
        f"It is `Client().start_run`: {(method.__doc__ or '').lstrip()}"
    )
    call.__qualname__ = method.__name__
    return call


start_run = _of_environment(Client.start_run)
