"""Verifying a certificate: with the file alone, neither database nor network.

The numbers are computed again from the facts in the file, by the functions that made them.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import accounting
from accounting.work_limit import TooMuchWorkError, limit_work
from service.errors import LedgerError
from service.ledger.log.leaves import act_data
from service.ledger.log.merkle import leaf_hash, verify_inclusion
from service.schemas.event_codec import canonical
from service.transparency.certificates import records
from service.transparency.certificates.envelope import (
    CERTIFICATE_BYTES_MAX,
    InvalidCertificateError,
    open_certificate,
)
from service.transparency.certificates.records import AGREEMENT, is_later
from service.transparency.certificates.schema import Certificate, Place, Statement
from service.transparency.certificates.statements import (
    account_of,
    list_advisories,
    run_standings,
    statements_of,
    theorems_of,
)
from service.transparency.signing import key_id_of

VERIFY_POINTS: Final = 1_000_000_000  # no version states what takes so much work
REASON_WORK: Final = "facts: to account them takes more work than any certificate that is issued"
_NUMBERS: Final = (
    "epsilon", "epsilon_lower", "unamplified_epsilon", "corrected_epsilon", "so_far_epsilon",
)  # fmt: skip
_WORDS: Final = frozenset(Statement.model_fields) - frozenset(_NUMBERS)
_RESTS_ON: Final = ("status", "assumptions", "theorems", "valid_for")  # what an epsilon is worth
_COUNTED: Final = ("steps", "planned_steps", "release")  # follow from the facts in every version


@dataclass(frozen=True, slots=True)
class Verified:
    """A certificate that holds: what was checked, and what to know beside it."""

    subject: str
    key_id: str
    pinned: bool  # whether the key was named by who verifies
    checks: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def verify_file(path: Path, *, public_key: str | None = None) -> Verified:
    """Check everything that a certificate's file says.

    Args:
        path: of the file.
        public_key: the one it must be signed with; without one, only that the file is whole is
            known, not whom it is from.

    Raises:
        InvalidCertificateError: something is not right; the text names the first thing.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        raw = file.read(CERTIFICATE_BYTES_MAX + 1)
    return verify_bytes(raw, public_key=public_key)


def verify_bytes(raw: bytes, *, public_key: str | None = None) -> Verified:
    """Check everything that the bytes of a certificate say; see `verify_file`."""
    envelope = open_certificate(raw)
    if public_key is not None and envelope.public_key != public_key:
        raise InvalidCertificateError(
            f"the key that signed is {envelope.key_id}, not the named one"
        )
    certificate = envelope.certificate
    subject = certificate.facts.subject
    found = Verified(f"{subject.kind} {subject.name}", envelope.key_id, public_key is not None)
    found.checks.append("the bytes are canonical, and the signature is theirs")
    if public_key is None:
        found.notes.append(
            f"signed by key {envelope.key_id}, which you did not name: anyone may "
            "have signed it; give --public-key"
        )
    _require_logged(certificate, envelope.public_key)
    found.checks.append(
        f"leaf {certificate.log.position} of the log of {certificate.facts.dataset.name} tells of "
        "it, and the signed checkpoint has that log"
    )
    _require_restated(certificate)
    if count := len(certificate.restatements):
        found.checks.append(f"the same log tells of the restatements, {count} of them")
    _require_consistent(certificate)
    found.checks.append("the facts are those that the log tells of, and fit together")
    _require_numbers(certificate, found)
    _note(certificate, found)
    return found


def _require_logged(certificate: Certificate, public_key: str) -> None:
    log, dataset = certificate.log, certificate.facts.dataset.name
    if not log.part.holds(public_key):
        raise InvalidCertificateError("log.part: the checkpoint is not signed, or lacks the head")
    named = (log.part.public_key, log.part.key_id, log.part.head.dataset)
    if named != (public_key, key_id_of(public_key), dataset):
        raise InvalidCertificateError("log.part: the checkpoint is of another key or dataset")
    content = records.logged_content(certificate.model_dump(include=_TOLD))
    if not _tells(certificate, log, records.CERTIFICATE, content):
        raise InvalidCertificateError("log.path: the log does not tell of this certificate")


