"""The start token: an admin's key until the first key is created, in a file of its owner's."""

import json
import os
import re
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

import httpx
import pytest
from dpledger_client import Client, Unauthorized, start_tokens
from sqlalchemy import Engine

from benchmarks.servers import START_TOKEN
from service import start_token
from service.api_keys import Scope
from service.commands.asking import Service
from service.errors import StartupError
from service.settings import Settings
from service.start_token import StartToken
from tests.conftest import AS_ADMIN, free_port
from tests.service.browsing import browser, csrf_of, sign_in
from tests.service.dumps import dump
from tests.service.samples import append, dataset, event, setup
from tests.service.test_keys import bearer, key

Serve = Callable[..., AbstractContextManager[str]]
ELSEWHERE = [
    {},
    {"origin": "https://evil.example"},
    {"sec-fetch-site": "cross-site"},
    {"host": "evil.example"},
    {"host": "localhost"},
    {"via": "1.1 proxy"},
    {"authorization": "Bearer"},
    {"authorization": f"Basic {START_TOKEN}"},
    {"authorization": f"Bearer {START_TOKEN[:-1]}"},
    {"cookie": f"dpledger={START_TOKEN}"},
]
READERS = [
    pytest.param(lambda url: found_by_service(url), id="service"),
    pytest.param(lambda url: found_by_client(url), id="client"),
]
# The address that a token may be sent to, and the token.
Reader = Callable[[str], tuple[str, str] | None]


def found_by_service(url: str) -> tuple[str, str] | None:
    found = start_token.found(url)
    return found and (httpx.URL(found.url).host, found.token)


def found_by_client(url: str) -> tuple[str, str] | None:
    return start_tokens.find(httpx.URL(url).host, httpx.URL(url).port or 80)


def test_nothing_is_answered_or_written_without_it(
    api: httpx.Client, address: str, engine: Engine
) -> None:
    setup(api)
    before = dump(engine)
    with httpx.Client(base_url=address) as stranger:
        for headers in ELSEWHERE:
            for answer in (
                stranger.post("/v1/datasets", json=dataset("theirs"), headers=headers),
                stranger.post(
                    "/v1/runs/run/events", json={"events": [event(0, 1)]}, headers=headers
                ),
                stranger.get("/v1/runs/run/certificate", headers=headers),  # writes, though a GET
                stranger.get("/v1/runs/run", headers=headers),
                stranger.get("/v1/runs/run/stream", headers=headers),
                stranger.get("/metrics", headers=headers),
            ):
                assert answer.status_code == 401, headers
            assert stranger.get("/", headers=headers).status_code in (303, 401), headers
    assert dump(engine) == before


def test_with_it_whoever_asks_from_wherever_is_an_admin(api: httpx.Client) -> None:
    setup(api)
    for headers in ({"host": "ledger.example"}, {"origin": "https://elsewhere.example"}):
        assert api.get("/v1/runs/run", headers=headers).status_code == 200
    assert append(api, event(0, 1)).status_code == 201


def test_the_link_signs_a_browser_in_and_the_token_leaves_the_address(address: str) -> None:
    with browser(address) as client:
        assert client.get("/").headers["location"] == "/sign-in"
        answer = client.get("/sign-in", params={"token": START_TOKEN, "next": "/runs"})
        assert (answer.status_code, answer.headers["location"]) == (303, "/runs")
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert START_TOKEN not in cookie
        page = client.get("/")
        assert page.status_code == 200
        assert "start-token" in page.text
        assert START_TOKEN not in page.text
        assert client.post("/sign-out", data={"csrf": csrf_of(client)}).status_code == 303
        assert client.get("/").status_code == 303


def test_the_token_may_be_pasted_and_the_page_says_where_it_is(address: str) -> None:
    with browser(address) as client:
        page = client.get("/sign-in").text
        assert "dpledger serve" in page
        assert ".token" in page
        assert START_TOKEN not in page
        assert sign_in(client, START_TOKEN).status_code == 303
        assert client.get("/").status_code == 200


@pytest.mark.parametrize("token", ["", "dpl_" + "x" * 43, "\u20ac"])
def test_a_link_with_another_token_opens_nothing(address: str, token: str) -> None:
    with browser(address) as client:
        answer = client.get("/sign-in", params={"token": token})
        assert answer.status_code == 401
        assert "set-cookie" not in answer.headers
        assert client.get("/").status_code == 303


def test_no_key_signs_in_by_a_link_and_the_first_one_ends_the_session(
    engine: Engine, serve: Serve
) -> None:
    with serve() as address, browser(address) as client:
        assert client.get("/sign-in", params={"token": START_TOKEN}).status_code == 303
        assert client.get("/").status_code == 200
        secret = key(engine, Scope.ADMIN)
        until = time.monotonic() + 5
        while client.get("/").status_code == 200:
            assert time.monotonic() < until
        for token in (START_TOKEN, secret):
            answer = client.get("/sign-in", params={"token": token})
            assert (answer.status_code, "set-cookie" in answer.headers) == (401, False)
        with httpx.Client(base_url=address) as api:
            for headers in ELSEWHERE:
                assert api.get("/v1/runs", headers=bearer(secret)).status_code == 200
                assert api.get("/v1/runs", headers=headers).status_code == 401


# The file.


