"""A service seen from a trainer, a script or a notebook."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from dpledger_client import distributed, library_versions, resuming
from dpledger_client.change_requests.calls import ChangeRequests
from dpledger_client.checkpoints import name_of
from dpledger_client.declaration import count_of
from dpledger_client.distributed import Broadcast
from dpledger_client.errors import Unavailable
from dpledger_client.incidents.calls import Incidents
from dpledger_client.recording import write_ahead_file as spools
from dpledger_client.recording.branch_writer import MODES, Journal, Mode
from dpledger_client.recording.outbox import Opening, new_writer
from dpledger_client.recording.sync import Synced, sync_all
from dpledger_client.resuming import Resume
from dpledger_client.run import Run
from dpledger_client.transport import Transport

if TYPE_CHECKING:
    import httpx

DEFAULT_URL: Final = "http://127.0.0.1:8000"
FLUSH_STEPS: Final = 100
FLUSH_SECONDS: Final = 5.0
WAIT_SECONDS: Final = 300.0


class Client(ChangeRequests, Incidents):
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

    def create_dataset(
        self,
        name: str,
        *,
        dataset_size: int,
        neighboring_relation: str,
        privacy_unit: str,
        budget: Mapping[str, Any] | None = None,
        parents: Sequence[str] | None = None,
        accept: Sequence[str] | None = None,
    ) -> dict[str, Any]:
        """Create a dataset, or find the one that the same call created.

        Args:
            name: global, never reused.
            dataset_size: records; a public, declared constant.
            neighboring_relation: add_or_remove_one, replace_one or replace_special.
            privacy_unit: what one record is, in words.
            budget: {"epsilon": nats, "delta": in (0, 1)}, which may never be passed; with
                "filter" and "envelope", the steps that it holds.
            parents: datasets that this one is drawn from.
            accept: statuses of theorems that may count; by default published and declared.

        Raises:
            Conflict: another call created a dataset of that name.
        """
        body = {
            "name": name, "dataset_size": dataset_size,
            "neighboring_relation": neighboring_relation, "privacy_unit": privacy_unit,
            "budget": budget, "parents": parents, "accept": accept,
        }  # fmt: skip
        return self._transport.post("/v1/datasets", body)

    def dataset(self, name: str) -> dict[str, Any]:
        """A dataset with what is spent, reserved and remaining."""
        return self._transport.get(_path("datasets", name))

    def datasets(self) -> Iterator[dict[str, Any]]:
        """Every dataset, in creation order."""
        return self._transport.listed("/v1/datasets", "datasets")

    def dataset_guarantee(
        self,
        dataset: str,
        *,
        delta: float | None = None,
        epsilon: float | None = None,
        accountant: str | None = None,
    ) -> dict[str, Any]:
        """What all runs of a dataset have spent together; arguments as in `guarantee`."""
        return self._transport.get(
            _path("datasets", dataset, "/guarantee"),
            delta=delta,
            epsilon=epsilon,
            accountant=accountant,
        )

    def start_run(
        self,
        name: str,
        dataset: str,
        *,
        mode: Mode = "leased",
        mechanism: Mapping[str, Any] | None = None,
        sampling: Mapping[str, Any] | None = None,
        state: Mapping[str, Any] | None = None,
        resume: Resume = "never",
        delta: float | None = None,
        release: str = "every_step",
        assumptions: Mapping[str, Any] | None = None,
        plan: Sequence[Mapping[str, Any]] | None = None,
        budget: Mapping[str, Any] | None = None,
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
            name: global, never reused.
            dataset: what it trains on.
            mode: "leased" reserves steps ahead and records them behind; "strict" asks for each step
                before it is taken; "observe" only records, whatever the budget.
            mechanism: what a step is, such as `gaussian(...)`; here, or with each step.
            sampling: who joins a step, such as `poisson(...)`; the same.
            state: `run.state_dict()` of a checkpoint: the run goes on from there, on a branch of
                its own. What follows up to `labels` is then as it was registered.
            resume: without a state, whether a run of that name goes on after its last recorded
                step, on a branch of its own: "allow" if there is one, "must" if there has to be.
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
            RunExists: another process opened a run of that name; go on with `resume` or `state`.
            NotFound: there is no such dataset.
            Unavailable: the service is away, and steps are more than observed.
            ValueError: an argument is out of range.
        """
        if mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}.")
        if lease_steps is not None:
            lease_steps = count_of(lease_steps)
        name, dataset = name_of(name), name_of(dataset)
        rank, world_size = distributed.place(rank, world_size, broadcast)
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
            self._transport,
            {key: value for key, value in registered.items() if value is not None},
            state=state,
            resume=resume,
            folder=folder,
            observed=observed,
            rank=rank,
            world_size=world_size,
            broadcast=broadcast,
        )
        if dataset_size is None:
            dataset_size = self._dataset_size(dataset, observed)
        return self._opened(
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

    def _opened(
        self,
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
                self._transport,
                opening,
                mode=mode,
                folder=folder,
                lease_steps=lease_steps,
                flush_steps=flush_steps,
                flush_seconds=flush_seconds,
                wait_seconds=wait_seconds,
            )

        return Run(self._transport, opening, open_journal, mode=mode, **options)

    def _dataset_size(self, dataset: str, observed: bool) -> int | None:
        try:
            found = self._transport.get(_path("datasets", dataset), retries=0 if observed else None)
        except Unavailable:
            if observed:
                return None
            raise
        return found.get("dataset_size")

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

    def run(self, name: str) -> dict[str, Any]:
        """A run as it stands."""
        return self._transport.get(_path("runs", name))

    def runs(
        self, *, dataset: str | None = None, state: str | None = None
    ) -> Iterator[dict[str, Any]]:
        """Runs in creation order, of a dataset or in a state only."""
        return self._transport.listed("/v1/runs", "runs", dataset=dataset, state=state)

    def guarantee(
        self,
        run: str,
        *,
        delta: float | None = None,
        epsilon: float | None = None,
        accountant: str | None = None,
    ) -> dict[str, Any]:
        """What the recorded steps of a run have spent, over all its branches.

        Args:
            run: its name.
            delta: in (0, 1); by default the run's, else that of the dataset's budget.
            epsilon: nats; ask for the delta at this epsilon instead.
            accountant: by default the best.
        """
        return self._transport.guarantee(
            _path("runs", run, "/guarantee"), delta=delta, epsilon=epsilon, accountant=accountant
        )

    def ledger(self, run: str) -> dict[str, Any]:
        """The run's ledger document."""
        return self._transport.get(_path("runs", run, "/ledger"))

    def history(
        self, run: str, *, points: int | None = None, delta: float | None = None
    ) -> dict[str, Any]:
        """Epsilon (nats, upper) by step, at no more than so many points."""
        return self._transport.get(_path("runs", run, "/history"), points=points, delta=delta)

    def plan(
        self,
        *,
        neighboring_relation: str,
        events: Sequence[Mapping[str, Any]],
        delta: float,
        dataset_size: int | None = None,
        accept: Sequence[str] | None = None,
        release: str | None = None,
        assumptions: Mapping[str, Any] | None = None,
        as_envelope: bool | None = None,
        rows_per_unit: int | None = None,
    ) -> dict[str, Any]:
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
            "neighboring_relation": neighboring_relation, "events": events, "delta": delta,
            "dataset_size": dataset_size, "accept": accept, "release": release,
            "assumptions": assumptions, "as_envelope": as_envelope, "rows_per_unit": rows_per_unit,
        }  # fmt: skip
        return self._transport.post("/v1/plan", body)

    def keep_strategy(self, strategy: Mapping[str, Any]) -> str:
        """Keep a strategy of correlated noise; the digest that `matrix_gaussian` takes."""
        return str(self._transport.post("/v1/strategies", {"strategy": strategy})["digest"])

    def bounds(self) -> list[dict[str, Any]]:
        """Every theorem the service knows."""
        return list(self._transport.get("/v1/bounds")["bounds"])

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


def _path(noun: str, name: str, rest: str = "") -> str:
    return f"/v1/{noun}/{name_of(name)}{rest}"


def start_run(name: str, dataset: str, **options: Any) -> Run:
    """`Client.start_run` of a service that the environment names, with the same arguments."""
    return Client().start_run(name, dataset, **options)
