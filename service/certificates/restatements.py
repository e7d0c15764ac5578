"""Restatements: what a later version of the accounting says of what an earlier one certified.

Nothing is edited. A certificate stays as it was signed; beside it the log tells that a number of it
turned out too low, or higher than it had to be.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

AGREEMENT: Final = 1e-6  # relative: more than what rounding differs by between machines
TOO_LOW: Final = "too_low"  # less was certified than the later version can prove: shouted
TOO_HIGH: Final = "too_high"
_KEY: Final = ("delta", "accountant", "reservations")
Bracket = Mapping[str, Any]


def is_later(one: str, other: str) -> bool:
    """Whether a version of the accounting came after another."""
    return _numbers(one) > _numbers(other)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"[0-9]{1,9}", version)[:4])


def bracket_of(statement: Bracket) -> dict[str, Any]:
    """The part of a statement that an act keeps."""
    return {name: statement[name] for name in (*_KEY, "epsilon", "epsilon_lower")}


def direction_of(old: float | None, new: float | None) -> str | None:
    """Whether a certified epsilon was too low or too high; None where the two agree."""
    if old is None or new is None:
        return None if old is new else TOO_HIGH if old is None else TOO_LOW
    if new > old * (1 + AGREEMENT):
        return TOO_LOW
    return TOO_HIGH if new < old * (1 - AGREEMENT) else None


def differences(old: Iterable[Bracket], new: Iterable[Bracket]) -> list[dict[str, Any]]:
    """Where two lists of statements on the same facts differ."""
    later = {_key(one): one for one in new}
    found = []
    for before in old:
        after = later.get(_key(before))
        direction = after and direction_of(before["epsilon"], after["epsilon"])
        if after and direction:
            given = dict(zip(_KEY, _key(before), strict=True))
            found.append(
                given | {"direction": direction, "old": _ends(before), "new": _ends(after)}
            )
    return found


def _key(bracket: Bracket) -> tuple[Any, ...]:
    return tuple(bracket[name] for name in _KEY)


def _ends(bracket: Bracket) -> dict[str, Any]:
    return {name: bracket[name] for name in ("epsilon", "epsilon_lower")}
