"""A certificate is its bytes: whatever is changed of them, or lied in them, is found out."""

import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.schemas.event_codec import canonical
from service.transparency.certificates.envelope import (
    CERTIFICATE_PREFIX,
    InvalidCertificateError,
    open_certificate,
    seal_certificate,
)
from service.transparency.certificates.schema import Statement
from service.transparency.certificates.verify import (
    Verified,
    compare_brackets,
    verify_bytes,
    verify_file,
)
from service.transparency.checkpoints import CHECKPOINT_PREFIX as CHECKPOINT_PREFIX
from service.transparency.signing import Signer
from tests.service.certifying import certificate_of, resealed, said, signer_of
from tests.service.samples import Json, append, event, setup


@pytest.fixture(scope="module")
def signer(tmp_path_factory: pytest.TempPathFactory) -> Signer:
    return signer_of(tmp_path_factory.mktemp("key"))


@pytest.fixture(scope="module")
def raw(signer: Signer, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return certificate_of(tmp_path_factory.mktemp("certified"), signer)


def refused(raw: bytes, **given: Any) -> str:
    with pytest.raises(InvalidCertificateError) as error:
        verify_bytes(raw, **given)
    return str(error.value)


def test_as_it_was_issued_it_holds(raw: bytes, signer: Signer, tmp_path: Path) -> None:
    file = tmp_path / "certificate.json"
    file.write_bytes(raw)
    found = verify_file(file, public_key=signer.public_key)
    assert found.pinned
    assert found.key_id == signer.key_id
    assert len(found.checks) == 3 + len(said(raw)["statements"])


def test_without_a_named_key_it_says_that_the_origin_is_not_known(
    raw: bytes, signer: Signer, tmp_path: Path
) -> None:
    assert not verify_bytes(raw).pinned
    assert "anyone may have signed it" in verify_bytes(raw).notes[0]
    other = signer_of(tmp_path)
    assert "not the named one" in refused(raw, public_key=other.public_key)
    assert verify_bytes(raw, public_key=signer.public_key).notes == verify_bytes(raw).notes[1:]


def plain(api: httpx.Client) -> None:
    setup(api)
    append(api, event(0, 100))


def test_any_byte_that_is_changed_is_found_out(signer: Signer, tmp_path: Path) -> None:
    raw = certificate_of(tmp_path, signer, plain)
    chance = random.Random(8)
    for place in range(len(raw)):
        changed = bytearray(raw)
        changed[place] ^= 1 << chance.randrange(8)
        with pytest.raises(InvalidCertificateError):
            open_certificate(bytes(changed))


def test_every_bit_of_the_signature_and_the_key_counts(raw: bytes) -> None:
    begin = raw.rindex(b'"key_id"')
    for place in range(begin, len(raw)):
        for bit in range(8):
            changed = bytearray(raw)
            changed[place] ^= 1 << bit
            with pytest.raises(InvalidCertificateError):
                open_certificate(bytes(changed))


def test_bytes_that_come_or_go_are_found_out(raw: bytes) -> None:
    chance = random.Random(9)
    for _ in range(500):
        place = chance.randrange(len(raw) + 1)
        more = bytes([chance.choice(b' \n\t{}[]",:0123456789.eE-+\\atrue\x00\xff')])
        with pytest.raises(InvalidCertificateError):
            open_certificate(raw[:place] + more + raw[place:])
        gone = chance.randrange(len(raw))
        with pytest.raises(InvalidCertificateError):
            open_certificate(raw[:gone] + raw[gone + 1 + chance.randrange(3) :])
    with pytest.raises(InvalidCertificateError):
        open_certificate(raw + raw)


REWRITTEN: dict[str, Callable[[bytes], bytes]] = {
    "a line end": lambda raw: raw + b"\n",
    "a byte order mark": lambda raw: b"\xef\xbb\xbf" + raw,
    "indented": lambda raw: json.dumps(json.loads(raw), indent=1, sort_keys=True).encode(),
    "keys in another order": lambda raw: (
        canonical(dict(reversed(json.loads(raw).items())) | {}).encode()[:-1] + b" }"
    ),
    "unsorted": lambda raw: json.dumps(
        dict(reversed(list(json.loads(raw).items()))), separators=(",", ":"), ensure_ascii=False
    ).encode(),
    "a key twice": lambda raw: raw[:-1] + b',"signature":""}',
    "the same key twice": lambda raw: b'{"key_id":"0",' + raw[1:],
    "an escape": lambda raw: raw.replace(b'"format"', b'"\\u0066ormat"', 1),
    "another number": lambda raw: raw.replace(b'"steps":100', b'"steps":1e2', 1),
    "a longer number": lambda raw: raw.replace(b"0.01}", b"0.010}", 1),
    "nested too deeply": lambda raw: b"[" * 100_000,
    "thousands of digits": lambda raw: b"9" * 100_000,
    "not a number": lambda raw: raw.replace(b"0.01}", b"NaN}", 1),
    "UTF-16": lambda raw: raw.decode().encode("utf-16"),
    "half a character": lambda raw: raw.replace(b"example", b"exampl\\ud800", 1),
    "nothing": lambda raw: b"",
    "null": lambda raw: b"null",
    "a list": lambda raw: b"[]",
    "an empty object": lambda raw: b"{}",
}


@pytest.mark.parametrize("how", REWRITTEN)
def test_the_same_json_in_other_bytes_is_no_certificate(raw: bytes, how: str) -> None:
    changed = REWRITTEN[how](raw)
    assert changed != raw
    refused(changed)


def test_a_line_end_is_named(raw: bytes) -> None:
    assert "line end" in refused(raw + b"\n")


def test_a_signature_of_something_else_is_none_of_a_certificate(raw: bytes, signer: Signer) -> None:
    envelope = json.loads(raw)
    message = canonical(envelope["certificate"]).encode()
    for prefix in (b"", CHECKPOINT_PREFIX, CERTIFICATE_PREFIX.upper()):
        envelope["signature"] = signer.sign(prefix + message)
        assert "signature" in refused(canonical(envelope).encode())


def _less(certificate: Json) -> None:
    for one in certificate["statements"]:
        one["epsilon"] *= 0.9


def _one_less(certificate: Json) -> None:
    certificate["statements"][-1]["epsilon"] *= 1 - 1e-5


def _fewer_steps(certificate: Json) -> None:
    run = certificate["facts"]["homes"][0]["runs"][0]["ledger"]
    run["events"][0]["steps"] = 50
    run["events"][1]["first_step"] = 50


def _without_correction(certificate: Json) -> None:
    certificate["facts_sha256"] = hashlib.sha256(
        canonical(certificate["facts"]).encode()
    ).hexdigest()


def _forged(certificate: Json) -> None:
    _fewer_steps(certificate)
    _without_correction(certificate)


def _set(*path: Any, value: Any) -> Callable[[Json], None]:
    def change(certificate: Json) -> None:
        here: Any = certificate
        for name in path[:-1]:
            here = here[name]
        here[path[-1]] = value

    return change


# What somebody who holds the key changes and signs again, and what of it is named.
LIES: dict[str, tuple[Callable[[Json], object], str]] = {
    "a smaller epsilon": (_less, "log.path"),
    "one hardly smaller": (_one_less, "log.path"),
    "other facts": (_fewer_steps, "facts_sha256"),
    "other facts with their digest": (_forged, "log.path"),
    "another model": (_set("model_sha256", value="ef" * 32), "log.path"),
    "another time": (_set("issued_at", value="2020-01-01T00:00:00+00:00"), "facts:"),
    "another time in the log": (_set("log", "acted_at", value="2020"), "log.path"),
    "another place": (_set("log", "position", value=0), "log.path"),
    "a checkpoint nobody signed": (
        _set("log", "part", "checkpoint", "issued_at", value="2020"), "log.part",
    ),
    "a head that is not in it": (_set("log", "part", "head", "size", value=99), "log.part"),
    "another name of the key": (_set("log", "part", "key_id", value="0" * 16), "log.part"),
    "another subject": (_set("facts", "subject", "name", value="else"), "facts_sha256"),
    "another version": (_set("versions", "dpledger", value="9.9.9"), "log.path"),
    "no theorems": (_set("theorems", value=[]), "theorems"),
    "no advisories": (_set("advisories", value=[]), "advisories"),
    "better standing": (
        _set("standing", 0, "sampling_status", value="detected"), "standing",
    ),
    "another assumption": (
        _set("statements", 0, "assumptions", value=[]), "delta 1e-05, best: assumptions",
    ),
    "another status": (_set("statements", 1, "status", value="derived"), "status"),
    "no lower bound": (_set("statements", 0, "epsilon_lower", value=None), "log.path"),
    "an unknown field": (_set("comment", value="trust me"), "certificate.comment"),
    "a missing field": (lambda certificate: certificate.pop("standing"), "certificate.standing"),
    "a word for a number": (_set("statements", 0, "epsilon", value="1"), "epsilon"),
    "a negative epsilon": (_set("statements", 0, "epsilon", value=-1.0), "epsilon"),
    "no statements": (_set("statements", value=[]), "statements"),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_that_is_signed_is_found_out_and_named(raw: bytes, signer: Signer, lie: str) -> None:
    change, named = LIES[lie]
    assert named in refused(resealed(raw, signer, change), public_key=signer.public_key)


def test_a_checkpoint_of_another_key_does_not_vouch(
    raw: bytes, signer: Signer, tmp_path: Path
) -> None:
    other = signer_of(tmp_path)
    stolen = seal_certificate(said(raw), other)
    assert "log.part" in refused(stolen)
    assert "log.part" in refused(stolen, public_key=other.public_key)


# ---- what a number that was computed again must be


def statement(epsilon: float | None, lower: float | None = None) -> Statement:
    return Statement(
        delta=1e-5, accountant="best", reservations=False, epsilon=epsilon, epsilon_lower=lower,
        reason=None, bound=None, theorems=[], status=None, assumptions=[], valid_for="",
        release="every_step", release_reason=None, unamplified_epsilon=None,
        corrected_epsilon=None, so_far_epsilon=None, planned_steps=None, steps=1,
    )  # fmt: skip


Bracket = tuple[float | None, float | None]
CASES: list[tuple[str, Bracket, Bracket, str]] = [
    # who stated it, (epsilon, lower) stated, (epsilon, lower) computed again by 2.0, what is said
    ("2.0", (1.0, 0.9), (1.0, 0.9), ""),
    ("2.0", (1.0 + 1e-8, 0.9), (1.0, 0.9), ""),
    ("2.0", (1.0 - 1e-4, 0.9), (1.0, 0.9), "epsilon is not"),
    ("2.0", (1.0 + 1e-4, 0.9), (1.0, 0.9), "epsilon is not"),
    ("2.0", (1.0, 0.9), (1.0, None), "epsilon_lower is not"),
    ("2.0", (None, None), (1.0, 0.9), "epsilon is not"),
    ("2.0", (1.0, 0.9), (None, None), "epsilon is not"),
    ("1.9", (1.2, 0.9), (1.0, 0.9), ""),  # was looser
    ("1.9", (1.0, 0.9), (1.1, 0.9), "TOO LOW"),
    ("1.9", (1.0, 0.9), (None, None), "TOO LOW"),
    ("1.9", (None, None), (1.0, 0.9), ""),
    ("1.9", (1.0, 0.9), (1.2, 1.1), "contradicts"),
    ("1.9", (1.0, 0.9), (0.8, 0.7), "contradicts"),
    ("2.1", (1.0, 0.9), (1.1, 0.9), "verify it with the version that it names, 2.1"),
    ("2.1", (1.0, 0.9), (1.2, 1.1), "contradicts"),
    ("2.1", (1.0, None), (None, None), "verify it with the version that it names, 2.1"),
    ("2.1", (1.2, 0.9), (1.0, 0.9), ""),
]  # fmt: skip


@pytest.mark.parametrize(("by", "stated", "again", "said_of_it"), CASES)
def test_a_number_is_judged_by_who_stated_it(
    by: str,
    stated: Bracket,
    again: Bracket,
    said_of_it: str,
) -> None:
    found = compare_brackets(statement(*stated), statement(*again), stated_by=by, here="2.0")
    if said_of_it:
        assert found is not None
        assert said_of_it in found
    else:
        assert found is None


# ---- whatever is in a file

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=10,
)  # fmt: skip


@given(data=st.binary(max_size=200))
def test_no_bytes_do_more_than_be_refused(data: bytes) -> None:
    refused(data)


@given(value=JSON)
def test_no_signed_json_does_more_than_be_refused(signer: Signer, value: Any) -> None:
    envelope = {
        "certificate": value,
        "key_id": signer.key_id,
        "public_key": signer.public_key,
        "signature": signer.sign(CERTIFICATE_PREFIX + _encoded(value)),
    }
    refused(_encoded(envelope))


def _encoded(value: Any) -> bytes:
    return canonical(value).encode(errors="replace")


@given(data=st.data())
def test_no_signed_change_of_a_certificate_does_more_than_be_refused_or_hold(
    raw: bytes, signer: Signer, data: st.DataObject
) -> None:
    certificate = said(raw)
    places = list(_places(certificate))
    here, name = data.draw(st.sampled_from(places))
    here[name] = data.draw(JSON)
    try:
        changed = seal_certificate(certificate, signer)
    except UnicodeEncodeError:
        return
    try:
        found = verify_bytes(changed, public_key=signer.public_key)
    except InvalidCertificateError:
        return
    assert isinstance(found, Verified)


def _places(value: Any) -> Any:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for name, inner in items:
        yield value, name
        if isinstance(inner, dict | list):
            yield from _places(inner)
