"""Requests that a proxy and the service could read differently are refused."""

import hashlib
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from sqlalchemy import Engine

from service.schemas.base64url import to_text
from service.transparency.certificates.envelope import InvalidCertificateError
from service.transparency.certificates.verify import verify_bytes
from service.transparency.signing import is_public_key, key_id_of, verify_signature
from tests.service.certifying import certificate_of, signer_of
from tests.service.dumps import dump
from tests.service.samples import append, dataset, event, run, setup
from tests.service.sockets import Talk, request

GUARANTEE = "/v1/runs/run/guarantee"
REPEATED = [
    (f"{GUARANTEE}?delta=1e-5&delta=0.5", "query.delta"),
    (f"{GUARANTEE}?delta=1e-5&delta=1e-5", "query.delta"),
    ("/v1/runs?state=active&state=finished", "query.state"),
    ("/v1/datasets?page_size=5&page_size=6", "query.page_size"),
    ("/v1/runs/run/stream?last_event_id=1&last_event_id=2", "query.last_event_id"),
    ("/v1/runs?Zx9=1&Zx9=2", "query"),
    ("/v1/bounds?Zx9=1&Zx9=2", "query"),
    ("/metrics?Zx9=1&Zx9=2", "query"),
    ("/healthz?Zx9=1&Zx9=2", "query"),
    ("/runs?state=active&state=finished", "query.state"),
    ("/planner?steps=1&steps=2", "query"),
    ("/datasets/data/proved?delta=1e-5&delta=0.5", "query.delta"),
]
NUMBERS = [
    (GUARANTEE, "delta", ["1_0e-5", " 1e-5", "1e-5 ", "+1e-5", ".5", "1.", "01", "0x1p-3",
                          "\u0661"]),
    (GUARANTEE, "epsilon", ["1_0", "1 ", "+1", "1e", "--1"]),
    ("/v1/runs/run/history", "points", ["1.0", "1e1", "1_0", " 10", "+10", "010"]),
    ("/v1/datasets", "page_size", ["1.0", "1e1", "1_0", "10 "]),
    ("/v1/runs/run/certificate", "delta", ["1_0e-5", " 1e-5"]),
]  # fmt: skip


@pytest.mark.parametrize(("path", "place"), REPEATED)
def test_a_parameter_that_is_there_twice_is_refused(
    api: httpx.Client, path: str, place: str
) -> None:
    setup(api)
    answer = api.get(path)
    assert answer.status_code == 422
    assert f"{place}: a parameter is there twice" in answer.text
    assert "Zx9" not in answer.text


def test_a_charge_is_not_turned_into_a_record_by_a_second_mode(
    api: httpx.Client, engine: Engine
) -> None:
    setup(api)
    before = dump(engine)
    line = httpx.Response(200, json=event(0, 1)).content + b"\n"
    for query in ("mode=charge&mode=record", "mode=charge&mode=charge", "branch=main&branch=b"):
        answer = api.post(
            f"/v1/runs/run/events?{query}",
            content=line,
            headers={"content-type": "application/x-ndjson"},
        )
        assert answer.status_code == 422
        assert "there twice" in answer.json()["detail"]
    assert dump(engine) == before


def test_a_parameter_that_takes_several_values_still_does(api: httpx.Client) -> None:
    setup(api)
    append(api, event(0, 10))
    answer = api.get("/v1/runs/run/certificate", params={"delta": ["1e-5", "1e-6"]})
    assert answer.status_code in (200, 503)  # on PostgreSQL there is no key to sign with
    assert api.get("/compare", params={"runs": ["run", "run"]}).status_code == 200


@pytest.mark.parametrize(
    ("path", "name", "value"), [(path, name, one) for path, name, all_ in NUMBERS for one in all_]
)
def test_a_number_is_read_as_json_writes_it(
    api: httpx.Client, path: str, name: str, value: str
) -> None:
    setup(api)
    answer = api.get(path, params={name: value})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["location"] == f"query.{name}"
    assert value.strip() == "" or f'"{value}"' not in answer.text


