"""A run that is being trained: its steps are counted here and told to the service."""

import math
from collections.abc import Mapping
from operator import index
from threading import Lock, RLock
from time import monotonic
from types import TracebackType
from typing import Any, Final, Literal, Self

from dpledger_client.buffer import Buffer, Span, content_of
from dpledger_client.errors import DPLedgerError
from dpledger_client.transport import Transport

Mode = Literal["record", "charge"]
EVENTS_MAX: Final = 1000  # of one request, by the contract


class Run:
    """One branch of one run, open for writing. Open it with `Client.start_run`.

    As a context manager it is closed as finished, or as aborted when the block raises. Safe to
    share between threads; steps are numbered in the order in which they arrive.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        name: str,
        branch: str,
        next_step: int,
        mode: Mode,
        flush_steps: int,
        flush_seconds: float,
    ) -> None:
        self.name: Final = name
        self.branch: Final = branch
        self.mode: Final = _checked(mode)
        self._transport = transport
        self._flush_steps = flush_steps
        self._flush_seconds = flush_seconds
        self._buffer = Buffer(next_step)
        self._reply: dict[str, Any] = {}
        self._ending = False  # from here on each step is sent at once: no later flush is certain
        self._ended = False
        self._tried_step = next_step
        self._tried_at = monotonic()
        # Taken in this order. `_sending`: one request at a time, so that steps arrive in order.
        # `_state`: everything above; only a charge holds it while it waits for the service.
        self._sending = Lock()
        self._state = RLock()

    def __repr__(self) -> str:
        return f"Run(name={self.name!r}, branch={self.branch!r}, next_step={self.next_step})"

    @property
    def next_step(self) -> int:
        """The number that the next step gets."""
        with self._state:
            return self._buffer.next_step

    @property
    def unsent_steps(self) -> int:
        """How many recorded steps the service has not confirmed yet."""
        with self._state:
            return self._buffer.next_step - self._buffer.first_step

    @property
    def last_guarantee(self) -> dict[str, Any] | None:
        """The run's guarantee in the service's last reply; it knows nothing of unsent steps.

        None before the first reply, and when neither the run nor the dataset's budget has a delta.
        """
        return self._reply.get("guarantee")

    @property
    def epsilon(self) -> float | None:
        """Epsilon of `last_guarantee`: nats, upper, infinite when no accepted bound is finite.

        None when there is no such guarantee.
        """
        guarantee = self.last_guarantee
        if guarantee is None:
            return None
        epsilon = guarantee.get("epsilon")
        return math.inf if epsilon is None else float(epsilon)

    @property
    def budget(self) -> dict[str, Any] | None:
        """The budget in the service's last reply; None when there is none."""
        return self._reply.get("budget")

    @property
    def verdict(self) -> str | None:
        """`within` or `overdraft`, by the service's last reply; None before the first."""
        return self._reply.get("verdict")

    def step(
        self,
        *,
        mechanism: Mapping[str, Any],
        sampling: Mapping[str, Any],
        steps: int = 1,
        mode: Mode | None = None,
    ) -> None:
        """Count some equal steps.

        To record, call it once a step was taken. The step is kept and sent with others: every
        `flush_steps` steps, or when the last attempt to send is `flush_seconds` ago. A step that
        could not be sent stays counted, even when this call raises: do not repeat the call.

        To charge, call it before the step is taken. When it raises, the step was not counted: do
        not take it. After `Unavailable` the service may have counted it, so the same step has to
        be asked for again.

        Args:
            mechanism: the noise of each step, such as `gaussian(...)`.
            sampling: who joins each step, such as `poisson(...)`.
            steps: how many, >= 1.
            mode: instead of the run's.

        Raises:
            BudgetExhausted: the charged steps do not fit in a budget. The run stays usable.
            UnsupportedEvent: no accepted theorem bounds the charged steps.
            Unavailable: no answer after all retries.
            DPLedgerError: any other refusal.
            TypeError, ValueError: an argument cannot be sent; nothing was counted.
        """
        if not steps >= 1:
            raise ValueError("steps must be at least 1.")
        content, steps = content_of(mechanism, sampling), int(index(steps))
        if _checked(mode or self.mode) == "charge":
            self._charge(content, steps)
        else:
            self._record(content, steps)

    def flush(self) -> None:
        """Send the steps recorded so far. Call it before a checkpoint is saved.

        Raises:
            DPLedgerError: they could not be sent; they are kept for the next attempt.
        """
        with self._sending:
            self._send_recorded()

    def guarantee(
        self,
        *,
        delta: float | None = None,
        epsilon: float | None = None,
        accountant: str | None = None,
    ) -> dict[str, Any]:
        """What the run has spent over all its branches, unsent steps included: they are sent first.

        Args:
            delta: in (0, 1); by default the run's, else that of the dataset's budget.
            epsilon: nats; ask for the delta at this epsilon instead.
            accountant: by default the best.

        Raises:
            DPLedgerError: steps could not be sent, or the question was refused.
        """
        self.flush()
        path = f"/v1/runs/{self.name}/guarantee"
        return self._transport.get(path, delta=delta, epsilon=epsilon, accountant=accountant)

    def release(self, step: int | None = None) -> None:
        """Tell that an iterate was shown to somebody: a checkpoint, a metric computed from it.

        In a run that hides its iterates, hiding ends up to there. Recorded steps are sent first.

        Args:
            step: the iterate after this step; by default the last step that was taken.

        Raises:
            OutOfSequence: the branch has not recorded that step.
            DPLedgerError: it could not be sent, or was refused; the iterate is not known as shown.
        """
        self.flush()
        step = self.next_step - 1 if step is None else int(index(step))
        body = {"branch": self.branch, "step": step}
        self._transport.post(f"/v1/runs/{self.name}/releases", body)

    def finish(self, state: Literal["finished", "aborted"] = "finished") -> dict[str, Any]:
        """Send what is left, then close the run. Steps recorded later reopen it as an incident.

        Returns:
            The run at its end; under "guarantee" what it spent, if it declared what it hides.

        Raises:
            DPLedgerError: steps could not be sent, and the run stays open; or it was refused.
        """
        with self._state:
            self._ending = True
        self.flush()
        ended = self._transport.post(f"/v1/runs/{self.name}:finish", {"state": state})
        self._ended = True
        return ended

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self._end("finished")
            return
        try:
            self._end("aborted")
        except Exception as failure:  # whatever it is, the block's own error is the one to raise
            first_step = self.next_step - self.unsent_steps
            error.add_note(
                f"dpledger: run {self.name} could not be closed: {failure}. "
                f"Steps not recorded: {self.unsent_steps}, from step {first_step} on."
            )

    def _end(self, state: Literal["finished", "aborted"]) -> None:
        if self._ended:
            self.flush()
        else:
            self.finish(state)

    def _record(self, content: str, steps: int) -> None:
        with self._state:
            self._buffer.append(content, steps)
            due = (
                self._ending
                or self._buffer.next_step - self._tried_step >= self._flush_steps
                or monotonic() - self._tried_at >= self._flush_seconds
            )
        if due:
            self.flush()

    def _charge(self, content: str, steps: int) -> None:
        with self._sending, self._state:
            self._send_recorded()
            self._post([Span(self._buffer.next_step, steps, content)], "charge")
            self._buffer.next_step += steps

    def _send_recorded(self) -> None:
        """Send every step recorded before this call, in order; the caller holds `_sending`."""
        with self._state:
            end = self._tried_step = self._buffer.next_step
            self._tried_at = monotonic()
        while spans := self._waiting(before=end):
            self._post(spans, "record")
            with self._state:
                self._buffer.drop(before=spans[-1].end)

    def _waiting(self, *, before: int) -> list[Span]:
        with self._state:
            return self._buffer.first(EVENTS_MAX) if self._buffer.first_step < before else []

    def _post(self, spans: list[Span], mode: Mode) -> None:
        body = {"branch": self.branch, "mode": mode, "events": [span.event() for span in spans]}
        reply = self._transport.post(f"/v1/runs/{self.name}/events", body)
        if not reply.get("next_step", -1) >= spans[-1].end:
            raise DPLedgerError({"title": "The service confirmed fewer steps than were sent"}, 0)
        self._reply = reply


def _checked(mode: Mode) -> Mode:
    if mode not in ("record", "charge"):
        raise ValueError("mode must be record or charge.")
    return mode
