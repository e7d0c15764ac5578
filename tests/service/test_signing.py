"""Signatures: what was signed verifies, and no other bytes, key or text of it do."""

import base64
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from service.errors import StartupError
from service.schemas.base64url import to_bytes, to_text
from service.transparency.signing import KEY_SIZE, Signer, key_id_of, verify_signature

DATA = b"some bytes"


@pytest.fixture
def signer(tmp_path: Path) -> Signer:
    return Signer.create(tmp_path / "key")


def test_what_a_key_signed_verifies_with_it_and_nothing_else_does(
    signer: Signer, tmp_path: Path
) -> None:
    signature = signer.sign(DATA)
    assert verify_signature(signer.public_key, DATA, signature)
    assert not verify_signature(signer.public_key, DATA + b" ", signature)
    assert not verify_signature(signer.public_key, b"", signature)
    other = Signer.create(tmp_path / "other")
    assert not verify_signature(other.public_key, DATA, signature)
    for at in range(len(to_bytes(signature))):
        raw = bytearray(to_bytes(signature))
        raw[at] ^= 1
        assert not verify_signature(signer.public_key, DATA, to_text(bytes(raw)))


def test_the_signature_is_plain_ed25519(signer: Signer) -> None:
    raw = base64.urlsafe_b64decode(signer.public_key + "=")
    assert len(raw) == KEY_SIZE
    signature = base64.urlsafe_b64decode(signer.sign(DATA) + "==")
    Ed25519PublicKey.from_public_bytes(raw).verify(signature, DATA)


def test_a_key_is_loaded_as_it_was_made_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "key"
    made = Signer.create(path)
    loaded = Signer.load(path)
    assert (loaded.public_key, loaded.key_id) == (made.public_key, made.key_id)
    assert loaded.sign(DATA) == made.sign(DATA)
    assert key_id_of(made.public_key) == made.key_id
    assert len(made.key_id) == 16
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_derived_secret_is_that_of_hkdf(signer: Signer, tmp_path: Path) -> None:
    raw = to_bytes((tmp_path / "key").read_text().strip())
    for purpose in (b"", b"sessions", bytes(200)):
        hkdf = HKDF(algorithm=SHA256(), length=KEY_SIZE, salt=None, info=purpose)
        assert signer.derived(purpose) == hkdf.derive(raw)


def test_no_key_is_shown_by_accident(signer: Signer, tmp_path: Path) -> None:
    text = (tmp_path / "key").read_text().strip()
    assert text not in repr(signer)
    assert repr(to_bytes(text))[2:-1] not in repr(signer)


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "key"
    Signer.create(path)
    before = path.read_bytes()
    with pytest.raises(StartupError, match=f"^signing key: {path}: File exists$"):
        Signer.create(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "content", ["", "\n", "short", "A" * 42, "A" * 44, "A" * 86, "!" * 43, "\u00e4" * 43]
)
def test_a_file_that_holds_no_key_is_refused_and_not_shown(tmp_path: Path, content: str) -> None:
    path = tmp_path / "key"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(StartupError, match="signing key") as refused:
        Signer.load(path)
    assert content.strip() == "" or content not in str(refused.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(StartupError, match=f"^signing key: {path}: [A-Z][a-z ]+$"):
            Signer.load(path)


def test_one_text_stands_for_some_bytes(signer: Signer) -> None:
    """Else a certificate could be changed and still verify."""
    signature = signer.sign(DATA)
    last = signature[-1]
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    for other in alphabet:
        if other != last:
            assert not verify_signature(signer.public_key, DATA, signature[:-1] + other)
    for text in (signature + "==", signature + "\n", " " + signature, signature.replace("_", "/")):
        assert text == signature or not verify_signature(signer.public_key, DATA, text)
    assert not verify_signature(signer.public_key + "=", DATA, signature)


@pytest.mark.parametrize("text", ["A", "AB==", "AB\n", "A B", "AB+/", "\u00e4\u00e4", "AAAB"[:3]])
def test_other_texts_are_no_base64url(text: str) -> None:
    if to_text(b"\x00\x00") == text:
        assert to_bytes(text) == b"\x00\x00"
    else:
        with pytest.raises(ValueError, match="base64url"):
            to_bytes(text)


def test_a_signature_with_what_is_no_key_is_no_error(signer: Signer) -> None:
    for public in ("", "AA", "A" * 43, "!" * 43, "A" * 44):
        assert not verify_signature(public, DATA, signer.sign(DATA))
    for signature in ("", "AA", "!" * 86):
        assert not verify_signature(signer.public_key, DATA, signature)
