"""A client verifies the signature of the head that it keeps, where it can."""

import hashlib
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from dpledger_client import LedgerRewritten, signatures
from dpledger_client.merkle import leaf_hash

from service.schemas.base64url import to_bytes, to_text
from service.transparency.signing import Signer, is_public_key
from tests.client.log_head_answers import UNREADABLE, UNSIGNED, answering, signed
from tests.client.test_log_heads import head_of, kept
from tests.service.test_one_meaning import FIELD, small_order

HEAD = {"dataset": "data", "size": 1, "root": "ab" * 32, "steps": 1}
CHECKPOINT = {
    "format": "dpledger-checkpoint/1",
    "ledger_id": "0" * 32,
    "generation": 0,
    "logs": 1,
    "root": leaf_hash(HEAD).hex(),
    "issued_at": "2026-11-01T00:00:00Z",
}
UNVERIFIED = "are not verified: install dpledger-client[verify]"


@pytest.fixture
def signer(tmp_path: Path) -> Signer:
    return Signer.create(tmp_path / "signing_key")


@pytest.fixture
def answer(signer: Signer) -> dict[str, Any]:
    """Of a service with one log, to a client that kept nothing."""
    return signed({"checkpoint": CHECKPOINT, "head": HEAD, "index": 0, "path": []}, signer)


@pytest.fixture
def without_library(answer: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As where `cryptography` is not installed; the service has signed its answer."""
    assert answer
    module = "cryptography.hazmat.primitives.asymmetric.ed25519"
    monkeypatch.setitem(sys.modules, module, None)
    signatures._is_installed.cache_clear()
    yield
    signatures._is_installed.cache_clear()


def compared(spool: Path, answer: dict[str, Any]) -> None:
    with answering(200, answer) as client:
        head_of(client, spool).compare()


def test_a_head_with_a_good_signature_is_kept(
    spool: Path, answer: dict[str, Any], signer: Signer, caplog: pytest.LogCaptureFixture
) -> None:
    compared(spool, answer)
    assert kept(spool) == answer
    later = signed(answer, signer, issued_at="2026-11-02T00:00:00Z")
    compared(spool, {**later, "verdict": "extends", "consistency": []})
    assert kept(spool) == later
    assert caplog.text == ""


def test_what_is_signed_may_hold_any_text(answer: dict[str, Any], signer: Signer) -> None:
    """The bytes that are verified are those of the service's canonical JSON."""
    from service.schemas.event_codec import canonical

    checkpoint = {**CHECKPOINT, "issued_at": 'é\u2028"\\\x7f😀', "a": [1, None, True], "Z": {}}
    signature = signer.sign(signatures.PREFIX + canonical(checkpoint).encode())
    assert signatures.holds(checkpoint, signer.public_key, signature)
    assert not signatures.holds({**checkpoint, "Z": {"": 0}}, signer.public_key, signature)


@pytest.mark.parametrize("seen_before", [False, True])
def test_a_head_with_a_bad_signature_is_told_and_not_kept(
    spool: Path, answer: dict[str, Any], tmp_path: Path, seen_before: bool
) -> None:
    """The first one, too: a service that signs rubbish for one client has no second chance."""
    if seen_before:
        compared(spool, answer)
    other = signed(answer, Signer.create(tmp_path / "other"))["signature"]
    moved = {**CHECKPOINT, "issued_at": "2026-11-02T00:00:00Z"}
    for change, told in [
        ({"checkpoint": moved}, UNSIGNED),
        ({"signature": other}, UNSIGNED),
        ({"signature": to_text(bytes(64))}, UNSIGNED),
        ({"signature": answer["signature"][:-2]}, UNSIGNED),  # a byte short
        ({"signature": answer["signature"][:-1]}, UNREADABLE),
        ({"signature": answer["signature"] + "=="}, UNREADABLE),
        ({"signature": "rubbish\n"}, UNREADABLE),
        ({"signature": None}, UNREADABLE),
        ({"public_key": None}, UNREADABLE),
    ]:
        changed = {**answer, **change, "verdict": "extends", "consistency": []}
        with pytest.warns(LedgerRewritten, match=told):
            compared(spool, changed)
        if seen_before:
            assert kept(spool) == answer, change
        else:
            assert list(spool.glob("*.log_head")) == [], change


@pytest.mark.usefixtures("without_library")
def test_without_the_library_heads_are_kept_and_the_log_says_so_once(
    spool: Path, answer: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    unverified = {**answer, "signature": to_text(bytes(64))}
    with caplog.at_level(logging.INFO):
        compared(spool, unverified)
        compared(spool, {**unverified, "verdict": "extends", "consistency": []})
    assert kept(spool) == unverified
    assert caplog.text.count(UNVERIFIED) == 1


@pytest.mark.parametrize("library", [True, False])
def test_a_key_of_small_order_is_refused_with_the_library_and_without(
    spool: Path, answer: dict[str, Any], library: bool, request: pytest.FixtureRequest
) -> None:
    identity, forgery = bytes([1]) + bytes(31), bytes([1]) + bytes(63)
    message = signatures.PREFIX + json.dumps(CHECKPOINT).encode()
    Ed25519PublicKey.from_public_bytes(identity).verify(forgery, message)  # it fits any text
    if not library:
        request.getfixturevalue("without_library")
    forged = {**answer, "public_key": to_text(identity), "signature": to_text(forgery)}
    with pytest.warns(LedgerRewritten, match=UNSIGNED):
        compared(spool, forged)
    assert list(spool.glob("*.log_head")) == []


def test_a_signature_whose_point_has_a_small_order_is_refused() -> None:
    """Who knows the key may make one, and tells its secret; the library would take it."""
    public = Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key().public_bytes_raw()
    digest = hashlib.sha512(bytes(32)).digest()
    secret = int.from_bytes(digest[:32], "little") & (2**254 - 8) | 2**254
    point = bytes([1]) + bytes(31)
    h = int.from_bytes(hashlib.sha512(point + public + b"text").digest(), "little")
    order = 2**252 + 27742317777372353535851937790883648493
    forged = point + (h * secret % order).to_bytes(32, "little")
    Ed25519PublicKey.from_public_bytes(public).verify(forged, b"text")
    assert not signatures._verified(public, forged, b"text")


def test_the_client_and_the_service_take_the_same_keys(signer: Signer) -> None:
    noncanonical = [y | sign << 255 for y in range(FIELD, 2**255) for sign in (0, 1)]
    refused = [*small_order(), *(y.to_bytes(32, "little") for y in noncanonical)]
    refused += [b"", bytes(31), bytes([7] * 33)]
    for key in refused:
        assert not is_public_key(to_text(key))
        assert not signatures._can_sign(key)
    own = to_bytes(signer.public_key)
    for key in (own, bytes([*own[:-1], own[-1] ^ 0x80]), (2).to_bytes(32, "little")):
        assert is_public_key(to_text(key))
        assert signatures._can_sign(key)
