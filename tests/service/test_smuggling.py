"""Ambiguous messages, over real sockets: none is ever answered as two, and none is recorded."""

import gzip
from collections.abc import Iterator

import httpx
import pytest
from sqlalchemy import Engine

from service.storage.engine import connect
from tests.conftest import AS_ADMIN, clear
from tests.service.dumps import dump
from tests.service.samples import setup
from tests.service.sockets import Talk, request, steps

EVENTS = "/v1/runs/run/events"
JSON = b"Content-Type: application/json"
BODY = steps(0)
LENGTH = b"Content-Length: %d" % len(BODY)
CHUNK = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
HIDDEN = request("POST", EVENTS, [JSON, LENGTH], BODY)  # what a proxy would have taken for a body

# By name: headers and a body that two readers may take for different messages.
AMBIGUOUS: dict[str, tuple[list[bytes], bytes]] = {
    "a length and chunks": ([LENGTH, b"Transfer-Encoding: chunked"], CHUNK),
    "chunks and a length": ([b"Transfer-Encoding: chunked", b"Content-Length: 3"], CHUNK),
    "two lengths": ([LENGTH, b"Content-Length: 3"], BODY),
    "two equal lengths": ([LENGTH, LENGTH], BODY),
    "lengths in a list": ([b"Content-Length: 5, %d" % len(BODY)], BODY),
    "a negative length": ([b"Content-Length: -1"], BODY),
    "a signed length": ([b"Content-Length: +%d" % len(BODY)], BODY),
    "a length in hex": ([b"Content-Length: 0x10"], BODY),
    "a length beyond 64 bits": ([b"Content-Length: 99999999999999999999"], BODY),
    "an unknown coding": ([b"Transfer-Encoding: xchunked", LENGTH], BODY),
    "chunked, then another": ([b"Transfer-Encoding: chunked, identity"], CHUNK),
    "chunked in disguise": ([b"Transfer-Encoding: \x0bchunked", LENGTH], BODY),
    "a name that ends in a space": ([b"Transfer-Encoding : chunked", LENGTH], BODY),
    "a folded header": ([b"X-A: b\r\n Transfer-Encoding: chunked", LENGTH], BODY),
    "a header without a colon": ([b"Nothing", LENGTH], BODY),
    "a NUL in a header": ([b"X-A: \x00", LENGTH], BODY),
    "a line end in a header": ([b"X-A: b\rX-B: c", LENGTH], BODY),
    "a bad size of a chunk": ([b"Transfer-Encoding: chunked"], b"zz\r\n" + BODY),
    "a signed size of a chunk": ([b"Transfer-Encoding: chunked"], b"-1\r\n" + BODY),
    "a huge size of a chunk": ([b"Transfer-Encoding: chunked"], b"f" * 20 + b"\r\n" + BODY),
    "a chunk longer than its size": (
        [b"Transfer-Encoding: chunked"],
        b"3\r\n" + BODY + b"\r\n0\r\n\r\n",
    ),
}


@pytest.fixture
def engine(backend_urls: dict[str, str]) -> Iterator[Engine]:
    engine = connect(backend_urls["sqlite"])
    yield engine
    engine.dispose()


@pytest.fixture
def there(addresses: dict[str, str], backend_urls: dict[str, str]) -> str:
    """A service with a run without steps."""
    clear(backend_urls["sqlite"])
    with httpx.Client(base_url=addresses["sqlite"], headers=AS_ADMIN) as api:
        setup(api)
    return addresses["sqlite"]


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_an_ambiguous_message_is_refused_and_what_follows_is_not_answered(
    there: str, engine: Engine, name: str
) -> None:
    headers, body = AMBIGUOUS[name]
    before = dump(engine)
    with Talk(there) as talk:
        talk.send(request("POST", EVENTS, [JSON, *headers], body) + HIDDEN)
        answers = talk.answers()
    assert [answer.status for answer in answers] == [400]
    assert answers[0].headers["connection"] == "close"
    assert dump(engine) == before