@pytest.mark.parametrize("value", ["1e-5", "1E-5", "0.00001", "1.0e-05", "1e-05"])
def test_numbers_as_json_writes_them_are_read(api: httpx.Client, value: str) -> None:
    setup(api)
    append(api, event(0, 1))
    assert api.get(GUARANTEE, params={"delta": value}).json()["delta"] == 1e-5


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/runs", "by"),
        ("/v1/requests", "by"),
        ("/v1/incidents", "assignee"),
        *product(("/v1/acts", "/v1/datasets/data/acts"), ("by", "kind")),
        *product(("/datasets", "/runs", "/keys"), ("name",)),
        *product(("/incidents", "/requests", "/log", "/runs"), ("dataset",)),
        ("/log", "kind"),
    ],
)
def test_a_nul_is_looked_for_nowhere(api: httpx.Client, path: str, name: str) -> None:
    setup(api)
    answer = api.get(f"{path}?{name}=a%00")
    assert answer.status_code == 422
    assert f"query.{name}: must have no NUL character" in answer.text


@pytest.mark.parametrize("path", ["/v1/runs", GUARANTEE, "/v1/runs/run/events"])
def test_the_name_of_an_unknown_parameter_is_not_repeated(api: httpx.Client, path: str) -> None:
    setup(api)
    method = "POST" if path.endswith("events") else "GET"
    answer = api.request(method, path, params={"Zx9-secret": "1"}, content=b"{}")
    assert answer.status_code == 422
    assert answer.json()["errors"][0] == {"location": "query", "message": "unknown parameter"}
    assert "Zx9" not in answer.text


def test_a_stranger_is_told_of_the_key_first(address: str) -> None:
    for path, _ in REPEATED:
        if path.startswith(("/v1/", "/metrics")) and "bounds?" not in path:
            assert httpx.get(f"{address}{path}").status_code == 401, path


@pytest.mark.parametrize("others", [[b"Host: evil.example"], [b"Host: localhost"]])
def test_two_hosts_are_refused(address: str, others: list[bytes]) -> None:
    with Talk(address) as talk:
        talk.send(request("GET", "/v1/runs", others))
        answer = talk.answer()
    assert answer is not None
    assert (answer.status, answer.slug) == (400, "malformed-request")


def test_no_host_is_refused_and_http_1_0_may_have_none(address: str) -> None:
    for version, status in (("1.1", 400), ("1.0", 200)):
        with Talk(address) as talk:
            talk.send(f"GET /healthz HTTP/{version}\r\n\r\n".encode())
            answer = talk.answer()
        assert answer is not None
        assert answer.status == status


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("application/json; charset=utf-8", 201),
        ('application/json; charset="UTF-8"', 201),
        ("application/json", 201),
        ("application/json; charset=utf-16", 415),
        ("application/json;charset=iso-8859-1", 415),
        ("application/json; a=b; charset=latin1", 415),
        ("application/json; charset=utf-8; charset=utf-16", 415),
        ("application/json; charset=", 415),
    ],
)
def test_no_other_charset_than_utf_8_is_taken(api: httpx.Client, kind: str, status: int) -> None:
    body = httpx.Response(200, json=dataset()).content
    answer = api.post("/v1/datasets", content=body, headers={"content-type": kind})
    assert answer.status_code == status


@pytest.mark.parametrize(
    "text",
    [
        "\u3164", "\u115f", "\u1160", "\u2800", "\uffa0", "\u034f", "\ufe0f", "\U000e0100", " ",
        "\U0001d159", "a\U0001d159a", "\U00016fe4", "\U00013441", "a\U00013442a",
        "patient\u3164", "\u0301", "\u0301a", "a" + "\u0301" * 5, "a" + "\u0489" * 5,
        "a" + "\u0301\u0302\u0303\u0304\u0305",
    ],
)  # fmt: skip
def test_text_that_cannot_be_seen_is_refused(api: httpx.Client, text: str) -> None:
    answer = api.post("/v1/datasets", json=dataset(privacy_unit=text))
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["location"] == "body.privacy_unit"


