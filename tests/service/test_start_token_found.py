"""How clients find the start token, and where they send it."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest
from dpledger_client import Client, Unauthorized, start_tokens

from benchmarks.servers import free_port
from service.cli.service_client import Service
from service.identity import start_token
from service.identity.start_token import StartToken
from service.settings import Settings

READERS = [
    pytest.param(lambda url: found_by_service(url), id="service"),
    pytest.param(lambda url: found_by_client(url), id="client"),
]
# The address that a token may be sent to, and the token.
Reader = Callable[[str], tuple[str, str] | None]


def found_by_service(url: str) -> tuple[str, str] | None:
    found = start_token.find_start_token(url)
    return found and (httpx.URL(found.url).host, found.token)


def found_by_client(url: str) -> tuple[str, str] | None:
    return start_tokens.find(httpx.URL(url).host, httpx.URL(url).port or 80)


@pytest.fixture
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StartToken:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return StartToken.load_or_create(tmp_path / "token")


@pytest.mark.parametrize("find", READERS)
def test_a_token_is_found_by_its_address_alone(token: StartToken, find: Reader) -> None:
    start_token.publish(token, "127.0.0.1", 8123)
    for url in ("http://127.0.0.1:8123", "http://localhost:8123"):
        assert find(url) == ("127.0.0.1", token.text)
    for url in (
        "http://127.0.0.1:8124", "http://127.0.0.2:8123", "http://192.0.2.1:8123",
        "http://ledger.example:8123", "http://localhost.evil.example:8123", "http://0.0.0.0:8123",
        "http://[::1]:8123",  # where another user's process may listen
    ):  # fmt: skip
        assert find(url) is None


@pytest.mark.parametrize("find", READERS)
def test_a_token_of_the_sixth_version_is_found_there_alone(token: StartToken, find: Reader) -> None:
    start_token.publish(token, "::1", 8123)
    for url in ("http://[::1]:8123", "http://[0:0:0:0:0:0:0:1]:8123", "http://localhost:8123"):
        assert find(url) == ("::1", token.text)
    assert find("http://127.0.0.1:8123") is None


@pytest.mark.parametrize("find", READERS)
def test_no_token_is_sent_to_the_address_of_a_service_that_was_killed(
    token: StartToken, find: Reader
) -> None:
    pointer, url = start_token.publish(token, "127.0.0.1", 8123), "http://127.0.0.1:8123"
    assert find(url) is not None
    said = json.loads(pointer.read_text(encoding="ascii"))
    assert said["process"] == os.getpid()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait(timeout=60)
    for process in (ended.pid, str(os.getpid()), None, 10**30):
        pointer.write_text(json.dumps(said | {"process": process}), encoding="ascii")
        assert find(url) is None


@pytest.mark.parametrize("find", READERS)
def test_a_pointer_is_followed_only_where_it_and_the_token_are_ones_own(
    token: StartToken, find: Reader, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pointer, url = start_token.publish(token, "127.0.0.1", 8123), "http://127.0.0.1:8123"
    for path in (pointer, token.path):
        for mode in (0o644, 0o620, 0o602):
            path.chmod(mode)
            assert find(url) is None
        path.chmod(0o600)
    with monkeypatch.context() as other:
        other.setattr("os.geteuid", lambda: os.getuid() + 1)
        assert find(url) is None
    assert find(url) == ("127.0.0.1", token.text)
    with monkeypatch.context() as other:  # a home folder that several machines share
        other.setattr("platform.node", lambda: "elsewhere")
        assert find(url) is None
    text = pointer.read_text(encoding="ascii")
    for wrong in ("", "[]", "{}", "{" * 5000, " " * 20_000 + text, text.replace("/", "\u20ac")):
        pointer.write_text(wrong, encoding="utf-8")
        assert find(url) is None
    pointer.unlink()
    pointer.symlink_to(tmp_path / "another")
    assert find(url) is None


def test_a_token_that_was_found_is_sent_past_every_proxy(
    address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("DPLEDGER_API_KEY")
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    settings = Settings()
    start_token.publish(
        StartToken.load_or_create(settings.start_token_path),
        "127.0.0.1",
        httpx.URL(address).port or 0,
    )
    with Client(address, retries=0) as client:
        assert list(client.datasets()) == []
    assert Service(address).get("/v1/datasets")["datasets"] == []


@contextmanager
def answering(family: socket.AddressFamily, address: str, port: int) -> Iterator[list[str]]:
    """Another process at an address: it keeps the heads of the requests that it gets."""
    heads: list[str] = []
    with socket.create_server((address, port), family=family) as listener:

        def answer() -> None:
            with suppress(OSError):  # it was closed
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        heads.append(connection.recv(65536).decode())
                        body = b'{"datasets": [], "next_page_token": null}'
                        connection.sendall(
                            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                            b"Connection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
                        )

        thread = Thread(target=answer, daemon=True)
        thread.start()
        yield heads
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(timeout=60)


def test_the_token_is_not_sent_to_another_process_of_the_same_name(
    address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("DPLEDGER_API_KEY")
    port = httpx.URL(address).port or 0
    token = StartToken.load_or_create(Settings().start_token_path)
    start_token.publish(token, "127.0.0.1", port)
    resolve = socket.getaddrinfo

    def sixth_first(host: str, *given: Any, **options: Any) -> Any:
        return resolve("::1" if host == "localhost" else host, *given, **options)

    monkeypatch.setattr(socket, "getaddrinfo", sixth_first)
    with answering(socket.AF_INET6, "::1", port) as heads:
        for url in (f"http://localhost:{port}", f"http://[::1]:{port}"):
            with Client(url, retries=0) as client:
                assert list(client.datasets()) == []
            assert Service(url).get("/v1/datasets")["datasets"] == []
    assert len(heads) == 2  # of those that named the address itself
    assert all("authorization" not in head.lower() for head in heads)


def test_the_token_is_not_sent_to_what_listens_after_the_service(
    token: StartToken, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DPLEDGER_API_KEY")
    port = free_port()
    pointer = start_token.publish(token, "127.0.0.1", port)
    url = f"http://127.0.0.1:{port}"
    with answering(socket.AF_INET, "127.0.0.1", port) as heads, Client(url, retries=0) as client:
        service = Service(url)
        for ended in (False, True):
            if ended:
                pointer.unlink()
            assert list(client.datasets()) == []
            service.get("/v1/datasets")
    sent = [f"authorization: bearer {token.text}".lower() in head.lower() for head in heads]
    assert sent == [True, True, False, False]


def test_a_client_that_was_there_before_the_token_finds_it(
    address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("DPLEDGER_API_KEY")
    port = httpx.URL(address).port or 0
    stale = tmp_path / "stale"
    start_token.publish(StartToken.load_or_create(stale), "127.0.0.1", port)
    with Client(address, retries=0) as client:
        with pytest.raises(Unauthorized):
            list(client.datasets())
        token = StartToken.load_or_create(Settings().start_token_path)
        start_token.publish(token, "127.0.0.1", port)
        assert list(client.datasets()) == []


def listed_by_service(url: str) -> object:
    return Service(url).get("/v1/datasets")["datasets"]


def listed_by_client(url: str) -> object:
    with Client(url, retries=0) as client:
        return list(client.datasets())


@pytest.mark.parametrize(
    ("module", "name", "listed"),
    [
        (start_token, "find_start_token", listed_by_service),
        (start_tokens, "find", listed_by_client),
    ],
)
def test_a_request_that_came_before_the_token_is_sent_again_with_it(
    address: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    module: Any,
    name: str,
    listed: Callable[[str], object],
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("DPLEDGER_API_KEY")
    token = StartToken.load_or_create(Settings().start_token_path)
    start_token.publish(token, "127.0.0.1", httpx.URL(address).port or 0)
    find, answers = getattr(module, name), [None]  # it listens before it has begun
    monkeypatch.setattr(module, name, lambda *at: answers.pop() if answers else find(*at))
    assert listed(address) == []
