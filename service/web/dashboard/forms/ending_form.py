"""The forms by which an admin closes a run, voids a reservation, or corrects steps."""

import json
from collections.abc import Mapping
from typing import Any, Final

from service.ledger.corrections import RecordedSpan
from service.schemas.requests import Finish, NewCorrection, Void
from service.web.dashboard.forms.shown_form import message_of

ENDS: Final = (
    ("aborted", "it will not go on (aborted)"),
    ("finished", "it ran as planned (finished)"),
    ("stopped_at_budget", "it stopped at its budget"),
    ("interrupted", "it may go on (interrupted)"),
)
USUAL_END: Final = "aborted"
ENDING_FIELDS: Final = {"body.state": "state", "body.reason": "reason"}
CORRECTION_FIELDS: Final = {
    "body.branch": "branch", "body.first_step": "first", "body.steps": "steps",
    "body.reason": "reason", "body.mechanism.noise_multiplier": "noise",
    "body.sampling.kind": "sampling", "body.sampling": "sampling",
    "body.sampling.sampling_probability": "rate", "body.sampling.batch_size": "batch",
    "body.sampling.steps_per_pass": "pass", "body.sampling.reshuffle": "sampling",
}  # fmt: skip
SAMPLINGS: Final = (
    ("poisson", "Poisson"),
    ("shuffle", "shuffled anew each pass"),
    ("shuffle_once", "shuffled once"),
    ("cyclic", "fixed order"),
    ("fixed_size", "fixed size, drawn anew each step"),
    ("full", "all records"),
    ("unknown", "not known"),
)
_MEMBERS: Final = {
    "rate": "sampling_probability", "batch": "batch_size", "pass": "steps_per_pass",
}  # fmt: skip
_IN_ORDER: Final = ("shuffle", "shuffle_once", "cyclic")
_FIELDS: Final = {"poisson": ("rate",), "fixed_size": ("batch",)} | dict.fromkeys(
    _IN_ORDER, ("batch", "pass")
)  # that a sampling has
_NOT_A_NUMBER: Final = "must be a number, such as 1.1 or 1e-3"
_ANOTHER: Final = "must be empty: the sampling that is chosen has none"
_NOT_WHOLE: Final = "must be a whole number"


def ending_of(sent: Mapping[str, str]) -> Finish:
    """How a run is closed, and why.

    Raises:
        InvalidRequestError: it names each field that is not as it must be.
    """
    return message_of(Finish, {"state": sent.get("state", USUAL_END), "reason": _reason(sent)})


def void_of(sent: Mapping[str, str]) -> Void:
    """Why a reservation is voided.

    Raises:
        InvalidRequestError: the reason is not as it must be.
    """
    return message_of(Void, {"reason": _reason(sent)})


def correction_of(sent: Mapping[str, str]) -> NewCorrection:
    """What steps really were: Gaussian noise, and one of SAMPLINGS.

    Raises:
        InvalidRequestError: it names each field that is not as it must be.
    """
    faults: dict[str, str] = {}
    given: dict[str, Any] = {
        "branch": sent.get("branch", ""),
        "first_step": _whole(sent, "first", "body.first_step", faults),
        "steps": _whole(sent, "steps", "body.steps", faults),
        "mechanism": {
            "kind": "gaussian",
            "noise_multiplier": _real(sent, "noise", "body.mechanism.noise_multiplier", faults),
        },
        "sampling": _sampling(sent, faults),
        "reason": _reason(sent),
    }
    return message_of(NewCorrection, given, faults)


def blank_correction(
    branch: str, found: RecordedSpan | None, detected: Mapping[str, Any] | None
) -> dict[str, str]:
    """The form as a page first shows it: the last steps of a branch as they were recorded.

    Args:
        branch: its name.
        found: its last steps of one event, if there are any.
        detected: how the code samples, if that contradicts what was declared.
    """
    blank = {"branch": branch}
    sampling: Mapping[str, Any] = detected or {"kind": "poisson"}
    if found is not None:
        event = json.loads(found.content)
        blank |= {"first": str(found.first_step), "steps": str(found.steps)}
        if event["mechanism"]["kind"] == "gaussian":
            blank["noise"] = repr(event["mechanism"]["noise_multiplier"])
        sampling = detected or event["sampling"]
    return blank | _sampling_fields(sampling)


def _sampling_fields(sampling: Mapping[str, Any]) -> dict[str, str]:
    """The fields of a sampling; empty if the form has no such sampling."""
    kind = sampling["kind"]
    if kind == "shuffle" and sampling.get("reshuffle") == "once":
        kind = "shuffle_once"
    if kind not in dict(SAMPLINGS):
        return {}
    given = {name: sampling.get(member) for name, member in _MEMBERS.items()}
    typed = {name: repr(value) for name, value in given.items() if value is not None}
    return {"sampling": kind} | typed


def _sampling(sent: Mapping[str, str], faults: dict[str, str]) -> dict[str, Any]:
    kind = sent.get("sampling", "")
    if kind not in dict(SAMPLINGS):
        faults["body.sampling"] = "must be one of those that are offered"
        return {"kind": "full"}
    found: dict[str, Any] = {"kind": "shuffle" if kind == "shuffle_once" else kind}
    for name, member in _MEMBERS.items():
        place = f"body.sampling.{member}"
        if name in _FIELDS.get(kind, ()):
            read = _real if name == "rate" else _whole
            found[member] = read(sent, name, place, faults)
        elif sent.get(name, "").strip():
            faults[place] = _ANOTHER  # it may be another sampling that was meant
    if kind in ("shuffle", "shuffle_once"):
        found["reshuffle"] = "once" if kind == "shuffle_once" else "each_pass"
    return found


def _reason(sent: Mapping[str, str]) -> str:
    return sent.get("reason", "").strip()


def _whole(sent: Mapping[str, str], name: str, place: str, faults: dict[str, str]) -> int:
    text = sent.get(name, "").strip()
    if not (text.isascii() and text.isdigit()):
        faults[place] = _NOT_WHOLE
        return 1
    return int(text[:20])


def _real(sent: Mapping[str, str], name: str, place: str, faults: dict[str, str]) -> float:
    try:
        return float(sent.get(name, ""))
    except ValueError:
        faults[place] = _NOT_A_NUMBER
        return 1.0
