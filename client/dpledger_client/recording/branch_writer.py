"""One branch of a run as its trainer writes it: a spool first, the service behind.

A step costs a line of the spool and a count in memory. Everything else is done by a thread of its
own, which asks for leases before they are needed and sends what the spool already has.
"""

import atexit
import json
import os
import random
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import TIMEOUT_MAX, Event, Thread
from time import monotonic, sleep
from typing import Any, Final, Literal

from dpledger_client.errors import Conflict, DPLedgerError, RunFinished, Unavailable
from dpledger_client.recording.checkpoint_pins import LedgerRewritten, LogHead
from dpledger_client.recording.event_buffer import Span
from dpledger_client.recording.outbox import LOG, Opening, Outbox, new_writer
from dpledger_client.recording.reservations import Leases
from dpledger_client.recording.write_ahead_file import SUFFIX, Spool
from dpledger_client.transport import Transport

Mode = Literal["leased", "strict", "observe"]
MODES: Final = ("leased", "strict", "observe")
EVERY_STEP: Final = 2**62  # a horizon that no training reaches
WAIT_SECONDS: Final = 1.0  # between the attempts of a step that waits for an answer
PAUSE_SECONDS_MAX: Final = 30.0  # between attempts to send in the background
LEAVING_RETRIES: Final = 1  # when a process ends; the spool has what is left
_TAKEN: Final = (  # of a run that several processes may write to, one after another
    "Step {step} of the reserved run was charged before, perhaps by another process; it is "
    'counted, and was not taken here. Start again with resume="allow"'
)
_JITTER: Final = random.SystemRandom()  # a trainer's seeded numbers must not depend on the network


