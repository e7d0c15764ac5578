"""A certificate's bytes: they are its canonical JSON, signed, and no other bytes are a certificate.

So whatever is changed of a file, a digit, a space or the order of two keys, it is none any more.
"""

import hashlib
import json
from typing import Any, Final

from pydantic import ValidationError

from service.schemas.event_codec import canonical, long_canonical
from service.transparency.certificates.schema import Envelope
from service.transparency.signing import Signer, key_id_of, verify_signature

CERTIFICATE_PREFIX: Final = (
    b"dpledger certificate 1\n"  # a signature of a certificate is one of nothing else
)
CERTIFICATE_BYTES_MAX: Final = 64 * 2**20


class InvalidCertificateError(Exception):
    """What is wrong with a certificate, in words."""


def canonical_digest(value: Any) -> str:
    """The SHA-256 of a value's canonical JSON."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def seal_certificate(certificate: dict[str, Any], signer: Signer) -> bytes:
    """The file of a certificate."""
    signature = signer.sign(CERTIFICATE_PREFIX + long_canonical(certificate).encode())
    envelope = {
        "certificate": certificate,
        "key_id": signer.key_id,
        "public_key": signer.public_key,
        "signature": signature,
    }
    return long_canonical(envelope).encode()


def require_canonical(raw: bytes) -> Any:
    """The value of a file that holds canonical JSON and nothing else.

    Raises:
        InvalidCertificateError: it holds anything else.
    """
    if len(raw) > CERTIFICATE_BYTES_MAX:
        raise InvalidCertificateError("the file is too large to be a certificate")
    try:
        value = json.loads(raw.decode())
        again = canonical(value).encode()
    except (ValueError, RecursionError):  # also of UTF-8, NaN and numbers of thousands of digits
        raise InvalidCertificateError("the file is not JSON as certificates are written") from None
    if again != raw:
        same = again == raw.strip()
        hint = (
            "; it has spaces or a line end around it, which a certificate has not" if same else ""
        )
        raise InvalidCertificateError(f"the bytes are not the canonical ones of their JSON{hint}")
    return value


def require_signed(value: Any) -> str:
    """The public key that a certificate is signed with.

    Raises:
        InvalidCertificateError: it is not, or names no key.
    """
    parts = value if isinstance(value, dict) else {}
    key, signature = parts.get("public_key"), parts.get("signature")
    if not (isinstance(key, str) and isinstance(signature, str) and "certificate" in parts):
        raise InvalidCertificateError("the file is not a signed certificate")
    message = CERTIFICATE_PREFIX + canonical(parts["certificate"]).encode()
    if not verify_signature(key, message, signature):
        raise InvalidCertificateError("the signature is not that of the key it names")
    if parts.get("key_id") != key_id_of(key):  # which the signature does not cover
        raise InvalidCertificateError("key_id is not that of the key it names")
    return key


def open_certificate(raw: bytes) -> Envelope:
    """The certificate in a file, whose bytes and signature are right.

    Raises:
        InvalidCertificateError: one of them is not, or it says what no certificate says.
    """
    value = require_canonical(raw)
    require_signed(value)
    try:
        envelope = Envelope.model_validate(value)
    except ValidationError as error:
        place = ".".join(str(part) for part in error.errors()[0]["loc"])[:200]
        raise InvalidCertificateError(f"{place}: is not as certificates have it") from None
    if envelope.certificate.facts_sha256 != canonical_digest(value["certificate"]["facts"]):
        raise InvalidCertificateError("facts_sha256: is of other facts")
    return envelope