@pytest.mark.parametrize(
    "head",
    [
        b"GET /healthz HTTP/9.9\r\nHost: localhost\r\n\r\n",
        b"get /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /health\x00z HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 200_000 + b"\r\n\r\n",
    ],
    ids=["9.9", "small letters", "NUL", "HTTP/2", "TLS", "a long header"],
)
def test_what_is_not_http_is_answered_once_at_most(there: str, head: bytes) -> None:
    with Talk(there) as talk:
        talk.send(head)
        answers = talk.answers()
    assert len(answers) <= 1
    assert all(answer.status >= 400 for answer in answers)


@pytest.mark.parametrize("ends", [b"\n", b"\r"], ids=["LF", "CR"])
def test_lines_that_end_otherwise_hide_no_second_request(
    there: str, engine: Engine, ends: bytes
) -> None:
    before = dump(engine)
    first = request("GET", "/healthz").replace(b"\r\n", ends)
    with Talk(there) as talk:
        talk.send(first + HIDDEN.replace(b"\r\n", ends) + request("GET", "/healthz", end=True))
        talk.socket.shutdown(1)
        answers = talk.answers()
    assert 201 not in [answer.status for answer in answers]
    assert dump(engine) == before


def test_requests_one_after_another_are_answered_in_order(there: str) -> None:
    with Talk(there) as talk:
        talk.send(
            request("POST", EVENTS, [JSON, LENGTH], BODY)
            + request("POST", EVENTS, [JSON, b"Transfer-Encoding: chunked"], CHUNK)
            + request("GET", "/nothing")
            + request("GET", "/healthz", end=True)
        )
        assert [answer.status for answer in talk.answers()] == [201, 200, 404, 200]


def test_a_refused_body_is_never_read_as_the_next_request(there: str, engine: Engine) -> None:
    before = dump(engine)
    headers = [b"Content-Type: text/plain", b"Content-Length: %d" % len(HIDDEN)]
    with Talk(there) as talk:
        talk.send(request("POST", "/nothing", headers, HIDDEN))
        talk.send(request("POST", EVENTS, headers, HIDDEN), request("GET", "/healthz", end=True))
        assert [answer.status for answer in talk.answers()] == [404, 415, 200]
    assert dump(engine) == before


@pytest.mark.parametrize("path", [EVENTS, "/v1/datasets"])
@pytest.mark.parametrize("coding", [b"gzip", b"br", b"deflate", b"gzip, gzip", b"x-unknown"])
def test_a_compressed_body_is_refused_by_name(there: str, path: str, coding: bytes) -> None:
    body = gzip.compress(BODY)
    headers = [JSON, b"Content-Encoding: " + coding, b"Content-Length: %d" % len(body)]
    with Talk(there) as talk:
        talk.send(request("POST", path, headers, body, end=True))
        (answer,) = talk.answers()
    assert (answer.status, answer.slug) == (415, "unsupported-media-type")
    assert b"compressed" in answer.body


def test_identity_is_no_compression(there: str) -> None:
    with Talk(there) as talk:
        headers = [JSON, b"Content-Encoding: identity", LENGTH]
        talk.send(request("POST", EVENTS, headers, BODY, end=True))
        (answer,) = talk.answers()
    assert answer.status == 201


def test_a_body_is_asked_for_before_it_is_sent(there: str) -> None:
    with Talk(there) as talk:
        headers = [JSON, LENGTH, b"Expect: 100-continue"]
        talk.send(request("POST", EVENTS, headers, end=True))
        asked = talk.answer()
        assert asked is not None
        assert asked.status == 100
        talk.send(BODY)
        (answer,) = talk.answers()
    assert answer.status == 201


def test_a_body_that_will_be_refused_is_not_asked_for(there: str) -> None:
    headers = [JSON, b"Content-Length: %d" % 2**40, b"Expect: 100-continue"]
    with Talk(there) as talk:
        talk.send(request("POST", EVENTS, headers))
        answer = talk.answer()
    assert answer is not None
    assert (answer.status, answer.slug) == (413, "body-too-large")


def test_a_websocket_is_not_opened(there: str) -> None:
    headers = [
        b"Connection: Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Version: 13",
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    ]  # fmt: skip
    with Talk(there) as talk:
        talk.send(request("GET", "/v1/runs/run/stream?surplus=1", headers))
        answer = talk.answer()
    assert answer is not None
    assert answer.status == 422
