"""Signed certificates."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from dpledger_client.answers.answer import Answer
from dpledger_client.merkle import canonical


class Statement(Answer):
    """A bound that a certificate states; its members depend on its kind."""

    __slots__ = ()


class Certificate(Answer):
    """What a certificate states, and the facts that it follows from.

    Attributes:
        format: its version.
        issued_at: an instant, RFC 3339.
        statements: the bounds.
        facts: the ledger that they follow from.
        facts_sha256: digest of the facts.
        log: the signed head of the log that holds them.
        model_sha256: digest of the model's file, if it was given.
        theorems: that the bounds rest on.
        standing: of the runs.
        advisories: defects of libraries that may concern a run.
        restatements: earlier numbers that were corrected.
        versions: of the accounting.
    """

    __slots__ = ()
    _first: ClassVar = ("format", "issued_at", "statements")
    format: str
    issued_at: str
    statements: Sequence[Statement]
    facts: Answer
    facts_sha256: str
    log: Answer
    model_sha256: str | None
    theorems: Sequence[Answer]
    standing: Sequence[Answer]
    advisories: Sequence[Answer]
    restatements: Sequence[Answer]
    versions: Answer


class SignedCertificate(Answer):
    """A certificate with the service's signature; `dpledger verify` checks the file.

    Attributes:
        certificate: what is stated.
        key_id: of the service's key.
        public_key: of the service; trust it only if it came from the operator by another way.
        signature: over the certificate.
    """

    __slots__ = ()
    _first: ClassVar = ("certificate", "key_id")
    certificate: Certificate
    key_id: str
    public_key: str
    signature: str

    def save(self, path: Path | str) -> None:
        """Write it as canonical JSON, the form that is signed.

        Raises:
            OSError: the file cannot be written.
        """
        Path(path).write_bytes(canonical(self))
