"""Refusals and failures: one class for each problem a caller may want to tell apart."""
# ruff: noqa: N818 - each class bears the name of its problem page.

import math
from collections.abc import Mapping
from typing import Any, Final

from dpledger_client.answers.explanations import FailingScope
from dpledger_client.rounding import up


class DPLedgerError(Exception):
    """The service refused a request, failed, or did not answer.

    Attributes:
        problem: the problem document (RFC 9457); empty when none came.
        status: the HTTP status; 0 when no answer came.
    """

    def __init__(self, problem: Mapping[str, Any], status: int) -> None:
        self.problem = dict(problem)
        self.status = status
        super().__init__(self.problem, status)

    def __str__(self) -> str:
        title, detail = (str(self.problem.get(name) or "") for name in ("title", "detail"))
        if detail.startswith(title.rstrip(".")):  # it says the same, and more
            title = ""
        return ": ".join(filter(None, (title, detail))) or f"HTTP status {self.status}"


class BudgetExhausted(DPLedgerError):
    """The charged steps do not fit in a budget; nothing was recorded."""

    def __str__(self) -> str:
        told = super().__str__()
        if (steps := self.steps_taken) is None:
            return told
        taken = f"Run {self.problem.get('run')} has taken {steps:,} steps"
        fit = self.admissible_steps
        number = f"{fit:,}" if fit else "no"
        more = f"{number} more step{' fits' if fit == 1 else 's fit'}"
        scopes = self.failing_scopes
        if any(one.get("would_fit") or one.get("limit") is None for one in scopes) or not scopes:
            return f"{told.rstrip('.')}. {taken}; {more}."
        advice = str(self.problem.get("detail") or "").partition(" would fit.")[2]
        return f"{taken}; {more}: {'; '.join(map(_charged, scopes))}.{advice}"

    @property
    def steps_taken(self) -> int | None:
        """How many steps the run has taken; None if the run did not tell."""
        steps = self.problem.get("steps_taken")
        return None if steps is None else int(steps)

    @property
    def failing_scopes(self) -> list[FailingScope]:
        """The budgets that would be passed: scope, limit, spent, reserved and requested."""
        return [FailingScope(one) for one in self.problem.get("failing_scopes", ())]

    @property
    def admissible_steps(self) -> int:
        """How many of the charged steps, from the first on, would fit."""
        return int(self.problem.get("admissible_steps", 0))


class UnsupportedEvent(DPLedgerError):
    """No accepted theorem bounds the charged event; nothing was recorded."""


class Conflict(DPLedgerError):
    """The same name or the same steps stand in the ledger with other content."""


class RunExists(Conflict):
    """A run of this name exists: it has ended, or another process has it open."""

    def __str__(self) -> str:
        state = self.problem.get("run_state")
        if state is None:
            return super().__str__()
        told = str(self.problem.get("detail") or "").rstrip()
        if state in ("active", "reopened"):
            told += " Another process may have it open."
        if told.endswith("choose another name."):
            return f"{told[:-1]}; None makes one."
        return f"{told} To start another run, choose another name; None makes one."


class BranchExists(Conflict):
    """Another process opened this branch; choose another name."""


class OutOfSequence(DPLedgerError):
    """Steps are missing before the first one sent."""

    @property
    def expected_step(self) -> int | None:
        """The first step the branch has not recorded."""
        step = self.problem.get("expected_step")
        return None if step is None else int(step)


class RunFinished(DPLedgerError):
    """The run was closed and is not charged any more."""


class NotFound(DPLedgerError):
    """No such name, or none that this key may see."""


class InvalidRequest(DPLedgerError):
    """The request breaks the contract; the message names the place."""


class Unauthorized(DPLedgerError):
    """No API key, or one that is not known."""


class Forbidden(DPLedgerError):
    """The scope of the API key does not allow this."""


class AnotherPerson(DPLedgerError):
    """Another person must decide this change request, or the one who asked for it."""


class Unavailable(DPLedgerError):
    """No answer, or none but "not now", after all retries.

    The request may or may not have taken effect; sending it again is safe.
    """


class LedgerSuspended(Unavailable):
    """The service's ledger contradicts what it signed, so nothing is written to it for now."""


_BY_SLUG: Final[Mapping[str, type[DPLedgerError]]] = {
    "another-person": AnotherPerson,
    "branch-exists": BranchExists,
    "body-too-large": InvalidRequest,
    "budget-exhausted": BudgetExhausted,
    "conflict": Conflict,
    "forbidden": Forbidden,
    "internal-error": Unavailable,
    "invalid-request": InvalidRequest,
    "ledger-suspended": LedgerSuspended,
    "malformed-body": InvalidRequest,
    "not-found": NotFound,
    "out-of-sequence": OutOfSequence,
    "run-exists": RunExists,
    "run-finished": RunFinished,
    "unauthorized": Unauthorized,
    "unavailable": Unavailable,
    "unsupported-event": UnsupportedEvent,
    "unsupported-media-type": InvalidRequest,
}
# For answers that a proxy gave in the service's place.
_BY_STATUS: Final[Mapping[int, type[DPLedgerError]]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
}


def _charged(scope: FailingScope) -> str:
    """A limit and what is charged of it; charged is rounded up."""
    kind, _, name = scope.scope.partition(":")
    told = f"{kind} {name} has a limit of {scope.limit:g}, and {_up(scope.spent)} is charged"
    return told + (f" and {_up(scope.reserved)} reserved" if scope.reserved else "")


def _up(epsilon: float | None) -> str:
    if epsilon is None or not math.isfinite(epsilon):
        return "infinity"
    return up(epsilon).rstrip("0").rstrip(".")


def error_of(problem: Mapping[str, Any], status: int) -> DPLedgerError:
    """The error that a problem document stands for, by the last segment of its `type`."""
    slug = str(problem.get("type", "")).rpartition("/")[2]
    otherwise = Unavailable if status >= 500 or status == 429 else DPLedgerError
    kind = _BY_SLUG.get(slug) or _BY_STATUS.get(status, otherwise)
    return kind(problem, status)