class Journal:
    """Writes the steps of one branch. Its owner calls it from one thread at a time."""

    def __init__(
        self,
        transport: Transport,
        opening: Opening,
        *,
        mode: Mode,
        folder: Path,
        lease_steps: int | None,
        flush_steps: int,
        flush_seconds: float,
        wait_seconds: float,
    ) -> None:
        self.mode: Mode = mode
        self.opening = opening
        mark = new_writer() if opening.reserved else _token(opening)
        name = f"{opening.run_name}.{opening.branch_name}.{mark[:8]}{SUFFIX}"
        self.spool: Final = Spool(folder / name, {"mode": mode, **opening.header()})
        self.outbox: Final = Outbox(transport, opening, self.spool)
        self.ended: str | None = None
        self.trouble: Exception | None = None  # why the last attempt to send failed
        self._head: Final = LogHead(transport, str(opening.run["dataset"]), folder)
        self._leases: Final = Leases(self.outbox, lease_steps)
        self._flush_steps = flush_steps
        self._flush_seconds = min(flush_seconds, TIMEOUT_MAX)
        self._wait_seconds = wait_seconds
        self._charged = opening.first_step  # strict: steps below it were charged
        self._charged_as: str | None = None
        self._what: str | None = None  # the last content that the spool was told
        self._process = os.getpid()
        self._hushed = False
        self._wake, self._stop = Event(), Event()
        self._thread = Thread(target=self._work, name="dpledger", daemon=True)

    @property
    def next_step(self) -> int:
        """The number that the next step gets."""
        return self.outbox.next_step

    @property
    def path(self) -> Path | None:
        """Where the spool is."""
        return self.spool.path

    @property
    def reply(self) -> dict[str, Any]:
        """The service's last answer to steps."""
        return self.outbox.reply

    @property
    def earlier_end(self) -> str | None:
        """The end that the run had before this process resumed it, if no step was taken since."""
        untouched = max(self.next_step, self._charged) == self.opening.first_step
        return self.outbox.earlier_end if untouched else None

    def unsent(self) -> list[Span]:
        """The steps that the service has not confirmed yet."""
        with self.outbox.state:
            return self.outbox.buffer.first(sys.maxsize)

    def tell(self, what: str, body: Mapping[str, Any]) -> None:
        """Keep something else to be told after the steps so far."""
        self._require_process()
        self.outbox.tell(what, body)

    def open(self) -> None:
        """Register the run or branch, and begin to send in the background.

        Raises:
            DPLedgerError: it was refused; or the service is away, unless steps are only observed.
        """
        try:
            with self.outbox.sending:
                answer = self.outbox.open(retries=1 if self.mode == "observe" else None)
            if self.mode == "leased" and answer.get("on_plan"):
                self.mode = "strict"  # its plan is reserved as a whole, and leaving it is asked for
            require_reserved(self.opening, answer)
        except Unavailable as error:
            if self.mode != "observe":
                self.spool.discard()
                raise
            LOG.warning("dpledger: no service yet, so steps wait in %s: %s", self.spool.path, error)
        except BaseException:  # nothing was opened and no step taken: leave no spool behind
            self.spool.discard()
            raise
        self._thread.start()
        atexit.register(self.leave)

    def admit(self, content: str, steps: int) -> int:
        """Get the next steps admitted; return the exclusive end of steps without a request.

        Raises:
            BudgetExhausted, UnsupportedEvent: they are not admitted, and not counted.
            Unavailable: the service did not answer for as long as a step may wait.
            DPLedgerError: any other refusal.
        """
        self._require_open()
        first = self.next_step
        if self.mode == "observe":
            return EVERY_STEP
        if self.mode == "strict":
            if first < self._charged and content != self._charged_as and self._charged_as:
                # Asked for ahead as something else, and not taken: they are spent, and count.
                self.take(self._charged_as, self._charged - first)
                first = self.next_step
            if first + steps > self._charged:
                self._patiently(lambda: self._charge(Span(first, steps, content)))
            return self._charged
        leases = self._leases
        if leases.admitted_to(content, first) < first + steps:
            self._patiently(lambda: leases.obtain(content, first, steps, retries=None))
        return leases.admitted_to(content, first)

    def take(self, content: str, steps: int) -> None:
        """Write steps to the spool and count them; they were admitted, and are taken after this.

        Raises:
            OSError: the spool could not be written, so they are not counted.
        """
        self._require_open()
        first = self.next_step
        if content != self._what:
            self.spool.append(b'{"what": %b}\n' % content.encode())
            self._what = content
        self.spool.append(b"%d\n" % first if steps == 1 else b"[%d, %d]\n" % (first, steps))
        waiting = self.outbox.append(content, steps)
        if self.mode == "strict":
            self.outbox.forget(before=self._charged)
        elif not self._wake.is_set() and self._is_due(content, first + steps, waiting):
            self._wake.set()

    def take_next(self, content: str, horizon: int) -> bool:
        """Take one more step like the one before, if it is below the horizon: the usual case.

        Raises:
            OSError: as `take`.
        """
        if content != self._what or self.mode == "strict":
            return False
        if self.ended is not None or os.getpid() != self._process:
            return False
        with self.outbox.state:
            buffer = self.outbox.buffer
            first = buffer.next_step
            if first >= horizon:
                return False
            self.spool.append(b"%d\n" % first)
            waiting = buffer.append(content, 1)
        if not self._wake.is_set() and self._is_due(content, first + 1, waiting):
            self._wake.set()
        return True

    def hush(self, hushed: bool) -> None:
        """Make no request of its own accord, or do so again: while a sweep's trials go on."""
        self._require_process()
        self._hushed = hushed
        self._wake.set()

    def flush(self) -> None:
        """Send everything so far.

        Raises:
            DPLedgerError: it could not be sent; it is kept.
        """
        self._require_process()
        self.outbox.send()

    def end(self, state: str, *, retries: int | None = None) -> None:
        """No step comes after this: send what is left and return what was leased.

        Raises:
            DPLedgerError: it could not be sent; the spool has it.
        """
        self._require_process()
        if self.ended is None:
            self.ended = state
            self.outbox.note({"end": state})
        with self.outbox.sending:
            self.outbox.send_held(retries=retries)
            self._leases.give_back(self.next_step, retries=retries)

    def finish(self, state: str) -> dict[str, Any]:
        """Say how the run ended; after `end`.

        Raises:
            DPLedgerError: it was refused, or the service is away.
        """
        return self.outbox.finish(state)

    def close(self, *, complete: bool) -> None:
        """Stop sending and let go of the spool."""
        if self._stop.is_set():
            return
        self._stop.set()
        self._wake.set()
        atexit.unregister(self.leave)
        if complete:
            self.outbox.note({"closed": True})
        with self.outbox.sending:
            self.spool.close()
        if complete:
            self._head.compare()  # what was signed last covers all that this run recorded

    def leave(self, state: str = "left") -> None:
        """End as well as can be: the process ends, or training goes on on another branch."""
        if os.getpid() != self._process:
            return  # a fork of the trainer knows nothing about its later steps
        try:
            self.end(state, retries=LEAVING_RETRIES)
            if state == "left":
                end = self.earlier_end or "interrupted"
                self.outbox.finish(end, retries=LEAVING_RETRIES)
        except Exception as error:  # whatever it is, the spool has the steps
            LOG.warning("dpledger: steps wait in %s: %s", self.spool.path, error)
            self.close(complete=False)
        else:
            self.close(complete=True)

    def _require_open(self) -> None:
        require_open(self.ended)
        self._require_process()

    def _require_process(self) -> None:
        """A fork knows nothing of the trainer's later steps: it must not end or return anything."""
        if os.getpid() != self._process:
            raise DPLedgerError({"title": "A run is used by the process that opened it"}, 0)

    def _is_due(self, content: str, next_step: int, waiting: int) -> bool:
        if waiting >= self._flush_steps:
            return True
        return self.mode == "leased" and self._leases.ahead(content, next_step)

    def _patiently(self, ask: Callable[[], None]) -> None:
        """Ask until there is an answer, or the step has waited long enough."""
        end, told = monotonic() + self._wait_seconds, False
        while True:
            try:
                with self.outbox.sending:
                    self.outbox.open()
                    ask()
            except Unavailable:
                if not monotonic() < end:
                    raise
                if not told:
                    LOG.warning("dpledger: a step waits for the service to answer")
                told = True
                sleep(_JITTER.uniform(WAIT_SECONDS / 2, WAIT_SECONDS))
            else:
                return

    def _charge(self, span: Span) -> None:
        self.outbox.send_held()
        self.outbox.post([span], "charge")
        if self.opening.reserved and self.reply.get("accepted") != span.steps:
            raise Conflict({"title": _TAKEN.format(step=span.first_step)}, 0)
        self._charged_as = span.content  # first: an interrupt between the two admits nothing
        self._charged = span.end

    def _work(self) -> None:
        """What the thread does until the journal is closed."""
        failures = 0
        while not self._stop.is_set():
            self._compare_if_due()
            self._wake.wait(self._flush_seconds)
            self._wake.clear()
            if self._hushed:
                continue
            try:
                if self._head.is_due:
                    self._head.compare()
                self._send_ahead()
            except Exception as error:  # a fault of any kind must not end the sending
                failures += 1
                self._troubled(error)
                pause = min(PAUSE_SECONDS_MAX, 0.25 * 2.0 ** min(failures, 10))
                self._stop.wait(_JITTER.uniform(pause / 2, pause))
                self._wake.set()  # try again, whether or not steps come
            else:
                failures, self.trouble = 0, None

    def _compare_if_due(self) -> None:
        if self._head.is_due and not self._hushed:
            try:
                self._head.compare()
            except LedgerRewritten as warning:  # where warnings are errors: it ends no sending
                LOG.warning("%s", warning)

    def _send_ahead(self) -> None:
        with self.outbox.sending:
            if self._stop.is_set() or self.ended is not None:
                return
            if not self.outbox.is_empty:
                self.outbox.send_held(retries=0)
            leases, next_step = self._leases, self.next_step
            if self.mode == "leased" and leases.ahead(leases.content or "", next_step):
                leases.extend(next_step, retries=0)

    def _troubled(self, error: Exception) -> None:
        if str(error) != str(self.trouble):  # once, however often it is tried
            LOG.warning("dpledger: steps wait in %s: %s", self.spool.path, error)
        self.trouble = error


def require_open(ended: str | None) -> None:
    """Refuse steps after the end.

    Raises:
        RunFinished: it came.
    """
    if ended is not None:
        raise RunFinished({"title": f"The run was {ended} here; it takes no more steps"}, 0)


def require_reserved(opening: Opening, answer: Mapping[str, Any]) -> None:
    """Refuse a run that was reserved for this job, if its plan holds nothing any more.

    Raises:
        Conflict: it left its plan, or never held it.
    """
    if opening.reserved and not answer.get("on_plan"):
        raise Conflict({"title": f"Run {opening.run_name} has no plan that is reserved"}, 0)


def _token(opening: Opening) -> str:
    given = opening.run if opening.branch is None else opening.branch
    return str(given["writer"])


def read_content(content: str) -> dict[str, Any]:
    """What a step was: its mechanism and its sampling."""
    read: dict[str, Any] = json.loads(content)
    return read
