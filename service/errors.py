"""Refusals, as exceptions: their text is safe to show and never repeats what was sent."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

_PLACES: Final = 4  # of epsilons in texts


def release(error: BaseException) -> None:
    """Let go of what an error holds that has been answered: the frames it passed and their values.

    A thread hands an error over in a future, which the frame that waits for it keeps: the future,
    the error, its traceback and that frame hold one another, with the body that was refused, until
    the garbage collector looks. An error that came of another one holds that one, too, and a JSON
    or UTF-8 error the whole text.
    """
    held: list[BaseException | None] = [error]
    while held:
        one = held.pop()
        if one is not None:
            held += [one.__cause__, one.__context__]
            one.__traceback__ = one.__cause__ = one.__context__ = None


class LedgerError(Exception):
    """Base of every refusal; `slug` names its problem page."""

    slug: ClassVar[str]

    def __init__(self, detail: str, **extra: object) -> None:
        super().__init__(detail)
        self.detail = detail
        self.extra = extra  # further members of the problem document

    def relocate(self, place: Callable[[str], str]) -> None:
        """Name each refused location as the sender knows it; most refusals name no location.

        Args:
            place: the sender's name of a location.
        """


class NotFoundError(LedgerError):
    """No such name, or none that the caller may see."""

    slug = "not-found"


class InvalidRequestError(LedgerError):
    """A value that the schema alone cannot refuse, named by its location."""

    slug = "invalid-request"

    def __init__(self, location: str, message: str) -> None:
        super().__init__(
            f"{location}: {message}", errors=[{"location": location, "message": message}]
        )
        self._faults: Mapping[str, str] = {location: message}

    @classmethod
    def of(cls, faults: Mapping[str, str]) -> "InvalidRequestError":
        """Several faults, by location, in one refusal."""
        (location, message), *_ = faults.items()
        error = cls(location, message)
        error._tell(faults)
        return error

    def relocate(self, place: Callable[[str], str]) -> None:
        """Name each place as its sender knows it."""
        self._tell({place(where): what for where, what in self._faults.items()})

    def _tell(self, faults: Mapping[str, str]) -> None:
        self._faults = faults
        self.detail = "; ".join(f"{where}: {what}" for where, what in faults.items())
        self.extra = {"errors": [{"location": w, "message": m} for w, m in faults.items()]}


class ConflictError(LedgerError):
    """The same name or steps were recorded before with other content."""

    slug = "conflict"


class RunExistsError(LedgerError):
    """Another process opened this run first; the text says what has become of it."""

    slug = "run-exists"


class BranchExistsError(LedgerError):
    """Another process opened this branch first."""

    slug = "branch-exists"


class RunFinishedError(LedgerError):
    """A finished run is not charged; what happened is still recorded."""

    slug = "run-finished"


class OutOfSequenceError(LedgerError):
    """Steps are missing before the first one sent, or it lies before its branch began."""

    slug = "out-of-sequence"

    def __init__(self, expected_step: int) -> None:
        super().__init__(
            f"The branch's next step is {expected_step}; steps are recorded without gaps.",
            expected_step=expected_step,
        )


class UnsupportedEventError(LedgerError):
    """An event that no accepted theorem bounds."""

    slug = "unsupported-event"

    def __init__(self, index: int, reason: str, *, where: str = "events") -> None:
        location = f"{where}[{index}]"
        super().__init__(f"{location}: {reason}", location=location)
        self._reason = reason

    def relocate(self, place: Callable[[str], str]) -> None:
        """Name the event's place as its sender knows it."""
        location = place(str(self.extra["location"]))
        self.detail, self.extra = f"{location}: {self._reason}", {"location": location}


class TooExpensiveError(LedgerError):
    """A question that would take too long to answer; nothing was recorded."""

    slug = "too-expensive"


