"""Issuing a certificate: facts, what follows from them, a leaf in the log, a signature.

What was certified is told in the log before anybody holds it. The same certificate asked for again
is not told again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Engine

from service.errors import TooExpensiveError, UnavailableError
from service.ledger.log.merkle import inclusion_path
from service.ledger.lookups import find_dataset, lock_dataset
from service.schemas.provenance import DELTAS, VERSIONS
from service.storage.engine import snapshot, transaction
from service.transparency.certificates import records
from service.transparency.certificates.envelope import canonical_digest, seal_certificate
from service.transparency.certificates.facts import facts_of_dataset, facts_of_run
from service.transparency.certificates.schema import CERTIFICATE_FORMAT, Facts
from service.transparency.certificates.statements import (
    account_of,
    affordable_statements,
    list_advisories,
    run_standings,
    theorems_of,
)
from service.transparency.checkpoints import LogHeads
from service.transparency.recovery import ledger_status as ledger_standing
from service.transparency.signing import Signer, require_signer
from service.transparency.stored_tree import Tree

_READERS: Final = {"run": facts_of_run, "dataset": facts_of_dataset}


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateInputs:
    """Which certificate is wanted."""

    kind: str  # run or dataset
    name: str
    deltas: tuple[float, ...] = ()  # none for the subject's own and DELTAS
    model_sha256: str | None = None


def issue(
    engine: Engine,
    signer: Signer | None,
    asked: CertificateInputs,
    *,
    by: str,
    allowed: Callable[[str], None] = lambda _dataset: None,
    telling: Callable[[], None] = lambda: None,
) -> bytes:
    """The file of a certificate.

    Args:
        engine: of the database.
        signer: signs it.
        asked: which.
        by: the key's name.
        allowed: refuses a dataset whose facts the caller may not see.
        telling: refuses a caller that has had too much told in the log; asked where something new
            is to be told.

    Raises:
        NotFoundError: there is no such subject, or the caller may not see all of it.
        TooExpensiveError: its facts, or the deltas asked for, are too many.
        UnavailableError: there is no key to sign with, or the log cannot be written.
        LedgerSuspendedError: the ledger contradicts what it signed.
        TooManyRequestsError: as `telling` has it.
    """
    signer = require_signer(signer)
    with snapshot(engine) as connection:
        _require_open(connection)
        facts, own = _READERS[asked.kind](connection, asked.name)
    for home in facts["homes"]:
        allowed(home["dataset"])
    certificate = _build_statements(facts, asked, own) | {"model_sha256": asked.model_sha256}
    _tell(engine, facts, records.logged_content(certificate), by=by, telling=telling)
    with snapshot(engine) as connection:
        certificate |= _build_proofs(connection, signer, certificate)
    return seal_certificate(certificate, signer)


def _require_open(connection: Connection) -> None:
    found = ledger_standing(connection)
    if found.state != "open":
        raise found.refusal()


def _deltas(asked: CertificateInputs, own: float | None) -> list[float]:
    """The deltas to state, the one that matters most first."""
    chosen = asked.deltas or (*([] if own is None else [own]), *DELTAS)
    return list(dict.fromkeys(chosen))


def _build_statements(
    facts: dict[str, Any], asked: CertificateInputs, own: float | None
) -> dict[str, Any]:
    """All that follows from facts."""
    parsed = Facts.model_validate(facts)
    deltas = _deltas(asked, own)
    statements = affordable_statements(account_of(parsed), deltas)
    if asked.deltas and len({one.delta for one in statements}) < len(deltas):
        raise TooExpensiveError("So many deltas would take too much work: ask for fewer at once.")
    return {
        "format": CERTIFICATE_FORMAT,
        "facts": facts,
        "facts_sha256": canonical_digest(facts),
        "statements": [one.model_dump() for one in statements],
        "theorems": theorems_of(statements),
        "standing": run_standings(parsed),
        "advisories": list_advisories(parsed),
        "versions": VERSIONS,
    }


def _tell(
    engine: Engine,
    facts: dict[str, Any],
    content: dict[str, Any],
    *,
    by: str,
    telling: Callable[[], None],
) -> None:
    """Append to the log what is certified, unless it is there."""
    name = facts["dataset"]["name"]
    with snapshot(engine) as connection:
        row = find_dataset(connection, name)
        if records.find_logged(connection, row.id, content) is not None:
            return
    telling()
    with transaction(engine) as connection:
        row = lock_dataset(connection, name)
        _require_open(connection)
        if records.find_logged(connection, row.id, content) is None:
            records.record_certificate(connection, row.id, content, facts, by)


def _build_proofs(
    connection: Connection, signer: Signer, certificate: dict[str, Any]
) -> dict[str, Any]:
    """Where the log tells of the certificate, and what was restated since."""
    facts = certificate["facts"]
    row = find_dataset(connection, facts["dataset"]["name"])
    told = records.find_logged(connection, row.id, records.logged_content(certificate))
    if told is None:
        raise UnavailableError("The log was put back just now; send the same request again.")
    part = LogHeads.of(connection).part(signer, row.name)
    tree = Tree(connection, row.id, part.head.size)
    restated = records.restatements_of(connection, row.id, facts["subject"])
    return {
        "issued_at": told.acted_at,
        "log": _place(told, tree) | {"part": part.model_dump()},
        "restatements": [{**one.content, "log": _place(one, tree)} for one in restated],
    }


def _place(told: records.Logged, tree: Tree) -> dict[str, Any]:
    """Where the log tells of something, and the path from there to its head."""
    path = inclusion_path(told.position, tree.size, tree.subtree)
    return {
        "acted_at": told.acted_at,
        "after_sequence": told.after_sequence,
        "by": told.by,
        "position": told.position,
        "path": [node.hex() for node in path],
    }
