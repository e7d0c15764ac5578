"""Certificates in the log of their dataset: what was certified, and what was restated since.

Three kinds of acts. `certificate_facts` holds facts once for each state that was certified;
`certificate` what a certificate said of them; `restatement` what a later version of the accounting
says of the same facts.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, bindparam, select

from service.clock import utc
from service.ledger import incidents
from service.ledger.incidents import Incident, Kind
from service.ledger.log.leaves import Act, append_leaves, exact
from service.schemas.event_codec import canonical
from service.storage.tables import acts, datasets
from service.transparency.certificates.envelope import canonical_digest

AGREEMENT: Final = 1e-6  # relative: more than what rounding differs by between machines
TOO_LOW: Final = "too_low"  # less was certified than the later version can prove: shouted
TOO_HIGH: Final = "too_high"
_KEY: Final = ("delta", "accountant", "reservations")
Bracket = Mapping[str, Any]
_FACTS: Final = "certificate_facts"
CERTIFICATE: Final = "certificate"
RESTATEMENT: Final = "restatement"
_TOLD_MAX: Final = 100  # restatements that a certificate lists, the latest
_OF_KIND: Final = select(acts).where(
    acts.c.dataset_id == bindparam("dataset"), acts.c.kind == bindparam("of_kind")
)
_SAME: Final = _OF_KIND.where(acts.c.content == bindparam("content")).order_by(acts.c.id).limit(1)
_ENDING: Final = _OF_KIND.where(acts.c.content.endswith(bindparam("ending")))
_ABOUT: Final = _OF_KIND.where(acts.c.content.contains(bindparam("part"))).order_by(acts.c.id)
_LATEST: Final = _OF_KIND.where(acts.c.content.startswith(bindparam("beginning"))).order_by(
    acts.c.id.desc()
)
_HEAD: Final = select(datasets.c.name, datasets.c.head_sequence).where(
    datasets.c.id == bindparam("dataset")
)


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


class Logged(NamedTuple):
    """An act of a certificate in its log."""

    position: int
    after_sequence: int
    acted_at: str
    by: str | None
    content: dict[str, Any]


def read_logged_act(row: Any) -> Logged:
    """An act from its row."""
    return Logged(
        row.position,
        row.after_sequence,
        exact(utc(row.acted_at)),
        row.by,
        json.loads(row.content),
    )


def logged_content(certificate: dict[str, Any]) -> dict[str, Any]:
    """What an act keeps of a certificate; who verifies the certificate makes the same of it."""
    facts = certificate["facts"]
    return {
        "core_version": certificate["versions"]["dpledger"],
        "facts_sha256": certificate["facts_sha256"],
        "model_sha256": certificate["model_sha256"],
        "sequence": facts["sequence"],
        "statements": [bracket_of(one) for one in certificate["statements"]],
        "subject": facts["subject"],
    }


def find_logged(connection: Connection, dataset_id: int, content: dict[str, Any]) -> Logged | None:
    """The act of a certificate that said the same."""
    given = {"dataset": dataset_id, "of_kind": CERTIFICATE, "content": canonical(content)}
    row = connection.execute(_SAME, given).one_or_none()
    return None if row is None else read_logged_act(row)


def record_certificate(
    connection: Connection, dataset_id: int, content: dict[str, Any], facts: dict[str, Any], by: str
) -> None:
    """Append what a certificate says, its facts if they are new, and what it restates."""
    happened = []
    if facts_of(connection, dataset_id, content["facts_sha256"]) is None:
        kept = {"facts": facts, "sha256": content["facts_sha256"]}
        happened.append(Act(_FACTS, kept, by))
    happened += [
        Act(RESTATEMENT, one, by) for one in _find_restatements(connection, dataset_id, content)
    ]
    happened.append(Act(CERTIFICATE, content, by))
    append_leaves(connection, dataset_id, happened)
    _shout(connection, dataset_id, happened)


def _find_restatements(
    connection: Connection, dataset_id: int, content: dict[str, Any]
) -> list[dict[str, Any]]:
    """What a certificate says otherwise than earlier ones, of other versions, of the same facts."""
    found = []
    sha256 = content["facts_sha256"]
    for position, before in latest_statements(connection, dataset_id, sha256=sha256).items():
        if is_later(content["core_version"], before["core_version"]):
            changes = differences(before["statements"], content["statements"])
            if changes:
                found.append(restatement_of(position, before, content["core_version"], changes))
    return found


def latest_statements(
    connection: Connection, dataset_id: int, *, sha256: str = ""
) -> dict[int, dict[str, Any]]:
    """What each certificate says, as restated since, by the position of its act.

    Args:
        connection: in a transaction.
        dataset_id: whose log is read.
        sha256: of the facts that were certified; empty for all.
    """
    given = {"dataset": dataset_id, "part": f'"facts_sha256":"{sha256}'}
    found = {
        row.position: json.loads(row.content)
        for row in connection.execute(_ABOUT, given | {"of_kind": CERTIFICATE})
    }
    for row in connection.execute(_ABOUT, given | {"of_kind": RESTATEMENT}):
        restated = json.loads(row.content)
        _apply(found[restated["position"]], restated)
    return found


def _apply(content: dict[str, Any], restated: dict[str, Any]) -> None:
    """Read a certificate as a restatement has it."""
    content["core_version"] = restated["core_version"]
    for change in restated["changes"]:
        for one in content["statements"]:
            if all(one[name] == change[name] for name in ("delta", "accountant", "reservations")):
                one.update(change["new"])


def restatement_of(
    position: int, before: dict[str, Any], core_version: str, changes: list[dict[str, Any]]
) -> dict[str, Any]:
    """The content of the act that restates a certificate."""
    return {
        "about": before["subject"],
        "changes": changes,
        "core_version": core_version,
        "facts_sha256": before["facts_sha256"],
        "old_core_version": before["core_version"],
        "position": position,
        "sequence": before["sequence"],
    }


def restate(connection: Connection, dataset_id: int, content: dict[str, Any]) -> None:
    """Append a restatement, which a command makes and no key."""
    happened = [Act(RESTATEMENT, content, None)]
    append_leaves(connection, dataset_id, happened)
    _shout(connection, dataset_id, happened)


def _shout(connection: Connection, dataset_id: int, happened: Sequence[Act]) -> None:
    """Raise an incident for each epsilon that was certified too low."""
    changes = [
        (one.content, change)
        for one in happened
        if one.kind == RESTATEMENT
        for change in one.content["changes"]
        if change["direction"] == TOO_LOW
    ]
    if not changes:
        return
    row = connection.execute(_HEAD, {"dataset": dataset_id}).one()
    told = [
        Incident(
            dataset_id=dataset_id,
            kind=Kind.CERTIFIED_TOO_LOW,
            sequence=row.head_sequence,
            detail={
                "dataset": row.name,
                **content["about"],
                "delta": change["delta"],
                "accountant": change["accountant"],
                "certified": change["old"]["epsilon"],
                "restated": change["new"]["epsilon"],
            },
        )
        for content, change in changes
    ]
    incidents.record_incidents(connection, told)


def facts_of(connection: Connection, dataset_id: int, sha256: str) -> dict[str, Any] | None:
    """The facts of a digest, which were certified before."""
    given = {"dataset": dataset_id, "of_kind": _FACTS, "ending": f'"sha256":"{sha256}"}}'}
    for row in connection.execute(_ENDING, given):
        content: dict[str, Any] = json.loads(row.content)
        if content["sha256"] == sha256 == canonical_digest(content["facts"]):
            return dict(content["facts"])
    return None


def restatements_of(
    connection: Connection, dataset_id: int, subject: dict[str, str]
) -> list[Logged]:
    """What was restated about a subject, the latest first."""
    # Sorted keys put the subject first in the content.
    beginning = canonical({"about": subject})[:-1]
    given = {"dataset": dataset_id, "of_kind": RESTATEMENT, "beginning": beginning}
    found = [read_logged_act(row) for row in connection.execute(_LATEST, given)]
    # The pattern takes an underscore of a name for any character.
    own = [one for one in found if one.content["about"] == subject]
    return own[:_TOLD_MAX]
