"""The start token: an admin's key until the first key is created, in a file of its owner's."""

import json
import os
import re
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from dpledger_client import Client
from sqlalchemy import Engine

from benchmarks.servers import START_TOKEN, free_port
from service.errors import StartupError
from service.identity.keys import Role
from service.identity.start_token import StartToken
from service.settings import Settings
from tests.conftest import AS_ADMIN
from tests.service.browsing import browser, csrf_of, sign_in
from tests.service.dumps import dump
from tests.service.samples import append, dataset, event, setup
from tests.service.sse import until
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
        secret = key(engine, Role.ADMIN)
        until(lambda: client.get("/").status_code != 200)
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
    monkeypatch.setattr("service.identity.secret_files.os.geteuid", lambda: os.getuid() + 1)
    with pytest.raises(StartupError, match="belongs to another user"):
        StartToken.load_or_create(path)


@pytest.mark.parametrize("text", ["", "short", "a" * 500, "a" * 31, "a b" * 20, "\u20ac" * 20])
def test_a_file_without_a_token_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "token"
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8")
    with pytest.raises(StartupError, match="DPLEDGER_START_TOKEN_FILE"):
        StartToken.load_or_create(path)


def test_a_link_a_folder_and_a_pipe_are_no_token_files(tmp_path: Path) -> None:
    StartToken.load_or_create(tmp_path / "token")
    (tmp_path / "link").symlink_to(tmp_path / "token")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name in ("link", "folder", "pipe", "absent/token"):
        with pytest.raises(StartupError, match="DPLEDGER_START_TOKEN_FILE"):
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
        return self.process.communicate(timeout=120)[1]


def environment(folder: Path) -> dict[str, str]:
    own = {k: v for k, v in os.environ.items() if not k.startswith("DPLEDGER_")}
    return own | {"XDG_STATE_HOME": str(folder / "state")}


def serve_in(folder: Path, port: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "service.cli.main", "serve", "--port", str(port)]
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
        found.said = "".join(found.process.stdout.readline() for _ in range(6))
        begun = f"\ndpledger is ready.\nOpen {found.address}/sign-in?token="
        assert found.said.startswith(begun)
        assert found.said.endswith("\n\n")
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
            [sys.executable, "-m", "service.cli.main", "runs", "--url", service.address],
            check=False, cwd=tmp_path, env=environment(tmp_path), text=True, capture_output=True,
        )  # fmt: skip
        assert (listed.returncode, listed.stderr) == (0, "")
        httpx.get(service.said.split("Open ")[1].split()[0])
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
        output, errors = process.communicate(timeout=120)
    assert (process.returncode, output) == (2, "")
    (line,) = errors.splitlines()
    assert "in use" in line
    assert "--port" in line
    assert list((tmp_path / "work").iterdir()) == []
    assert not (tmp_path / "state").exists()


def test_an_address_of_another_machine_is_refused_in_a_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "service.cli.main", "serve", "--host", "192.0.2.1"]
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
