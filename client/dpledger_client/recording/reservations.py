"""Leases: steps that the service admitted ahead, so that taking them needs no request.

A lease is a reservation of the contract. It counts as held until its steps are recorded, and once
expired as spent: whatever becomes of this process, its admitted steps are counted. So an expired
lease is as good as another, and no clock of this machine decides anything.

A run with a plan leases what the plan has next, also steps of different kinds: a noise that changes
at each step then needs no request at each step. A step that is not the planned one ends that, and
is leased by itself. A pass of correlated noise is leased up to its end: what follows has no bound.
"""

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final

from dpledger_client.errors import (
    BudgetExhausted,
    Conflict,
    DPLedgerError,
    InvalidRequest,
    NotFound,
    OutOfSequence,
    RunFinished,
    UnsupportedEvent,
)
from dpledger_client.recording.event_buffer import Span
from dpledger_client.recording.outbox import LOG, Outbox
from dpledger_client.recording.schedule import EVENTS_MAX, Schedule

STEPS_FIRST: Final = 64
STEPS_MAX: Final = 1_000_000
LEASE_SECONDS: Final = 600.0  # of training that one lease should last, at the speed seen
GROWTH: Final = 8  # of a lease over the one before, at most
TTL_SECONDS: Final = 86_400  # until what a trainer left behind is told as forfeited
LEASES_MAX: Final = 64  # open at once
SPANS_MAX: Final = 256  # granted and not passed, as the service takes them of a branch
TRIES: Final = 4  # to get what still fits, while others take of the same budget


# A reservation that was refused so was not made, nor will be: a name that is known is answered.
_REFUSED: Final = (
    BudgetExhausted,
    Conflict,
    InvalidRequest,
    OutOfSequence,
    RunFinished,
    UnsupportedEvent,
)


@dataclass(frozen=True, slots=True)
class Lease:
    """A reservation that was granted."""

    name: str
    end: int  # the first step after it


