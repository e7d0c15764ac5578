"""What is sent and answered about change requests."""

from typing import Any, Final, Literal

from service.schemas.message import Body
from service.schemas.requests import ChangedBudget, Text
from service.schemas.responses import Answer, Page

EXPIRY_DAYS: Final = 7  # that a request waits for its approval, at most
OPEN_REQUESTS_MAX: Final = 50  # of one person that wait at once, on all datasets

RequestKind = Literal["limit", "envelope", "void", "correction"]
RequestState = Literal["pending", "approved", "rejected", "withdrawn", "expired", "stale"]
DecisionName = Literal["approved", "rejected", "withdrawn"]


class NewChangeRequest(Body):
    """Another limit or envelope for a dataset, and why."""

    reason: Text
    budget: ChangedBudget


class NewDecision(Body):
    """Why a request is approved, rejected or withdrawn."""

    reason: Text


class DecisionAnswer(Answer):
    """What was decided about a request."""

    decision: DecisionName
    reason: str
    by: str  # the key's name
    person: str  # who held it
    decided_at: str


class ChangeRequestAnswer(Answer):
    """A change that waits for another person, or what became of it."""

    id: str
    dataset: str | None
    kind: RequestKind
    target: str | None  # the run or the reservation that it is about
    state: RequestState
    change: dict[str, Any]  # the body that is applied when it is approved
    revision: int | None  # of the settings that it was decided on
    reason: str
    by: str  # the key's name
    person: str  # who held it
    requested_at: str
    expires_at: str
    decision: DecisionAnswer | None


class ChangeRequestPage(Page):
    """Change requests in the order in which they were made."""

    requests: list[ChangeRequestAnswer]