class BudgetExhaustedError(LedgerError):
    """The steps do not fit in a budget; nothing was recorded."""

    slug = "budget-exhausted"

    def __init__(
        self,
        failing_scopes: Sequence[dict[str, object]],
        admissible_steps: int,
        order_uses: Sequence[object] = (),
        shares: Mapping[str, float | None] | None = None,
    ) -> None:
        fit = f"The first {admissible_steps:,} of them" if admissible_steps else "None of them"
        super().__init__(
            f"{'; '.join(map(_standing, failing_scopes))}. {fit} would fit.",
            failing_scopes=list(failing_scopes),
            admissible_steps=admissible_steps,
        )
        self.failing_scopes = list(failing_scopes)
        self.admissible_steps = admissible_steps
        self.order_uses = order_uses  # what an answer may say of the budgets' orders
        self.shares = shares or {}  # of the first budget's capacity, as its incident says them


def _standing(scope: Mapping[str, Any]) -> str:
    """What a budget has left, in words; epsilons are rounded up."""
    reserved = scope["reserved"]
    if scope.get("would_fit") is not None:
        return (
            f"{scope['scope']} is an envelope that does not cover the steps; item "
            f"{scope['nearest_item']} comes nearest and needs: {scope['would_fit']}"
        )
    held = "" if reserved == 0 else f" and holds {_up(reserved)} in reserve"
    limit = f"{scope['limit']!r}".removesuffix(".0")
    return f"{scope['scope']} has spent {_up(scope['spent'])} of {limit}{held}"


def _up(epsilon: float | None) -> str:
    if epsilon is None or not math.isfinite(epsilon):
        return "infinity"
    from accounting.rounding import up_to_places  # takes a fifth of a second, if a command loads it

    return f"{up_to_places(epsilon, _PLACES).normalize():f}"


class DatasetFrozenError(LedgerError):
    """A frozen dataset admits nothing; what happened is still recorded."""

    slug = "dataset-frozen"

    def __init__(self, dataset: str) -> None:
        super().__init__(
            f"Dataset {dataset} is frozen: nothing is admitted until an admin unfreezes it.",
            dataset=dataset,
        )


class PreconditionRequiredError(LedgerError):
    """A change that does not say which revision it was decided on."""

    slug = "precondition-required"


class PreconditionFailedError(LedgerError):
    """A change that was decided on another revision than the present one."""

    slug = "precondition-failed"


class UnauthorizedError(LedgerError):
    """No key, or one that is not known."""

    slug = "unauthorized"


class ForbiddenError(LedgerError):
    """The key's scope does not allow this call."""

    slug = "forbidden"


class AnotherPersonError(LedgerError):
    """Another person must do this, or the one who asked for it."""

    slug = "another-person"


class TooManyRequestsError(LedgerError):
    """The key sends, or has open, more requests than it may; never said of a budget."""

    slug = "too-many-requests"

    def __init__(
        self,
        retry_after_seconds: int,
        detail: str = "The key has sent as many requests as it may for now; nothing was recorded.",
    ) -> None:
        super().__init__(detail, retry_after_seconds=retry_after_seconds)
        self.retry_after_seconds = retry_after_seconds


class MalformedBodyError(LedgerError):
    """The body is not JSON as RFC 8259 has it, or repeats a key."""

    slug = "malformed-body"


class UnsupportedMediaTypeError(LedgerError):
    """The body is of a type this call does not read."""

    slug = "unsupported-media-type"


class ForeignOriginError(LedgerError):
    """A form was sent by a page of another origin, or over plain HTTP from another machine."""

    slug = "foreign-origin"


class MisdirectedError(LedgerError):
    """A process of another role answers this."""

    slug = "misdirected"


class UnavailableError(LedgerError):
    """The database cannot take the request now; the same request may be sent again."""

    slug = "unavailable"


class DamagedError(UnavailableError):
    """The database is not to be trusted until an operator has looked at it; nothing was written."""


class LedgerSuspendedError(LedgerError):
    """The ledger contradicts what it signed; nothing is written until an admin reconciled it."""

    slug = "ledger-suspended"


class StartupError(Exception):
    """The service must not start like this; the text says what to change."""
