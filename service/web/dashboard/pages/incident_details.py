"""Tell the details of an incident in words."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from service.formatting import (
    NO_BOUND,
    all_digits,
    charged_of,
    down,
    many,
    percent_down,
    percent_up,
    plain,
    up,
)
from service.guarantees.noise_schedule import part_words
from service.ledger.incidents import IncidentAnswer, Kind

# Each number or word of an incident as a phrase, in the order in which the page lists them. It
# lists a detail without a phrase last, under the name of the detail.
_PHRASES: Final[dict[str, str]] = {
    "frozen": "frozen",
    "scope": "limit of the {}",
    "thresholds": "passed {} of the capacity",
    "fraction": "passed {} of the capacity",  # the highest one; older incidents name no other
    "share": "charged {} of the capacity",
    "share_reserved": "reserved {}",
    "share_requested": "the steps would add {}",
    "branch": "branch {}",
    "reservation": "reservation {}",
    "declared": "declared: {}",
    "recorded": "in the code: {}",
    "rank": "rank {}",
    "world_size": "of {}",
    "other_rank": "the other is rank {}",
    "other_world_size": "of {}",
    "spent": "as an ε: {}",  # all of _EPSILONS in one phrase
    "limit": "limit ε {}",
    "certified": "certified ε {}",
    "restated": "now proved ε {}",
    "epsilon": "certified ε {}",
    "epsilon_at_least": "the audit leaves at least ε {}",
    "delta": "at δ {}",
    "p_value": "p-value {}",
    "level": "level {}",
    "accountant": "accountant {}",
    "order": "order {}",
    "steps": "{}",
    "first_step": "from step {}",
    "from_step": "from step {}",
    "revision": "settings revision {}",
    "reason": "reason: {}",
}
# The epsilons of a budget, which are told together.
_EPSILONS: Final = {
    "spent": "charged {}",
    "reserved": "reserved {}",
    "requested": "the steps would add {}",
    "remaining": "left {}",
    "limit": "limit {}",
}
_PLACES: Final = {name: place for place, name in enumerate(_PHRASES)}
_LOWER: Final = frozenset({"remaining", "epsilon_at_least", "restated"})
_EXACT: Final = frozenset({"delta", "limit"})
_NO_BOUNDS: Final = frozenset({"order", "level", "p_value"})
_INFINITE: Final = frozenset(
    {"spent", "reserved", "requested", "restated", "certified", "share", "share_requested"}
)
_SHARES: Final = frozenset({"share", "share_reserved", "share_requested"})
_SAMPLINGS: Final = frozenset({"declared", "recorded"})
_UNTOLD: Final = frozenset({"dataset", "run"})


def describe_details(incident: IncidentAnswer) -> list[str]:
    """The details of an incident in words: what its other columns do not tell.

    Upper bounds are rounded up and lower ones down. An epsilon that is null is infinite.
    """
    told = sorted(incident.detail.items(), key=lambda one: _PLACES.get(one[0], len(_PLACES)))
    detail = incident.detail
    said = [(name, value) for name, value in told if _says(incident, name, value)]
    return [_epsilons(detail) if name == "spent" else _phrase(name, value) for name, value in said]


def _epsilons(detail: Mapping[str, Any]) -> str:
    """What a budget has spent, and the rest of it, as epsilons."""
    told = {name: detail[name] for name in _EPSILONS if name in detail}
    phrases = [
        _EPSILONS[name].format(NO_BOUND if value is None else _told_value(name, value))
        for name, value in told.items()
    ]
    return _PHRASES["spent"].format(", ".join(phrases))


def _says(incident: IncidentAnswer, name: str, value: Any) -> bool:
    """Whether a detail is worth a phrase."""
    detail = incident.detail
    if name in _UNTOLD or isinstance(value, dict):
        return False
    if isinstance(value, list):
        return name == "thresholds"
    if name == "fraction":
        return "thresholds" not in detail
    if name in _EPSILONS and name != "spent" and "spent" in detail:
        return False
    if name == "frozen":
        return bool(value == "true")
    unlimited = incident.kind == Kind.SETTINGS_CHANGED and incident.detail.get("limit") is None
    return value is not None or (name in _INFINITE and not unlimited)


def _phrase(name: str, value: Any) -> str:
    phrase = _PHRASES.get(name, name.replace("_", " ") + " {}")
    if value is None:
        return f"{' '.join(phrase.format('').split())}: {NO_BOUND}"
    if name == "share":
        return f"charged {charged_of(value, 'the capacity')}"
    return phrase.format(_told_value(name, value))


def _told_value(name: str, value: Any) -> str:
    if name == "scope":  # of a dataset or of a run
        return str(value).replace(":", " ")
    if name in _SAMPLINGS:
        return part_words({"kind": value})
    if name == "steps" and isinstance(value, int):
        return many(value, "step")
    if name == "thresholds":
        return _list(list(map(percent_down, value)))
    if name == "fraction":
        return percent_down(value)
    if name in _SHARES:  # rounded as on the page of the dataset
        return percent_up(value)
    if isinstance(value, float):
        return _describe_number(name, value)
    return f"{value:,}" if isinstance(value, int) else str(value).replace("_", " ")


def _describe_number(name: str, value: float) -> str:
    """A lower bound is rounded down and all others that are bounds up."""
    if name in _EXACT:
        return all_digits(value)
    return plain(value) if name in _NO_BOUNDS else down(value) if name in _LOWER else up(value)


def _list(texts: Sequence[str]) -> str:
    """Texts as a sentence lists them."""
    *others, last = texts
    return f"{', '.join(others)} and {last}" if others else last