def _tells(certificate: Certificate, place: Place, kind: str, content: Any) -> bool:
    """Whether the log whose head is signed has an act at a place."""
    data = act_data(
        dataset=certificate.facts.dataset.name,
        position=place.position,
        after_sequence=place.after_sequence,
        kind=kind,
        content=canonical(content),
        by=place.by,
        acted_at=place.acted_at,
    )
    path, head = [bytes.fromhex(one) for one in place.path], certificate.log.part.head
    root = bytes.fromhex(head.root)
    return verify_inclusion(leaf_hash(data), place.position, head.size, path, root)


def _require_restated(certificate: Certificate) -> None:
    """What is said to have been restated stands in the log, about this subject, each once."""
    last = certificate.log.part.head.size
    for at, one in enumerate(certificate.restatements):
        content = one.model_dump(exclude={"log"})
        if not _tells(certificate, one.log, records.RESTATEMENT, content):
            raise InvalidCertificateError(f"restatements.{at}: the log does not tell of it")
        if one.about != certificate.facts.subject:
            raise InvalidCertificateError(f"restatements.{at}: is of another subject")
        if not one.log.position < last:
            raise InvalidCertificateError(f"restatements.{at}: is not before the one above it")
        last = one.log.position


_TOLD: Final[Any] = {
    "facts": {"sequence": True, "subject": True},
    "facts_sha256": True,
    "model_sha256": True,
    "statements": True,
    "versions": True,
}


def _require_consistent(certificate: Certificate) -> None:
    facts, subject = certificate.facts, certificate.facts.subject
    home = facts.homes[0]
    documents = [(home, run.ledger) for home in facts.homes for run in home.runs]
    relation = facts.dataset.neighboring_relation
    fits = (
        home.dataset == facts.dataset.name
        and home.dataset_size == facts.dataset.dataset_size
        and certificate.issued_at == certificate.log.acted_at
        and all(one.ledger.neighboring_relation == relation for one in home.runs)
        and all(ledger.dataset == home.dataset for home, ledger in documents)
        and all(ledger.dataset_size == home.dataset_size for home, ledger in documents)
        # Exactly one row each, made from that record alone: there are no fewer rows than records.
        and all(one.dataset_size >= home.dataset_size for one in facts.homes if one.exactly_one)
    )
    if subject.kind == "run":
        named = len(documents) == 1 and documents[0][1].run == subject.name
    else:
        named = subject.name == facts.dataset.name
    if not (fits and named):
        raise InvalidCertificateError("facts: they are not of the subject, or contradict another")


def _require_numbers(certificate: Certificate, found: Verified) -> None:
    """Compute every number again."""
    deltas = list(dict.fromkeys(one.delta for one in certificate.statements))
    try:
        with limit_work(VERIFY_POINTS):
            again = statements_of(account_of(certificate.facts), deltas)
    except TooMuchWorkError:
        raise InvalidCertificateError(REASON_WORK) from None
    except (LedgerError, ValueError, ArithmeticError) as error:
        raise InvalidCertificateError(f"facts: they cannot be accounted: {error}") from None
    if [_place(one) for one in again] != [_place(one) for one in certificate.statements]:
        raise InvalidCertificateError("statements: not one for each delta and accountant")
    stated, here = certificate.versions["dpledger"], accounting.__version__
    for one, computed in zip(certificate.statements, again, strict=True):
        fault = compare_brackets(one, computed, stated_by=stated, here=here)
        if fault is not None:
            raise InvalidCertificateError(f"statements: {_place(one)}: {fault}")
        found.checks.append(f"{_place(one)}: {_bracket(one)}, computed again {_bracket(computed)}")
        if other := [name for name in _RESTS_ON if getattr(one, name) != getattr(computed, name)]:
            found.notes.append(
                f"{_place(one)}: {' and '.join(other)} not as version {here} has them; verify with "
                f"the version that it names, {stated}"
            )
    _require_derived(certificate, same=stated == here)


