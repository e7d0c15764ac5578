"""A service seen from a trainer, a script or a notebook."""

import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

import httpx

from dpledger_client.run import Mode, Run
from dpledger_client.transport import Transport

DEFAULT_URL: Final = "http://127.0.0.1:8000"
FLUSH_STEPS: Final = 100
FLUSH_SECONDS: Final = 5.0
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


class Client:
    """A connection to a dpledger service; safe to share between threads.

    A request without an answer, or answered 502, 503 or 504, is sent again after a random,
    growing wait. Every method raises a DPLedgerError when it is refused, and Unavailable when the
    last retry fails.

    Args:
        base_url: by default the environment's DPLEDGER_URL, else http://127.0.0.1:8000.
        api_key: by default the environment's DPLEDGER_API_KEY; none in open mode.
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
        transport: httpx.BaseTransport | None = None,
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
        budget: Mapping[str, float] | None = None,
        parents: Sequence[str] | None = None,
        accept: Sequence[str] | None = None,
    ) -> dict[str, Any]:
        """Create a dataset, or find the one that the same call created.

        Args:
            name: global, never reused.
            dataset_size: records; a public, declared constant.
            neighboring_relation: add_or_remove_one, replace_one or replace_special.
            privacy_unit: what one record is, in words.
            budget: {"epsilon": nats, "delta": in (0, 1)}, which may never be passed.
            parents: datasets that this one is drawn from.
            accept: statuses of theorems that may count; by default published and declared.

        Raises:
            Conflict: another call created a dataset of that name.
        """
        body = {
            "name": name,
            "dataset_size": dataset_size,
            "neighboring_relation": neighboring_relation,
            "privacy_unit": privacy_unit,
            "budget": budget,
            "parents": parents,
            "accept": accept,
        }
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
        delta: float | None = None,
        release: str = "every_step",
        assumptions: Mapping[str, Any] | None = None,
        plan: Sequence[Mapping[str, Any]] | None = None,
        budget: Mapping[str, float] | None = None,
        labels: Mapping[str, str] | None = None,
        mode: Mode = "record",
        flush_steps: int = FLUSH_STEPS,
        flush_seconds: float = FLUSH_SECONDS,
    ) -> Run:
        """Register a training job and open its branch main for writing.

        Args:
            name: global, never reused.
            dataset: what it trains on.
            delta: at which epsilon is told, in (0, 1); by default that of the dataset's budget.
            release: which iterates are ever shown: every_step, every_pass or last_iterate.
            assumptions: what the trainer declares about itself; unless every step is shown, all
                that the service's guide on hidden iterates lists.
            plan: events that are meant to happen, each made by `event(...)`. Only a run that
                followed its plan has hidden anything.
            budget: of this run alone: {"epsilon": nats, "delta": in (0, 1)}.
            labels: free text by name.
            mode: "record" steps after they were taken, or "charge" them before.
            flush_steps: recorded steps are sent when so many have come.
            flush_seconds: or, at the next step, when the last attempt to send is so long ago.

        Raises:
            RunExists: another process opened a run of that name; see `resume_run`.
            NotFound: there is no such dataset.
        """
        body = {
            "name": name,
            "writer": _new_writer(),
            "dataset": dataset,
            "delta": delta,
            "release": release,
            "assumptions": assumptions,
            "plan": plan,
            "budget": budget,
            "labels": labels,
        }
        run = Run(
            self._transport,
            name=_checked(name),
            branch="main",
            next_step=0,
            mode=mode,
            flush_steps=flush_steps,
            flush_seconds=flush_seconds,
        )
        self._transport.post("/v1/runs", body)
        return run

    def resume_run(
        self,
        name: str,
        *,
        branch: str,
        from_step: int,
        mode: Mode = "record",
        flush_steps: int = FLUSH_STEPS,
        flush_seconds: float = FLUSH_SECONDS,
    ) -> Run:
        """Open a new branch of a run for writing: after a crash, a rewind or a fork.

        Nothing is erased: steps that ran beyond `from_step` before stay counted. A branch counts
        passes from its first step: begin it with a fresh order of the records, and declare the
        rest of a pass that was resumed in the middle as `full()`.

        Args:
            name: of the run.
            branch: a new name within the run.
            from_step: the first step to be taken, which is the number of steps in the checkpoint.
            mode: as for `start_run`.
            flush_steps: as for `start_run`.
            flush_seconds: as for `start_run`.

        Raises:
            BranchExists: another process opened a branch of that name.
            OutOfSequence: steps before `from_step` were never recorded.
            NotFound: there is no such run.
        """
        run = Run(
            self._transport,
            name=_checked(name),
            branch=_checked(branch),
            next_step=from_step,
            mode=mode,
            flush_steps=flush_steps,
            flush_seconds=flush_seconds,
        )
        body = {"name": branch, "writer": _new_writer(), "from_step": from_step}
        self._transport.post(_path("runs", name, "/branches"), body)
        return run

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
        return self._transport.get(
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

        Raises:
            UnsupportedEvent: no accepted theorem bounds an event.
        """
        body = {
            "neighboring_relation": neighboring_relation,
            "events": events,
            "delta": delta,
            "dataset_size": dataset_size,
            "accept": accept,
            "release": release,
            "assumptions": assumptions,
        }
        return self._transport.post("/v1/plan", body)

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


def _new_writer() -> str:
    """A token of this opening of a run: with it a repeated request is known for the same one."""
    return secrets.token_hex(16)


def _checked(name: str) -> str:
    # The name becomes part of a path, where the service could not tell what was meant.
    if not _NAME.fullmatch(name):
        raise ValueError("A name must match [a-z0-9][a-z0-9._-]{0,62}.")
    return name


def _path(noun: str, name: str, rest: str = "") -> str:
    return f"/v1/{noun}/{_checked(name)}{rest}"