class Leases:
    """The leases of a branch. All methods but `ahead` want the outbox's `sending` held."""

    def __init__(self, outbox: Outbox, steps: int | None) -> None:
        self._outbox = outbox
        self._fixed = steps
        self._open: list[Lease] = []
        self._asked: dict[str, Any] | None = None  # a request that has no answer yet
        self._asked_spans: list[Span] = []  # of that request
        self._size = 0  # of the last one
        self._since = (monotonic(), outbox.opening.first_step)
        # Whether no more is asked for early: the budget had not room for a whole lease, or this one
        # is for as many steps as the kind before it had.
        self._narrow = False
        # Ends of all events that were granted and may still be open, those of returned leases, too.
        self._granted: list[int] = []
        self._began = outbox.opening.first_step  # the first step of this kind
        self._used: int | None = None  # steps of the kind before; none after a lease of this one
        self._schedule: Final = Schedule(outbox.opening.schedule)
        self._planned = False  # whether the leases hold what the schedule says
        # Replaced as a whole, for the trainer reads it while the background adds to it.
        self._spans: tuple[Span, ...] = ()  # what is admitted, as which kinds
        self.content: str | None = None  # what the last of the leased steps is
        self.end = outbox.opening.first_step  # steps below it are admitted

    def ahead(self, content: str, next_step: int) -> bool:
        """Whether it is time to ask for more, before it is needed."""
        short = 2 * (self.end - next_step) < self._size and not self._narrow
        if self._planned:
            return short and self.content is not None
        return short and content == self.content

    def admitted_to(self, content: str, first_step: int) -> int:
        """The step up to which, exclusive, steps of a kind are admitted from a step on."""
        if self.content is None:
            return first_step
        for span in self._spans:
            if span.first_step <= first_step < span.end:
                if span.content != content:
                    break
                first_step = span.end
        return first_step

    def obtain(self, content: str, first_step: int, steps: int, *, retries: int | None) -> None:
        """Get at least so many steps admitted from `first_step` on, and rather more.

        Raises:
            BudgetExhausted: they do not fit; nothing is held for them.
            UnsupportedEvent: no accepted theorem bounds them.
            DPLedgerError: any other refusal, or the service is away.
        """
        if not self._goes_on(content, first_step, steps):
            self._begin(content, first_step, steps, retries)
        self._settle(retries)
        wanted, used = first_step + steps - self.end, self._used
        if wanted > 0:
            try:
                self._reserve(wanted, self._more(first_step, wanted), retries)
            except OutOfSequence as error:  # an admin voided a lease: nothing holds what follows
                LOG.warning("dpledger: leases are taken anew from step %d: %s", first_step, error)
                self._outbox.send_held(retries=retries)
                self._begin(content, first_step, steps, retries)
                self._reserve(steps, self._more(first_step, steps), retries)
            if used is not None and not self._planned and self._size <= max(used, wanted):
                self._narrow = True

    def extend(self, next_step: int, *, retries: int | None) -> None:
        """Get more steps admitted early; fewer if no more fit, none at the plan's end."""
        self._settle(retries)
        over = self._planned and not self._schedule.after(self.end, 1)
        if over or self._left_of_pass() == 0:
            self._narrow = True
            return
        try:
            self._reserve(1, self._more(next_step, 1), retries, needed=0)
        except (BudgetExhausted, UnsupportedEvent):
            self._narrow = True  # asked again only by the step that needs it

    def give_back(self, next_step: int, *, retries: int | None) -> None:
        """Attest that no step from `next_step` on ran under any lease: the rest returns."""
        # First of all nothing is admitted: this may end half-way, and is then done again.
        self.content = None
        self._settle(retries)
        while self._open:
            last = self._open[-1]
            if last.end > next_step:  # else all of it was used
                self.release(last.name, next_step - 1, retries=retries)
            self._open.pop()
        self.end, self._narrow, self._spans = next_step, False, ()

    def release(self, name: str, last_step: int, *, retries: int | None) -> None:
        """Return what a lease holds beyond a step, if it was ever granted."""
        path = f"/v1/reservations/{name}:release"
        try:
            self._outbox.transport.post(path, {"last_step": last_step}, retries=retries)
        except NotFound:
            LOG.debug("dpledger: lease %s was never granted", name)
        except Conflict as error:  # it was returned before, or an admin voided it
            LOG.info("dpledger: lease %s could not be released: %s", name, error)

    def _goes_on(self, content: str, first_step: int, steps: int) -> bool:
        """Whether the leases hold these steps as far as they reach, and the next ones are alike."""
        if self.content is None:
            return False
        at = self.admitted_to(content, first_step)
        if at < min(self.end, first_step + steps):
            return False
        left = first_step + steps - self.end
        if left <= 0:
            return True
        if self._planned:
            return self._schedule.says(content, self.end, left)
        return content == self.content

    def _begin(self, content: str, first_step: int, steps: int, retries: int | None) -> None:
        """Take leases for something else, or anew: as planned, or of steps that are all alike."""
        changed = self.content is not None and content != self.content
        self.give_back(first_step, retries=retries)
        self._used = (first_step - self._began or None) if changed else None
        self.content, self._began = content, first_step
        self._planned = self._schedule.says(content, first_step, steps)

    def _more(self, next_step: int, wanted: int) -> int:
        """How many steps to ask for: enough for a while at the present speed."""
        before, step = self._since
        self._since = (monotonic(), next_step)
        speed = (next_step - step) / max(monotonic() - before, 1e-3)
        lasting = int(min(speed * LEASE_SECONDS, STEPS_MAX))
        most = max(STEPS_FIRST, min(lasting, GROWTH * self._size))
        most = most if self._fixed is None else self._fixed
        many = self._fixed is None or len(self._granted) > LEASES_MAX
        if self._used is not None and many and not self._planned:
            # Kinds that change often: a lease of as many steps as the last kind had leaves nothing
            # to return, and the service looks at a returned lease until it is passed.
            most = min(most, self._used)
        left = self._left_of_pass()
        return max(wanted, most if left is None else min(most, left))

    def _left_of_pass(self) -> int | None:
        """Steps that are not leased yet of a pass whose noise does not restart; None without."""
        length = _only_pass(self.content or "{}")
        return None if length is None else max(0, self._began + length - self.end)

    def _reserve(
        self, least: int, steps: int, retries: int | None, *, needed: int | None = None
    ) -> None:
        """Get so many steps admitted, or as many as fit, at least `least`.

        The service is told how many are needed now, by default `least`: that others are refused
        is no incident.
        """
        now = least if needed is None else needed
        if len(self._open) >= LEASES_MAX or len(self._granted) + EVENTS_MAX > SPANS_MAX:
            self._outbox.send_held(retries=retries)
            sent = self._outbox.buffer.first_step
            self._open = [one for one in self._open if one.end > sent]
            self._granted = [end for end in self._granted if end > sent]
        self._narrow = False
        for _ in range(TRIES):
            try:
                self._ask(steps, retries, needed=now)
            except BudgetExhausted as refusal:
                if not least <= refusal.admissible_steps < steps:
                    raise
                steps = refusal.admissible_steps
                self._narrow = True
            except UnsupportedEvent:  # a pass of correlated noise may end before the lease does
                if steps == least or _only_pass(self.content or "{}") is None:
                    raise
                steps, self._narrow = least, True
            else:
                return
        raise DPLedgerError({"title": "The budget changes faster than steps can be reserved"}, 0)

    def _ask(self, steps: int, retries: int | None, *, needed: int) -> None:
        name = f"lease-{secrets.token_hex(12)}"
        spans = [Span(self.end, steps, self.content or "{}")]
        if self._planned:
            spans = self._schedule.after(self.end, steps)
        if self._outbox.spool is not None:
            self._outbox.spool.write(
                {"lease": name}
            )  # a later sync of the spool can return the rest
        self._asked = {  # kept until there is an answer: if that is lost, this may be granted
            "name": name,
            "branch": self._outbox.opening.branch_name,
            **_asked_for(spans),
            "ttl_seconds": TTL_SECONDS,
            "needed_steps": needed,
        }
        self._asked_spans = spans
        self._answered(retries)

    def _settle(self, retries: int | None) -> None:
        """Get the answer to an earlier request; its refusal says nothing about the next one."""
        try:
            self._answered(retries)
        except _REFUSED as error:
            LOG.debug("dpledger: a lease was refused: %s", error)

    def _answered(self, retries: int | None) -> None:
        """Ask until there is an answer, always with the same words: then it is granted once."""
        if self._asked is None:
            return
        path = self._outbox.path("/reservations")
        try:
            self._outbox.transport.post(path, self._asked, retries=retries)
        except _REFUSED:
            self._asked = None
            raise
        spans, sent = self._asked_spans, self._outbox.buffer.first_step
        granted = Lease(self._asked["name"], spans[-1].end)
        self._open.append(granted)
        self._spans = (*(span for span in self._spans if span.end > sent), *spans)
        self._granted += [span.end for span in spans]
        self._used = None
        self._size, self.end = granted.end - spans[0].first_step, granted.end
        if self.content is not None:  # else they were given back, and admit nothing
            self.content = spans[-1].content
        self._asked = None


def _only_pass(content: str) -> int | None:
    """The length of the pass beyond which steps of a kind have no bound; None without one."""
    sampling = json.loads(content).get("sampling", {})
    kind, again = sampling.get("kind"), sampling.get("noise_restarts_each_pass", False)
    correlated = kind in ("min_separation", "cyclic_poisson") and not again
    return int(sampling["steps_per_pass"]) if correlated else None


def _asked_for(spans: Sequence[Span]) -> dict[str, Any]:
    """Of a request: what it is to hold."""
    if len(spans) == 1:
        return {"event": spans[0].event()}
    return {"events": [span.event() for span in spans]}