def test_the_token_is_made_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db.token"
    made = StartToken.load_or_create(path)
    assert re.fullmatch(r"dpl_[A-Za-z0-9_-]{43}", made.text)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert StartToken.load_or_create(path) == made
    assert made.text not in repr(made)
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o666])
def test_a_file_that_others_can_open_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "token"
    StartToken.load_or_create(path)
    path.chmod(mode)
    with pytest.raises(StartupError, match="can be opened by other users"):
        StartToken.load_or_create(path)


def test_a_file_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "token"
    StartToken.load_or_create(path)
    monkeypatch.setattr("service.secret_files.os.geteuid", lambda: os.getuid() + 1)
    with pytest.raises(StartupError, match="belongs to another user"):
        StartToken.load_or_create(path)


@pytest.mark.parametrize("text", ["", "short", "a" * 500, "a" * 31, "a b" * 20, "\u20ac" * 20])
def test_a_file_without_a_token_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "token"
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8")
    with pytest.raises(StartupError, match="start_token_file"):
        StartToken.load_or_create(path)


def test_a_link_a_folder_and_a_pipe_are_no_token_files(tmp_path: Path) -> None:
    StartToken.load_or_create(tmp_path / "token")
    (tmp_path / "link").symlink_to(tmp_path / "token")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name in ("link", "folder", "pipe", "absent/token"):
        with pytest.raises(StartupError, match="start_token_file"):
            StartToken.load_or_create(tmp_path / name)


def test_the_file_lies_beside_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DPLEDGER_START_TOKEN_FILE")
    for url, path in (
        ("sqlite:////data/ledger.db", "/data/ledger.db.token"),
        ("sqlite:///dpledger.db", "dpledger.db.token"),
        ("postgresql://user@host/name", "dpledger.token"),
    ):
        assert Settings(database_url=url).start_token_path == Path(path)
    named = Settings(database_url="sqlite:///a.db", start_token_file=Path("/run/token"))
    assert named.start_token_path == Path("/run/token")


# How clients find it.


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


# `dpledger serve`.


@dataclass
class Served:
    """A service of its own process, in a folder of its own."""

    folder: Path
    port: int
    process: "subprocess.Popen[str]"
    said: str = ""

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> str:
        """End it, and return what it logged."""
        self.process.terminate()
        return self.process.communicate(timeout=30)[1]


def environment(folder: Path) -> dict[str, str]:
    own = {k: v for k, v in os.environ.items() if not k.startswith("DPLEDGER_")}
    return own | {"XDG_STATE_HOME": str(folder / "state")}


def serve_in(folder: Path, port: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "service.cli", "serve", "--port", str(port)]
    (folder / "work").mkdir(exist_ok=True)
    return subprocess.Popen(
        command, cwd=folder / "work", env=environment(folder), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@contextmanager
def served(folder: Path) -> Iterator[Served]:
    port = free_port()
    found = Served(folder, port, serve_in(folder, port))
    try:
        assert found.process.stdout is not None
        found.said = "".join(found.process.stdout.readline() for _ in range(3))
        assert found.said.startswith(f"Open {found.address}/sign-in?token=")
        yield found
    finally:
        found.process.kill()
        found.process.communicate()


def test_two_commands_are_two_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(tmp_path) as service:
        assert httpx.get(f"{service.address}/v1/datasets").status_code == 401
        token = (tmp_path / "work" / "dpledger.db.token").read_text(encoding="ascii").strip()
        # A trainer in another folder.
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        monkeypatch.delenv("DPLEDGER_API_KEY")
        with Client(service.address) as client:
            created = dataset("data")
            del created["name"]
            client.create_dataset("data", **created)
        listed = subprocess.run(
            [sys.executable, "-m", "service.cli", "runs", "--url", service.address], check=False,
            cwd=tmp_path, env=environment(tmp_path), text=True, capture_output=True,
        )  # fmt: skip
        assert (listed.returncode, listed.stderr) == (0, "")
        httpx.get(service.said.split()[1])
        log = service.stop()
    assert token in service.said
    assert str(tmp_path / "work" / "dpledger.db.token") in service.said
    assert token not in log
    for line in log.splitlines():
        json.loads(line)
    assert not list((tmp_path / "state" / "dpledger" / "services").iterdir())


def test_a_training_goes_on_with_the_token_after_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "work" / "dpledger.db.token"
    with served(tmp_path):
        token = file.read_text(encoding="ascii")
    with served(tmp_path) as service:  # the one before was killed
        headers = {"Authorization": f"Bearer {token.strip()}"}
        assert httpx.get(f"{service.address}/v1/datasets", headers=headers).status_code == 200
    assert file.read_text(encoding="ascii") == token


def test_a_port_in_use_is_said_in_a_line_and_nothing_is_made(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        process = serve_in(tmp_path, other.getsockname()[1])
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (2, "")
    (line,) = errors.splitlines()
    assert "in use" in line
    assert "--port" in line
    assert list((tmp_path / "work").iterdir()) == []
    assert not (tmp_path / "state").exists()


def test_an_address_of_another_machine_is_refused_in_a_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "service.cli", "serve", "--host", "192.0.2.1"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(tmp_path), text=True, capture_output=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_as_admin_is_the_token(api: httpx.Client) -> None:
    assert api.headers["authorization"] == AS_ADMIN["Authorization"]
    setup(api)
    (act,) = [one for one in api.get("/v1/datasets/data/acts").json()["acts"] if one["by"]][:1]
    assert act["by"] == "start-token"