def _require_derived(certificate: Certificate, *, same: bool) -> None:
    """What the facts say beside numbers; texts may be put better in another version."""
    if certificate.model_dump(include={"standing"})["standing"] != run_standings(certificate.facts):
        raise InvalidCertificateError("standing: does not follow from the facts")
    used = sorted({name for one in certificate.statements for name in one.theorems})
    if [one.id for one in certificate.theorems] != used:
        raise InvalidCertificateError("theorems: not those that the statements rest on")
    if not same:
        return
    derived = {
        "theorems": theorems_of(certificate.statements),
        "advisories": list_advisories(certificate.facts),
    }
    said = certificate.model_dump(include=set(derived))
    for name, value in derived.items():
        if said[name] != value:
            raise InvalidCertificateError(f"{name}: does not follow from the facts")


def compare_brackets(
    stated: Statement, computed: Statement, *, stated_by: str, here: str
) -> str | None:
    """What is wrong with a stated bracket, given one that was computed again; None if nothing.

    Both brackets hold the true epsilon of the facts, so they must meet, whatever computed them. The
    same version must also agree, to more than machines differ by. Another must not find that more
    was spent than was stated: a later one knows better, and what an earlier one cannot prove it
    cannot verify.
    """
    for name in _COUNTED:
        if getattr(stated, name) != getattr(computed, name):
            return f"{name} does not follow from the facts"
    if stated_by == here:
        wrong = [
            name for name in sorted(_WORDS) if getattr(stated, name) != getattr(computed, name)
        ]
        wrong += [
            name for name in _NUMBERS if not _close(getattr(stated, name), getattr(computed, name))
        ]
        return f"{wrong[0]} is not what version {here} computes" if wrong else None
    if not (_lower(computed) <= _upper(stated) and _lower(stated) <= _upper(computed)):
        return f"epsilon contradicts {_bracket(computed)}, which version {here} computes"
    if _upper(computed) > _upper(stated) * (1 + AGREEMENT):
        what = f"version {here} proves no less than {_upper(computed)!r}"
        if is_later(here, stated_by):
            return f"TOO LOW: {what}"
        return f"{what}; verify it with the version that it names, {stated_by}"
    return None


def _close(stated: float | None, computed: float | None) -> bool:
    if stated is None or computed is None:
        return stated is computed
    return abs(stated - computed) <= AGREEMENT * max(abs(stated), abs(computed))


def _upper(one: Statement) -> float:
    return float("inf") if one.epsilon is None else one.epsilon


def _lower(one: Statement) -> float:
    return 0.0 if one.epsilon_lower is None else one.epsilon_lower


def _place(one: Statement) -> str:
    held = " with reservations" if one.reservations else ""
    return f"delta {one.delta!r}, {one.accountant}{held}"


def _bracket(one: Statement) -> str:
    lower = "?" if one.epsilon_lower is None else repr(one.epsilon_lower)
    return f"[{lower}, {'infinite' if one.epsilon is None else repr(one.epsilon)}]"


def _note(certificate: Certificate, found: Verified) -> None:
    """What is no fault of the file, and yet must be known."""
    stated = {(one.run, one.id) for one in certificate.advisories}
    for one in list_advisories(certificate.facts):
        new = "" if (one["run"], one["id"]) in stated else " (not known when it was issued)"
        found.notes.append(f"advisory {one['id']} concerns run {one['run']}{new}")
    for restated in certificate.restatements:
        loud = "TOO LOW" if restated.too_low else "higher than needed"
        found.notes.append(
            f"restated by version {restated.core_version}: what was certified at sequence "
            f"{restated.sequence} was {loud}"
        )
    for run in certificate.standing:
        found.notes.extend(
            f"run {run.run}: audit {audit.number} contradicts the certified epsilon"
            for audit in run.audits
            if audit.contradicts
        )
        if run.sampling_status == "contradicted" or run.outside_guarantee:
            found.notes.append(
                f"run {run.run}: sampling {run.sampling_status}, outside the guarantee: "
                f"{len(run.outside_guarantee)}"
            )
