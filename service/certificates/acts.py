"""Certificates in the log of their dataset: what was certified, and what was restated since.

Three kinds of acts. `certificate_facts` holds facts once for each state that was certified;
`certificate` what a certificate said of them; `restatement` what a later version of the accounting
says of the same facts.
"""

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, bindparam, select

from service import incidents
from service.acts import Act, append, exact
from service.certificates.envelope import digest_of
from service.certificates.restatements import TOO_LOW, bracket_of, differences, is_later
from service.clock import utc
from service.documents import canonical
from service.incidents import Incident, Kind
from service.tables import acts, datasets

FACTS: Final = "certificate_facts"
CERTIFICATE: Final = "certificate"
RESTATEMENT: Final = "restatement"
TOLD_MAX: Final = 100  # restatements that a certificate lists, the latest

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


class Logged(NamedTuple):
    """An act of a certificate in its log."""

    position: int
    after_sequence: int
    acted_at: str
    by: str | None
    content: dict[str, Any]


def logged(row: Any) -> Logged:
    """An act from its row."""
    return Logged(
        row.position,
        row.after_sequence,
        exact(utc(row.acted_at)),
        row.by,
        json.loads(row.content),
    )


def content_of(certificate: dict[str, Any]) -> dict[str, Any]:
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


def find(connection: Connection, dataset_id: int, content: dict[str, Any]) -> Logged | None:
    """The act of a certificate that said the same."""
    given = {"dataset": dataset_id, "of_kind": CERTIFICATE, "content": canonical(content)}
    row = connection.execute(_SAME, given).one_or_none()
    return None if row is None else logged(row)


def record(
    connection: Connection, dataset_id: int, content: dict[str, Any], facts: dict[str, Any], by: str
) -> None:
    """Append what a certificate says, its facts if they are new, and what it restates."""
    happened = []
    if facts_of(connection, dataset_id, content["facts_sha256"]) is None:
        kept = {"facts": facts, "sha256": content["facts_sha256"]}
        happened.append(Act(FACTS, kept, by))
    happened += [Act(RESTATEMENT, one, by) for one in _restated_by(connection, dataset_id, content)]
    happened.append(Act(CERTIFICATE, content, by))
    append(connection, dataset_id, happened)
    _shout(connection, dataset_id, happened)


def _restated_by(
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


def restate(
    connection: Connection, dataset_id: int, content: dict[str, Any], by: str | None
) -> None:
    """Append a restatement."""
    happened = [Act(RESTATEMENT, content, by)]
    append(connection, dataset_id, happened)
    _shout(connection, dataset_id, happened)


def _shout(connection: Connection, dataset_id: int, happened: Sequence[Act]) -> None:
    """Tell whoever hears of incidents what was certified too low."""
    changes = [
        (one.content, change)
        for one in happened
        if one.kind == RESTATEMENT
        for change in one.content["changes"]
        if change["direction"] == TOO_LOW
    ]
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
    incidents.record(connection, told)


def facts_of(connection: Connection, dataset_id: int, sha256: str) -> dict[str, Any] | None:
    """The facts of a digest, which were certified before."""
    given = {"dataset": dataset_id, "of_kind": FACTS, "ending": f'"sha256":"{sha256}"}}'}
    for row in connection.execute(_ENDING, given):
        content: dict[str, Any] = json.loads(row.content)
        if content["sha256"] == sha256 == digest_of(content["facts"]):
            return dict(content["facts"])
    return None


def restatements_of(
    connection: Connection, dataset_id: int, subject: dict[str, str]
) -> list[Logged]:
    """What was restated about a subject, the latest first."""
    # Sorted keys put the subject first in the content.
    beginning = canonical({"about": subject})[:-1]
    given = {"dataset": dataset_id, "of_kind": RESTATEMENT, "beginning": beginning}
    found = [logged(row) for row in connection.execute(_LATEST, given)]
    # The pattern takes an underscore of a name for any character.
    own = [one for one in found if one.content["about"] == subject]
    return own[:TOLD_MAX]
