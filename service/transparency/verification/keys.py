"""API keys against the acts that made them what they are."""

import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection, select

from service.clock import stamp, utc
from service.storage.tables import api_keys
from service.transparency.verification.log import Walk, describe_act
from service.transparency.verification.report import Rank, to_printable
from service.transparency.verification.rows import UNREADABLE, every, is_time

_KEYS: Final = select(api_keys).order_by(api_keys.c.id)
_SAID: Final = (
    "scope", "digest", "datasets", "expires_at", "requests_per_second", "body_bytes_max",
    "previous_digest", "previous_until", "person",
)  # fmt: skip
_TIMES: Final = frozenset({"expires_at", "previous_until"})
_MADE: Final = frozenset({"key_created", "key_rotated", "key_revoked"})


def require_keys(connection: Connection, walk: Walk) -> None:
    """Hold every key against what the installation's log says of it, both ways."""
    expected: dict[str, dict[str, Any]] = {}
    latest: dict[str, Mapping[str, Any]] = {}
    for act in walk.acts:
        if act["kind"] in _MADE:
            try:
                _take(expected, latest, act)
            except UNREADABLE:
                walk.broken(Rank.LEAF, (describe_act(dict(act)), None), "cannot be read", _at(act))
    for row in every(connection, _KEYS):
        walk.report.checked["keys"] += 1
        name = str(row["name"])
        found = expected.pop(name, None)
        if found is None:
            what = f"key {to_printable(name)}"
            walk.broken(Rank.DERIVED, (what, None), "no act says that it was created", None)
        elif found != _parse_stored_key(row):
            _differs(walk, latest[name])
    for name in expected:
        _differs(walk, latest[name])


def _take(
    expected: dict[str, dict[str, Any]],
    latest: dict[str, Mapping[str, Any]],
    act: Mapping[str, Any],
) -> None:
    """What a key is after one more act."""
    content = json.loads(act["content"])
    name = content["name"]
    before = dict.fromkeys(_SAID) | {"revoked": False}
    if act["kind"] != "key_created":
        before = expected[name]
    expected[name] = before | {key: value for key, value in content.items() if key in _SAID}
    if act["kind"] == "key_revoked":
        expected[name]["revoked"] = True
    latest[name] = act


def _parse_stored_key(row: Mapping[str, Any]) -> dict[str, Any]:
    """What a key's row says, as acts say it; a value that is none of its kind as it is."""
    found = {name: _time(row[name]) if name in _TIMES else row[name] for name in _SAID}
    with suppress(*UNREADABLE):
        found["datasets"] = None if row["datasets"] is None else json.loads(row["datasets"])
    return found | {"revoked": row["revoked_at"] is not None}


def _time(value: Any) -> Any:
    if is_time(value):
        try:
            return stamp(datetime.fromisoformat(value))
        except ValueError:  # the form of a time, and none
            return value
    return stamp(utc(value)) if isinstance(value, datetime) else value


def _differs(walk: Walk, act: Mapping[str, Any]) -> None:
    walk.broken(
        Rank.LEAF, (describe_act(dict(act)), None), "differs from the key as it is now", _at(act)
    )


def _at(act: Mapping[str, Any]) -> int | None:
    return act["position"] if isinstance(act["position"], int) else None
