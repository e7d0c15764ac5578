"""Signatures of checkpoints: Ed25519 (RFC 8032), verified where `cryptography` is installed.

Install it with `dpledger-client[verify]`. Which keys can sign is checked without it.
"""

import base64
import logging
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from dpledger_client.merkle import canonical

LOG: Final = logging.getLogger("dpledger_client")
PREFIX: Final = b"dpledger checkpoint 1\n"  # a signature of a checkpoint is one of nothing else
KEY_SIZE: Final = 32  # bytes
_FIELD: Final = 2**255 - 19  # the prime of Curve25519 (RFC 8032, section 5.1)
# The y of the points whose order divides 8: of order 4, 1, 2, and twice of order 8.
_SMALL_ORDER: Final = (
    0,
    1,
    _FIELD - 1,
    0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826,
    0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7,
)


def holds(checkpoint: Mapping[str, Any], public_key: str, signature: str) -> bool:
    """Whether a checkpoint was signed with a key; never with one of small order.

    Args:
        checkpoint: what is signed.
        public_key: raw, as unpadded base64url.
        signature: the same.

    Returns:
        False if the key cannot sign, or the signature is not of it. Where `cryptography` is not
        installed the signature is not verified, as a message in the log says once.

    Raises:
        ValueError: the key or the signature is not unpadded base64url.
        TypeError: one of them is no text.
    """
    key, signed = _bytes(public_key), _bytes(signature)
    if not _can_sign(key):
        return False
    return not _is_installed() or _verified(key, signed, PREFIX + canonical(checkpoint))


def _bytes(text: str) -> bytes:
    data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    if base64.urlsafe_b64encode(data).rstrip(b"=").decode() != text:
        raise ValueError("Not base64url without padding.")
    return data


def _can_sign(key: bytes) -> bool:
    y = int.from_bytes(key, "little") & ((1 << 255) - 1)  # the last bit is the sign of x
    return len(key) == KEY_SIZE and y < _FIELD and y not in _SMALL_ORDER


@cache
def _is_installed() -> bool:
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: F401
    except ImportError:
        LOG.info(
            "dpledger: the signatures of log heads are not verified: "
            "install dpledger-client[verify]."
        )
        return False
    return True


def _verified(key: bytes, signature: bytes, message: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if not _can_sign(signature[:KEY_SIZE]):  # its first half is a point, too
        return False
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True
