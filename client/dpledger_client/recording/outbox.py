"""What one process has to tell the service of one branch: kept in order, sent, sent again.

Every request may be repeated without effect, so that nothing here needs to know what arrived.
"""

import logging
import secrets
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock, RLock
from typing import Any, Final

from dpledger_client.errors import DPLedgerError, Unavailable
from dpledger_client.recording.event_buffer import Buffer, Span
from dpledger_client.recording.write_ahead_file import Spool
from dpledger_client.transport import Transport

EVENTS_MAX: Final = 1000  # of one request, by the contract
FINDINGS: Final = "findings"
RELEASES: Final = "releases"
CLOSED: Final = ("finished", "stopped_at_budget", "aborted")  # states after the end of a run
LOG: Final = logging.getLogger("dpledger_client")


def new_writer() -> str:
    """A token of this opening of a run: with it a repeated request is known for the same one."""
    return secrets.token_hex(16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """How a process came to write to a branch."""

    run: Mapping[str, Any]  # as it was registered; of a branch only its name and its dataset
    branch: Mapping[str, Any] | None = None  # a resume, rewind or fork
    first_step: int = 0
    before: Mapping[str, Any] | None = None  # what the checkpoint knew of the branch before
    schedule: Sequence[Mapping[str, Any]] | None = None  # what leases are taken for; not stored
    ended: str | None = None  # the end that the run had before it was resumed; not stored
    reserved: bool = False  # by what started the job: processes that follow one another share it

    @property
    def run_name(self) -> str:
        """Of the run."""
        return str(self.run["name"])

    @property
    def branch_name(self) -> str:
        """Of the branch that is written to."""
        return "main" if self.branch is None else str(self.branch["name"])

    @property
    def writer(self) -> str | None:
        """The token by which the service knows who opened the branch."""
        given = self.run if self.branch is None else self.branch
        token = given.get("writer")
        return None if token is None else str(token)

    def header(self) -> dict[str, Any]:
        """As the first line of a spool."""
        return {
            "run": dict(self.run),
            "branch": None if self.branch is None else dict(self.branch),
            "first_step": self.first_step,
            "before": None if self.before is None else dict(self.before),
            **({"reserved": True} if self.reserved else {}),
        }

    @classmethod
    def of(cls, header: Mapping[str, Any]) -> "Opening":
        """From the first line of a spool."""
        return cls(
            run=header["run"],
            branch=header.get("branch"),
            first_step=header["first_step"],
            before=header.get("before"),
            reserved=header.get("reserved", False),
        )


class Outbox:
    """Waiting steps, findings and shown iterates of one branch. Safe to share between threads.

    Its locks are taken in this order. `sending`: one request at a time, so that steps arrive in
    order. `state`: what waits; never held while a request is out.
    """

    def __init__(self, transport: Transport, opening: Opening, spool: Spool | None = None) -> None:
        self.opening: Final = opening
        self.transport: Final = transport
        self.spool: Final = spool
        self.sending: Final = Lock()
        self.state: Final = RLock()
        self.buffer: Final = Buffer(opening.first_step)
        self.opened: dict[str, Any] | None = None  # the run, as the service answered
        self.reply: dict[str, Any] = {}
        self.earlier_end = opening.ended  # the end of the run before this branch continued it
        self._told: deque[tuple[str, dict[str, Any]]] = deque()

    @property
    def unsent_steps(self) -> int:
        """How many steps the service has not confirmed yet."""
        with self.state:
            return self.buffer.next_step - self.buffer.first_step

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        with self.state:
            return self.opened is not None and not self.unsent_steps and not self._told

    @property
    def next_step(self) -> int:
        """The number that the next step gets."""
        with self.state:
            return self.buffer.next_step

    def append(self, content: str, steps: int) -> int:
        """Keep some equal steps, which the spool has already; how many wait now."""
        with self.state:
            return self.buffer.append(content, steps)

    def forget(self, *, before: int) -> None:
        """Steps that the service has."""
        with self.state:
            self.buffer.drop(before=before)

    def tell(self, what: str, body: Mapping[str, Any]) -> None:
        """Keep something else to be told after the steps so far: the spool first."""
        note = (what, {"branch": self.opening.branch_name, **body})
        if self.spool is not None and not self.spool.is_closed:
            self.spool.write({"tell": note})
        with self.state:
            self._told.append(note)

    def open(self, *, retries: int | None = None) -> dict[str, Any]:
        """Register the run or its branch; the caller holds `sending`.

        Raises:
            RunExists, BranchExists: another process did.
            DPLedgerError: it was refused, or the service is away.
        """
        if self.opened is None:
            self.opened = self._open(retries)
        return self.opened

    def _open(self, retries: int | None) -> dict[str, Any]:
        given, post = self.opening, self.transport.post
        if given.branch is None:
            return post("/v1/runs", given.run, retries=retries)
        before = given.before or {}
        unsent = before.get("events", ())
        for first in range(0, len(unsent), EVENTS_MAX):
            events = unsent[first : first + EVENTS_MAX]
            body = {"branch": before["branch"], "mode": "record", "events": events}
            self.reply = post(self.path("/events"), body, retries=retries)
        state = self.transport.get(self.path(""), retries=retries).get("state")
        if state in CLOSED:  # not so if the branch was opened, and its answer was lost
            self.earlier_end = state
        post(self.path("/branches"), given.branch, retries=retries)
        return self.transport.get(self.path(""), retries=retries)

    def path(self, rest: str) -> str:
        """A path of the run."""
        return f"/v1/runs/{self.opening.run_name}{rest}"

    def send(self, *, retries: int | None = None) -> None:
        """Send everything that was kept before this call.

        Raises:
            DPLedgerError: something could not be sent; it is kept.
        """
        with self.sending:
            self.send_held(retries=retries)

    def send_held(self, *, retries: int | None = None) -> None:
        """As `send`; the caller holds `sending`."""
        self.open(retries=retries)
        with self.state:
            end, told = self.buffer.next_step, list(self._told)
        sent = self.buffer.first_step < end
        while spans := self._waiting(before=end):
            self.post(spans, "record", retries=retries)
            self.forget(before=spans[-1].end)
        if sent:
            self.note({"sent": end})
        for what, body in told:
            self._send_told(what, body, retries)

    def note(self, line: Mapping[str, Any]) -> None:
        """Write what the service said to the spool: a hint, so a full disk does not matter."""
        try:
            if self.spool is not None and not self.spool.is_closed:
                self.spool.write(line)
        except OSError as error:
            LOG.warning("dpledger: the spool could not be written: %s", error)

    def post(self, spans: list[Span], mode: str, *, retries: int | None = None) -> None:
        """Record or charge steps; the caller holds `sending`.

        Raises:
            DPLedgerError: it was refused, or the service is away.
        """
        body = {
            "branch": self.opening.branch_name,
            "writer": self.opening.writer,
            "mode": mode,
            "events": [span.event() for span in spans],
        }
        reply = self.transport.post(self.path("/events"), body, retries=retries)
        confirmed = reply.get("next_step")
        if not (isinstance(confirmed, int) and confirmed >= spans[-1].end):
            raise DPLedgerError({"title": "The service confirmed fewer steps than were sent"}, 0)
        self.reply = reply

    def finish(self, state: str, *, retries: int | None = None) -> dict[str, Any]:
        """Say how the run ended on this branch; the service knows if it went on on another.

        Raises:
            DPLedgerError: it was refused, or the service is away.
        """
        if self.opening.reserved and state == "interrupted":  # which would return what is reserved
            return self.transport.get(self.path(""), retries=retries)
        body = {"state": state, "branch": self.opening.branch_name}
        return self.transport.post(self.path(":finish"), body, retries=retries)

    def _waiting(self, *, before: int) -> list[Span]:
        with self.state:
            return self.buffer.first(EVENTS_MAX) if self.buffer.first_step < before else []

    def _send_told(self, what: str, body: Mapping[str, Any], retries: int | None) -> None:
        try:
            self.transport.post(self.path(f"/{what}"), body, retries=retries)
        except Unavailable:
            raise
        except DPLedgerError as error:
            if what != FINDINGS:
                raise
            # No number rests on a finding; steps must not wait for one that is refused.
            LOG.warning("dpledger: a finding was refused: %s", error)
        with self.state:
            self._told.popleft()
