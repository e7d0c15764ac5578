"""Refusals and failures: one class for each problem a caller may want to tell apart."""
# ruff: noqa: N818 - each class bears the name of its problem page.

from collections.abc import Mapping
from typing import Any, Final


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

    @property
    def failing_scopes(self) -> list[dict[str, Any]]:
        """The budgets that would be passed: scope, limit, spent, reserved and requested."""
        return list(self.problem.get("failing_scopes", ()))

    @property
    def admissible_steps(self) -> int:
        """How many of the charged steps, from the first on, would fit."""
        return int(self.problem.get("admissible_steps", 0))


class UnsupportedEvent(DPLedgerError):
    """No accepted theorem bounds the charged event; nothing was recorded."""


class Conflict(DPLedgerError):
    """The same name or the same steps stand in the ledger with other content."""


class RunExists(Conflict):
    """Another process opened this run; continue it on a branch."""


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


def error_of(problem: Mapping[str, Any], status: int) -> DPLedgerError:
    """The error that a problem document stands for, by the last segment of its `type`."""
    slug = str(problem.get("type", "")).rpartition("/")[2]
    otherwise = Unavailable if status >= 500 or status == 429 else DPLedgerError
    kind = _BY_SLUG.get(slug) or _BY_STATUS.get(status, otherwise)
    return kind(problem, status)