@pytest.mark.parametrize(
    "text",
    [
        "patient", "Pa\u0301ciente", "b\u1ec7nh nh\u00e2n", "be\u0323\u0302nh", "\u60a3\u8005",
        "\u0645\u0631\u064a\u0636", "\u0930\u094b\u0917\u0940", "\U0001f9d1",
    ],
)  # fmt: skip
def test_text_of_any_language_is_taken(api: httpx.Client, text: str) -> None:
    answer = api.post("/v1/datasets", json=dataset(privacy_unit=text))
    assert answer.status_code == 201, answer.text
    assert answer.json()["privacy_unit"] == text


def test_units_that_look_the_same_are_the_same(api: httpx.Client) -> None:
    for name, unit in (("whole", "caf\u00e9"), ("other", "cafe")):
        api.post("/v1/datasets", json=dataset(name, privacy_unit=unit)).raise_for_status()
    child = dataset("part", privacy_unit="cafe\u0301", rows_per_parent_record="at_most_one")
    assert api.post("/v1/datasets", json=child | {"parents": ["whole"]}).status_code == 201
    refused = api.post("/v1/datasets", json=child | {"name": "another", "parents": ["other"]})
    assert "must have the same privacy_unit" in refused.json()["detail"]


def test_a_request_that_looks_the_same_is_the_same_request(api: httpx.Client) -> None:
    one, same, other = "caf\u00e9", "cafe\u0301", "cafe"
    for path, bodies in (
        ("/v1/datasets", [dataset(privacy_unit=text) for text in (one, same, other)]),
        ("/v1/runs", [run(labels={"place": text}) for text in (one, same, other)]),
    ):
        answers = [api.post(path, json=body) for body in bodies]
        assert [answer.status_code for answer in answers] == [201, 200, 409], path
        assert answers[1].json() == answers[0].json()  # as it was written first


# Ed25519 keys with which one signature fits many texts.

FIELD = 2**255 - 19


def small_order() -> Iterator[bytes]:
    """Every encoding of a y whose point has an order that divides 8, with both signs of x."""
    d = -121665 * pow(121666, -1, FIELD) % FIELD
    # Twice a point of order 8 has y = 0: x^2 = -y^2, so by the curve d y^4 + 2 y^2 - 1 = 0.
    root = _root((1 + d) % FIELD)
    assert root is not None
    eights = [_root((sign * root - 1) * pow(d, -1, FIELD) % FIELD) for sign in (1, -1)]
    values = {0, 1, FIELD - 1}
    for y in eights:
        if y is not None:
            values |= {y, FIELD - y}
    assert len(values) == 5
    for y, sign in product(sorted(values), (0, 1)):
        for same in (y, y + FIELD):
            if same < 2**255:
                yield (same | sign << 255).to_bytes(32, "little")


