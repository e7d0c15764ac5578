"""The last head that a client saw: kept, compared, and never in the way of training."""

import json
import math
import os
import shutil
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import dpledger_client as dp
import httpx
import pytest
from dpledger_client import Client, LedgerRewritten, LedgerSuspended
from dpledger_client.cli import main
from dpledger_client.recording.checkpoint_pins import LOCK, SECONDS, SUFFIX, LogHead
from dpledger_client.transport import Transport
from sqlalchemy import Engine, make_url

from service.storage import migrations
from service.storage.engine import connect
from service.transparency.signing import Signer
from tests.client.log_head_answers import answering, changes
from tests.conftest import AS_ADMIN, running
from tests.service.restored import put_back, taken

Serve = Callable[..., AbstractContextManager[str]]
NOISE = dp.gaussian(noise_multiplier=4.0)
SAMPLING = dp.poisson(sampling_probability=0.01)
QUIET: dict[str, Any] = {"flush_seconds": math.inf, "mechanism": NOISE, "sampling": SAMPLING}


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    Signer.create(tmp_path / "signing_key")
    return tmp_path / "signing_key"


@pytest.fixture
def address(serve: Serve, key_file: Path) -> Iterator[str]:
    """A service that signs, on both databases."""
    with serve(signing_key_file=key_file) as address:
        yield address


@pytest.fixture
def client(address: str) -> Iterator[Client]:
    with Client(address, retries=0, timeout_seconds=60) as client:
        yield client


def create(client: Client, **given: Any) -> None:
    client.create_dataset(
        "data", dataset_size=60000, neighboring_relation="add_or_remove_one",
        privacy_unit="example", **given,
    )  # fmt: skip


def train(client: Client, name: str, steps: int, **options: Any) -> None:
    with client.start_run(name, "data", delta=1e-5, **QUIET, **options) as run:
        for _ in range(steps):
            run.step()


def epsilon(client: Client) -> float:
    return float(client.dataset_guarantee("data", delta=1e-5)["epsilon"])


def kept(folder: Path) -> dict[str, Any]:
    (path,) = folder.glob(f"*{SUFFIX}")
    content: dict[str, Any] = json.loads(path.read_text())["kept"]
    return content


def head_of(client: Client, folder: Path) -> LogHead:
    transport: Transport = client._transport
    return LogHead(transport, "data", folder)


@pytest.mark.parametrize("mode", ["leased", "strict", "observe"])
def test_a_run_leaves_a_head_behind_that_covers_all_its_steps(
    client: Client, spool: Path, mode: Any
) -> None:
    create(client)
    train(client, "run", 30, mode=mode)
    assert kept(spool)["head"]["steps"] == 30
    train(client, "again", 5, mode=mode)
    assert kept(spool)["head"]["steps"] == 35
    (path,) = spool.glob(f"*{SUFFIX}")
    assert path.stat().st_mode & 0o777 == 0o600
    names = {one.name for one in spool.iterdir() if one.suffix != ".spool"}
    assert names == {path.name, LOCK}  # nothing half-written


def test_a_run_compares_when_it_starts_without_waiting_for_it(
    client: Client, spool: Path, eventually: Callable[[Callable[[], object]], None]
) -> None:
    create(client)
    run = client.start_run("run", "data", **QUIET)
    eventually(lambda: list(spool.glob(f"*{SUFFIX}")))
    run.finish()


