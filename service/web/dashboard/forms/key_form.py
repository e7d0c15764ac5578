"""The forms by which an admin creates, rotates and revokes keys."""

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from service.clock import now, stamp
from service.identity.key_administration import KeyRevocation, KeyRotation, NewKey
from service.identity.keys import GRACE_SECONDS_MAX
from service.web.dashboard.forms.shown_form import message_of

DAYS_MAX: Final = 3650
_GRACE_MAX: Final = GRACE_SECONDS_MAX // 60
_NOT_MINUTES: Final = f"must be a whole number of minutes from 0 to {_GRACE_MAX}"
_NOT_DAYS: Final = f"must be a whole number of days from 1 to {DAYS_MAX}, or empty"
_NEW_DAYS: Final = "90"
NEW_KEY_FIELDS: Final = {
    "body.name": "name", "body.scope": "scope", "body.datasets": "datasets",
    "body.person": "person",
    "body.expires_at": "days", "body.requests_per_second": "rate",
}  # fmt: skip
KEY_FIELDS: Final = {
    "body.reason": "reason", "body.confirm_name": "confirm", "body.grace_seconds": "grace",
    "body.expires_at": "days",
}  # fmt: skip
BLANK_KEY: Final = {"scope": "trainer", "days": _NEW_DAYS}
# No other scope can be the first one; if it expired, no key could make another.
FIRST_ADMIN_KEY: Final = {"scope": "admin", "days": ""}
ROTATED: Final = {"grace": "60"}  # minutes


def key_of(sent: Mapping[str, str]) -> NewKey:
    """What the form of a new key asks for.

    Raises:
        InvalidRequestError: it names each field that is not as it must be.
    """
    faults: dict[str, str] = {}
    # Names between commas or blanks; without any it reaches every dataset.
    names = re.findall(r"[^\s,]+", sent.get("datasets", ""))
    given: dict[str, Any] = {
        "name": sent.get("name", "").strip(),
        "scope": sent.get("scope", ""),
        "person": sent.get("person", "").strip() or None,
        "datasets": names or None,
        "expires_at": _expiry(sent, faults),
    }
    rate = sent.get("rate", "").strip()
    if rate:
        try:
            given["requests_per_second"] = float(rate)
        except ValueError:
            faults["body.requests_per_second"] = "must be a number, or empty"
    return message_of(NewKey, given, faults)


def rotation_of(sent: Mapping[str, str]) -> KeyRotation:
    """What the form of a rotation asks for; the key keeps its end where no days are given.

    Raises:
        InvalidRequestError: it names each field that is not as it must be.
    """
    faults: dict[str, str] = {}
    minutes = sent.get("grace", "").strip()
    if not (minutes.isascii() and minutes.isdigit() and int(minutes[:9]) <= _GRACE_MAX):
        faults["body.grace_seconds"] = _NOT_MINUTES
        minutes = "0"
    given = {
        "grace_seconds": int(minutes) * 60,
        "expires_at": _expiry(sent, faults),
        "prefix": sent.get("prefix") or None,
    }
    return message_of(KeyRotation, given, faults)


def revocation_of(sent: Mapping[str, str]) -> KeyRevocation:
    """What the form of a revocation asks for.

    Raises:
        InvalidRequestError: it names each field that is not as it must be.
    """
    given = {
        "reason": sent.get("reason", "").strip(),
        "confirm_name": sent.get("confirm", "").strip() or None,
    }
    return message_of(KeyRevocation, given)


def _expiry(sent: Mapping[str, str], faults: dict[str, str]) -> str | None:
    """The end of a key, from a number of days; None where none is given."""
    days = sent.get("days", "").strip()
    if not days:
        return None
    if not (days.isascii() and days.isdigit() and len(days) <= 4 and 1 <= int(days) <= DAYS_MAX):
        faults["body.expires_at"] = _NOT_DAYS
        return None
    return stamp(now() + timedelta(days=int(days)))