def _root(square: int) -> int | None:
    """A square root in the field; None where there is none."""
    root = pow(square, (FIELD + 3) // 8, FIELD)
    for one in (root, root * pow(2, (FIELD - 1) // 4, FIELD) % FIELD):
        if one * one % FIELD == square % FIELD:
            return one
    return None


def test_no_key_of_small_order_verifies_anything() -> None:
    found = list(small_order())
    assert len(found) == 14
    for key, point in product(found, found):
        text = to_text(key)
        assert not is_public_key(text)
        for message in (b"", b"one", b"another"):
            assert not verify_signature(text, message, to_text(point + bytes(32)))


ORDER = 2**252 + 27742317777372353535851937790883648493  # of the base point (RFC 8032)


@pytest.mark.parametrize("point", list(small_order()), ids=bytes.hex)
def test_a_signature_whose_point_has_a_small_order_verifies_nothing(point: bytes) -> None:
    """Its maker knows the key, whose secret it tells: S = h a fits where the point is the zero."""
    private = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    public = private.public_key().public_bytes_raw()
    digest = hashlib.sha512(bytes(range(32))).digest()
    secret = int.from_bytes(digest[:32], "little") & (2**254 - 8) | 2**254
    h = int.from_bytes(hashlib.sha512(point + public + b"text").digest(), "little")
    forged = point + (h * secret % ORDER).to_bytes(32, "little")
    if point == bytes([1]) + bytes(31):  # a library that is no stricter than the RFC takes it
        Ed25519PublicKey.from_public_bytes(public).verify(forged, b"text")
    assert not verify_signature(to_text(public), b"text", to_text(forged))


def test_a_signature_has_one_second_half() -> None:
    private = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    public = to_text(private.public_key().public_bytes_raw())
    good = private.sign(b"text")
    assert verify_signature(public, b"text", to_text(good))
    half = int.from_bytes(good[32:], "little")
    for times in range(1, (2**256 - 1 - half) // ORDER + 1):
        other = good[:32] + (half + times * ORDER).to_bytes(32, "little")
        assert not verify_signature(public, b"text", to_text(other))


# Of the vectors that Chalkias, Garillot and Nikolaenko published as ed25519-speccheck, those that
# libraries take and that hold a point of small order: (message, key, signature, why not).
CASES = [
    ("8c93255d71dcab10e8f379c26200f3c7bd5f09d9bc3068d3ef4edeb4853022b6",
     "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
     "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a" + "00" * 32,
     "both points have a small order"),
    ("9bd9f44f4dcc75bd531b56b2cd280b0bb38fc1cd6d1230e14861d861de092e79",
     "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
     "f7badec5b8abeaf699583992219b7b223f1df3fbbea919844e3f7c554a43dd43"
     "a5bb704786be79fc476f91d3f3f89b03984d8068dcf1bb7dfc6637b45450ac04",
     "the key has a small order"),
    ("aebf3f2601a0c8c5d39cc7d8911642f740b78168218da8471772b35f9d35b9ab",
     "f7badec5b8abeaf699583992219b7b223f1df3fbbea919844e3f7c554a43dd43",
     "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa"
     "8c4bd45aecaca5b24fb97bc10ac27ac8751a7dfe1baff8b953ec9f5833ca260e",
     "the point of the signature has a small order"),
]  # fmt: skip


@pytest.mark.parametrize(("message", "key", "signature", "why"), CASES)
def test_what_a_library_takes_with_a_point_of_small_order_is_refused(
    message: str, key: str, signature: str, why: str
) -> None:
    text, public, signed = (bytes.fromhex(part) for part in (message, key, signature))
    Ed25519PublicKey.from_public_bytes(public).verify(signed, text)
    assert not verify_signature(to_text(public), text, to_text(signed)), why


def test_only_the_one_way_to_write_a_key_is_taken() -> None:
    for y in range(2**255 - 19, 2**255):
        for sign in (0, 1):
            assert not is_public_key(to_text((y | sign << 255).to_bytes(32, "little")))
    for _ in range(50):
        assert is_public_key(to_text(Ed25519PrivateKey.generate().public_key().public_bytes_raw()))


def test_a_certificate_signed_by_the_identity_is_a_forgery(tmp_path: Path) -> None:
    signer = signer_of(tmp_path)
    raw = certificate_of(tmp_path, signer)
    identity, forgery = to_text(bytes([1]) + bytes(31)), to_text(bytes([1]) + bytes(63))
    forged = raw.replace(signer.public_key.encode(), identity.encode())
    forged = forged.replace(signer.key_id.encode(), key_id_of(identity).encode())
    forged, signatures = re.subn(
        rb'"signature":"[^"]*"', f'"signature":"{forgery}"'.encode(), forged
    )
    assert signatures == 2  # of the certificate, and of the checkpoint in it
    with pytest.raises(InvalidCertificateError):
        verify_bytes(forged, public_key=identity)
