"""Signatures: Ed25519 (RFC 8032), over bytes, with a key that lives outside the database.

Their library is loaded when something is signed or verified: it brings 7 MiB.
"""

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from service.errors import StartupError, UnavailableError
from service.identity import secret_files
from service.identity.sessions import TOKEN_BYTES
from service.schemas.base64url import to_bytes, to_text

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

KEY_SIZE: Final = 32  # bytes, of a private and of a public key
_FIELD: Final = 2**255 - 19  # the prime of Curve25519 (RFC 8032, section 5.1)
# The y of the points whose order divides 8: of order 4, 1, 2, and twice of order 8.
_SMALL_ORDER: Final = (
    0,
    1,
    _FIELD - 1,
    0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826,
    0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7,
)
_PURPOSE: Final = b"dpledger sessions"


def is_public_key(text: str) -> bool:
    """Whether a text names a key: 32 bytes, written in the one way, of a point that can sign.

    With one of the eight points of small order as the key, one signature fits many texts or all.
    """
    try:
        return _can_sign(to_bytes(text))
    except ValueError:
        return False


def _can_sign(point: bytes) -> bool:
    y = int.from_bytes(point, "little") & ((1 << 255) - 1)  # the last bit is the sign of x
    return len(point) == KEY_SIZE and y < _FIELD and y not in _SMALL_ORDER


def key_id_of(public_key: str) -> str:
    """The beginning of a public key's SHA-256, by which people name it."""
    return hashlib.sha256(to_bytes(public_key)).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Signer:
    """A private key."""

    _key: bytes = field(repr=False)

    @classmethod
    def create(cls, path: Path) -> "Signer":
        """Make a key and store it in a file that did not exist; only its owner may read it.

        Raises:
            StartupError: the file exists or cannot be written.
        """
        key = secrets.token_bytes(KEY_SIZE)
        try:
            secret_files.create(path, to_text(key))
        except OSError as error:
            raise StartupError(f"signing key: {path}: {error.strerror}") from None
        return cls(key)

    @classmethod
    def load_or_create(cls, path: Path) -> "Signer":
        """Read a key, made first where there is none.

        Raises:
            StartupError: it cannot be read or made, or is no key.
        """
        if not path.exists():
            try:
                return cls.create(path)
            except StartupError:
                if not path.exists():
                    raise
        return cls.load(path)

    @classmethod
    def load(cls, path: Path) -> "Signer":
        """Read a key that `create` stored.

        Raises:
            StartupError: it cannot be read, or is no key.
        """
        try:
            raw = to_bytes(path.read_text(encoding="ascii").strip())
        except OSError as error:
            raise StartupError(f"signing key: {path}: {error.strerror}") from None
        except ValueError:
            raise StartupError(f"signing key: {path} holds no key.") from None
        if len(raw) != KEY_SIZE:
            raise StartupError(f"signing key: {path} holds no key of {KEY_SIZE} bytes.")
        return cls(raw)

    @property
    def public_key(self) -> str:
        """The public key, raw, as base64url."""
        return to_text(_private_key(self._key).public_key().public_bytes_raw())

    @property
    def key_id(self) -> str:
        """The name of the key."""
        return key_id_of(self.public_key)

    def derived(self, purpose: bytes) -> bytes:
        """A secret of 32 bytes for another purpose, by HKDF (RFC 5869) with SHA-256 and no salt."""
        extracted = hmac.digest(bytes(KEY_SIZE), self._key, "sha256")
        return hmac.digest(extracted, purpose + b"\x01", "sha256")

    def sign(self, data: bytes) -> str:
        """The signature of bytes, as base64url."""
        return to_text(_private_key(self._key).sign(data))


@lru_cache(maxsize=2)
def _private_key(raw: bytes) -> "Ed25519PrivateKey":
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(raw)


def require_signer(signer: Signer | None) -> Signer:
    """The key that signs.

    Raises:
        UnavailableError: there is none.
    """
    if signer is None:
        raise UnavailableError("There is no key to sign with: set DPLEDGER_SIGNING_KEY_FILE.")
    return signer


def verify_signature(public_key: str, data: bytes, signature: str) -> bool:
    """Whether a signature of bytes was made with a key.

    Never with a key of small order, nor with a first half of a signature that no signer draws: of
    small order, or not written in the one way.
    """
    if not is_public_key(public_key):
        return False
    try:
        key, signed = to_bytes(public_key), to_bytes(signature)
    except ValueError:
        return False
    return _can_sign(signed[:KEY_SIZE]) and _fits(key, data, signed)


def _fits(key: bytes, data: bytes, signature: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


def secret_of(signer: Signer | None) -> bytes:
    """The secret of all sessions: the same in every process that has the signing key.

    Without one it is drawn anew, and sessions end with the process that began them.
    """
    return secrets.token_bytes(TOKEN_BYTES) if signer is None else signer.derived(_PURPOSE)