def test_it_is_compared_again_only_after_a_while(
    client: Client, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(client)
    clock = [0.0]
    monkeypatch.setattr("dpledger_client.recording.checkpoint_pins.monotonic", lambda: clock[0])
    head = head_of(client, spool)
    due = [head.is_due]
    head.compare()
    for seconds in (SECONDS - 1, 1):
        clock[0] += seconds
        due.append(head.is_due)
    assert due == [True, False, True]


def test_after_a_restored_database_nothing_is_lost_or_doubled(
    client: Client, engine: Engine, spool: Path
) -> None:
    """The whole way: found out by a client, refused, sent again, whole again, both databases."""
    create(client, budget={"epsilon": 50.0, "delta": 1e-5})
    train(client, "before", 20)
    backup = taken(engine)
    train(client, "strict", 15, mode="strict")
    run = client.start_run("rewound", "data", delta=1e-5, **QUIET)
    for _ in range(10):
        run.step()
    state = run.state_dict()
    run.step()
    run.load_state_dict(state)
    run.step(steps=7)
    run.release()
    run.finish()
    expected, steps = epsilon(client), client.dataset("data")["spent"]
    runs = {one["name"]: one for one in client.runs()}
    put_back(engine, backup)
    assert epsilon(client) < expected  # what nobody would have noticed
    with pytest.warns(LedgerRewritten, match="leaves were signed"):
        head_of(client, spool).compare()
    with pytest.raises(LedgerSuspended):
        client.start_run("new", "data", **QUIET)
    with httpx.Client(base_url=client._transport.base_url, headers=AS_ADMIN) as api:
        assert api.post("/v1/log:recover", json={"reason": "restored"}).status_code == 200
        refused = api.post("/v1/log:reconcile", json={"reason": "restored"})
        assert refused.json()["missing_steps"] == {"data": 33}
        assert list(client.sync(spool)) == []  # the service had it all
        with pytest.warns(LedgerRewritten):
            results = list(client.sync(spool, again=True))
        assert {type(one).__name__ for one in results} == {"Synced"}
        assert api.post("/v1/log:reconcile", json={"reason": "restored"}).status_code == 200
    assert epsilon(client) == expected
    assert client.dataset("data")["spent"] == steps
    assert client.dataset("data")["reserved"] == 0
    for name, before in runs.items():
        now = client.run(name)
        for field in ("steps", "state", "releases", "next_step"):
            assert now[field] == before[field], (name, field)
        assert len(now["branches"]) == len(before["branches"])
    with pytest.warns(LedgerRewritten, match="abandoned"):
        head_of(client, spool).compare()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        head_of(client, spool).compare()  # from here on it follows the new history
        train(client, "after", 3)


def test_an_old_file_in_the_place_of_the_database_is_found_out(
    tmp_path: Path, spool: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file of SQLite that was really copied, under a service that was really stopped."""
    from service.settings import Settings

    file, copy = tmp_path / "ledger.db", tmp_path / "backup.db"
    url = f"sqlite:///{file}"
    assert make_url(url).database == str(file)
    engine = connect(url)
    migrations.upgrade(engine)
    engine.dispose()
    port_settings = Settings(database_url=url)
    with running(port_settings) as address, Client(address, timeout_seconds=60) as client:
        create(client)
        train(client, "one", 10)
    shutil.copy(file, copy)
    with running(port_settings) as address, Client(address, timeout_seconds=60) as client:
        train(client, "two", 5, mode="strict")
        expected = epsilon(client)
        assert kept_at(spool, address)["head"]["steps"] == 15
    for suffix in ("-wal", "-shm"):
        file.with_name(file.name + suffix).unlink(missing_ok=True)
    copy.replace(file)
    with running(port_settings) as address, Client(address, timeout_seconds=60) as client:
        move_heads(spool, address)  # it listens on another port than before
        with pytest.warns(LedgerRewritten):
            assert main(["sync", "--again", "--url", address, str(spool)]) == 1
        assert "contradicts what it signed" in capsys.readouterr().err
        assert client.run("one")["steps"] == 10
        with httpx.Client(base_url=address, timeout=60, headers=AS_ADMIN) as api:
            assert api.post("/v1/log:recover", json={"reason": "x"}).status_code == 200
            with pytest.warns(LedgerRewritten):
                assert main(["sync", "--again", "--url", address, str(spool)]) == 0
            assert api.post("/v1/log:reconcile", json={"reason": "x"}).status_code == 200
        assert epsilon(client) == expected


def kept_at(folder: Path, address: str) -> dict[str, Any]:
    """What was kept of the service at an address."""
    found = [json.loads(path.read_text()) for path in folder.glob(f"*{SUFFIX}")]
    (content,) = [one["kept"] for one in found if one["url"] == address]
    return dict(content)


def move_heads(folder: Path, address: str) -> None:
    """Let the longest head that was kept be of another address."""
    paths = list(folder.glob(f"*{SUFFIX}"))
    longest = max(paths, key=lambda path: json.loads(path.read_text())["kept"]["head"]["size"])
    with Client(address) as client:
        longest.rename(head_of(client, folder).path)


def test_another_ledger_at_the_same_address_is_told_and_its_head_not_taken(
    client: Client, engine: Engine, spool: Path
) -> None:
    create(client)
    head = head_of(client, spool)
    head.compare()
    before = head.path.read_bytes()
    from service.storage.tables import installation

    with engine.begin() as connection:
        own = connection.execute(installation.select()).one().ledger_id
        connection.execute(installation.update().values(ledger_id="0" * 32))
    try:
        with pytest.warns(LedgerRewritten, match="another ledger"):
            head.compare()
    finally:
        with engine.begin() as connection:
            connection.execute(installation.update().values(ledger_id=own))
    assert head.path.read_bytes() == before


def test_a_service_with_another_key_is_told_with_what_to_do(
    client: Client, serve: Serve, spool: Path, tmp_path: Path
) -> None:
    create(client)
    before = head_of(client, spool)
    before.compare()
    Signer.create(tmp_path / "other_key")
    with serve(signing_key_file=tmp_path / "other_key") as address, Client(address) as other:
        head = head_of(other, spool)
        before.path.rename(head.path)
        with pytest.warns(LedgerRewritten, match=r"signs with another key .* delete the file "):
            head.compare()
        head.path.unlink()
        head.compare()
        assert kept(spool)["public_key"] != client._transport.get(head._route)["public_key"]


def test_a_generation_that_is_over_does_not_come_again(client: Client, spool: Path) -> None:
    create(client)
    head = head_of(client, spool)
    head.compare()
    stored = json.loads(head.path.read_text())
    part = client._transport.post("/v1/datasets/data/checkpoint:compare", stored["kept"])
    stored["kept"]["checkpoint"]["generation"] = 1
    head.path.write_text(json.dumps(stored))
    with answering(200, part) as older:
        older._transport._http.base_url = client._transport._http.base_url
        with pytest.warns(LedgerRewritten, match="does not begin with what this machine saw"):
            head_of(older, spool).compare()
    assert kept(spool) == stored["kept"]


def test_an_answer_that_comes_late_puts_no_older_head_back(
    client: Client, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes on one machine; the answer of one is under way while the other goes on."""
    create(client)
    late, other = head_of(client, spool), head_of(client, spool)
    late.compare()
    asked: list[int] = []
    ask = late._ask

    def overtaken(shown: Any) -> dict[str, Any]:
        answer = ask(shown)
        asked.append(answer["head"]["steps"])
        if len(asked) == 1:
            train(client, "run", 3, spool=spool.parent / "other")
            other.compare()
        return answer

    monkeypatch.setattr(late, "_ask", overtaken)
    late.compare()
    assert asked == [0, 3]  # what the other process kept is shown again
    assert kept(spool)["head"]["steps"] == 3


def test_one_process_at_a_time_replaces_a_head(
    client: Client, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(client)
    late, other = head_of(client, spool), head_of(client, spool)
    threads: list[threading.Thread] = []
    synced = os.fsync

    def between(descriptor: int) -> None:
        synced(descriptor)
        monkeypatch.setattr("dpledger_client.recording.checkpoint_pins.os.fsync", synced)
        if not threads:  # the first is about to replace the file, and the other keeps more
            train(client, "run", 3, spool=spool.parent / "other")
            threads.append(threading.Thread(target=other.compare))
            threads[0].start()
            threads[0].join(timeout=0.5)  # it waits for the first

    monkeypatch.setattr("dpledger_client.recording.checkpoint_pins.os.fsync", between)
    late.compare()
    threads[0].join()
    assert kept(spool)["head"]["steps"] == 3


def test_a_client_believes_no_answer_that_it_cannot_check(
    client: Client, spool: Path, key_file: Path, tmp_path: Path
) -> None:
    create(client)
    head = head_of(client, spool)
    head.compare()
    train(client, "run", 3, spool=spool.parent / "other")
    first = kept(spool)
    part = client._transport.post("/v1/datasets/data/checkpoint:compare", first)
    for told, answer in changes(part, first, Signer.load(key_file), tmp_path):
        with answering(200, answer) as liar:
            liar._transport._http.base_url = client._transport._http.base_url
            with pytest.warns(LedgerRewritten, match=told):
                head_of(liar, spool).compare()
        assert kept(spool) == first, answer
    head.compare()
    assert kept(spool)["head"] == part["head"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"{}", b'{"format":"other"}'])
def test_a_file_that_cannot_be_read_is_begun_anew_and_told(
    client: Client, spool: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    create(client)
    head = head_of(client, spool)
    spool.mkdir(exist_ok=True)
    head.path.write_bytes(content)
    head.compare()
    assert kept(spool)["head"]["dataset"] == "data"
    assert str(head.path) in caplog.text


def test_a_contradiction_never_ends_training_and_is_told_once(
    client: Client, engine: Engine, spool: Path
) -> None:
    create(client)
    before = taken(engine)
    train(client, "one", 5)
    put_back(engine, before)
    head = head_of(client, spool)
    with pytest.warns(LedgerRewritten):
        head.compare()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        head.compare()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LedgerRewritten)
        run = client.start_run(
            "two", "data", mode="observe", mechanism=NOISE, sampling=SAMPLING, wait_seconds=0.0
        )
        run.step(steps=4)
        assert (run.next_step, run.unsent_steps) == (4, 4)  # the spool has them
        assert run.finish() is None
    with httpx.Client(base_url=client._transport.base_url, headers=AS_ADMIN) as api:
        api.post("/v1/log:recover", json={"reason": "x"})
        with pytest.warns(LedgerRewritten):
            list(client.sync(spool, again=True))
        assert api.post("/v1/log:reconcile", json={"reason": "x"}).status_code == 200
    assert {one["name"]: one["steps"] for one in client.runs()} == {"one": 5, "two": 4}


def test_a_full_disk_is_no_matter(
    client: Client, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(client)
    head = head_of(client, spool)
    head.compare()
    before = head.path.read_bytes()

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dpledger_client.recording.checkpoint_pins.os.fsync", full)
    head.compare()
    assert head.path.read_bytes() == before
    assert {path.name for path in spool.iterdir()} == {head.path.name, LOCK}
