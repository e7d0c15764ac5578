"""A service and its witness: what was seen must be there, when it starts and while it runs."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, select
from typer.testing import CliRunner

from service.app import create_app
from service.cli.main import app
from service.errors import StartupError
from service.settings import Settings
from service.storage.engine import snapshot, transaction
from service.storage.tables import installation
from service.transparency.recovery import Reconciled, reconcile, recover, standing
from service.transparency.signing import Signer
from service.transparency.witness import WitnessFile, read_witness
from service.transparency.witness_follower import Follower
from tests.conftest import AS_ADMIN
from tests.service.restored import put_back, taken
from tests.service.samples import append, dataset, event, setup
from tests.service.witnesses import leaves_of, lines

Serve = Callable[..., AbstractContextManager[str]]
BEFORE_NEXT_LOOK = 0.1


@pytest.fixture
def signer(tmp_path: Path) -> Signer:
    return Signer.create(tmp_path / "signing_key")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "elsewhere" / "witness"


@pytest.fixture
def follower(engine: Engine, signer: Signer, path: Path) -> Iterator[Follower]:
    path.parent.mkdir()
    one = Follower(engine, signer, path, seconds=60)
    yield one
    one.close()


def lose(api: httpx.Client, engine: Engine, follower: Follower) -> None:
    """Five steps, which the witness saw; the database is put back to two."""
    setup(api)
    append(api, event(0, 2))
    before = taken(engine)
    append(api, event(2, 3))
    follower.look()
    follower.close()
    put_back(engine, before)


def test_what_it_saw_must_be_there_when_the_service_starts(
    api: httpx.Client, engine: Engine, follower: Follower, path: Path, tmp_path: Path, serve: Serve
) -> None:
    lose(api, engine, follower)
    before = path.read_bytes()
    given = {"signing_key_file": tmp_path / "signing_key", "witness_file": path}
    with (
        serve(**given) as address,
        httpx.Client(base_url=address, timeout=60, headers=AS_ADMIN) as again,
    ):
        refused = append(again, event(2, 3))
        assert (refused.status_code, refused.json()["state"]) == (503, "suspended")
        assert again.get("/v1/log").json()["lost"][0]["missing_steps"] == 3
        assert again.get("/v1/acts").json()["acts"][-1]["by"] == "witness"
        again.post("/v1/log:recover", json={"reason": "x"})
        append(again, event(2, 3))
    assert path.read_bytes() == before  # it waits until the ledger is what it will be
    with (
        serve(**given) as address,
        httpx.Client(base_url=address, timeout=60, headers=AS_ADMIN) as again,
    ):
        assert again.post("/v1/log:reconcile", json={"reason": "x"}).status_code == 200
    key = Signer.load(tmp_path / "signing_key").public_key
    found = read_witness(path, key, leaves=True)
    assert found.generation == 1
    assert {name: found.leaves(name) for name in found.heads} == leaves_of(engine)


def test_a_dataset_that_was_lost_for_good_is_not_expected_any_more(
    api: httpx.Client, engine: Engine, follower: Follower, path: Path, signer: Signer
) -> None:
    setup(api)
    before = taken(engine)
    for name in ("lost", "made-again"):
        api.post("/v1/datasets", json=dataset(name))
    follower.look()
    put_back(engine, before)
    assert follower.look().state == "suspended"
    with transaction(engine) as connection:
        recover(connection, reason="x", by=None)
    # The service of the tests has not been told: it asks twice a second.
    for name in ("later", "made-again"):
        threading.Event().wait(0.6)
        assert api.post("/v1/datasets", json=dataset(name)).status_code == 201
    with transaction(engine) as connection:
        given = Reconciled(reason="nothing was spent on it")
        reconcile(connection, given, by=None, signer=signer)
    assert follower.look().state == "open"
    found = read_witness(path, signer.public_key, leaves=True)
    assert set(found.heads) == {None, "data", "later", "made-again"}
    assert {name: found.leaves(name) for name in found.heads} == leaves_of(engine)
    firsts = {head["dataset"]: head["first"] for head in lines(path)[-1]["heads"]}
    assert firsts["data"] == found.heads["data"].size  # what was not lost is not told again


def test_a_database_that_is_put_back_while_the_service_runs_is_found_out(
    api: httpx.Client, engine: Engine, follower: Follower
) -> None:
    setup(api)
    append(api, event(0, 2))
    before = taken(engine)
    append(api, event(2, 3))
    follower.look()
    put_back(engine, before)
    append(api, event(2, 9))  # longer than what was lost, and another history
    assert follower.look().state == "suspended"


def test_a_service_brings_its_witness_up_to_date_when_it_stops(
    engine: Engine, path: Path, signer: Signer, tmp_path: Path, serve: Serve
) -> None:
    path.parent.mkdir()
    key_file = tmp_path / "signing_key"
    with (
        serve(signing_key_file=key_file, witness_file=path, witness_seconds=3600) as address,
        httpx.Client(base_url=address, timeout=60, headers=AS_ADMIN) as api,
    ):
        assert list(read_witness(path).heads) == [None]
        setup(api)
        append(api, event(0, 1))
    assert (
        read_witness(path, signer.public_key, leaves=True).leaves("data")
        == leaves_of(engine)["data"]
    )


def test_a_service_follows_while_it_runs(
    path: Path, signer: Signer, tmp_path: Path, serve: Serve
) -> None:
    path.parent.mkdir()
    given = {"signing_key_file": tmp_path / "signing_key", "witness_seconds": BEFORE_NEXT_LOOK}
    with (
        serve(witness_file=path, **given) as address,
        httpx.Client(base_url=address, timeout=60, headers=AS_ADMIN) as api,
    ):
        setup(api)
        for _ in range(600):
            if "data" in read_witness(path, signer.public_key).heads:
                break
            threading.Event().wait(BEFORE_NEXT_LOOK)
        assert "data" in read_witness(path, signer.public_key).heads


def test_a_witness_that_cannot_be_written_stops_no_service_and_is_told(
    api: httpx.Client, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup(api)

    def full(_file: WitnessFile, _line: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(WitnessFile, "append", full)
        follower._try()
        assert "No space" in str(follower.trouble)
    follower._try()
    assert follower.trouble is None


@pytest.mark.parametrize("content", ["not a witness\n", None])
def test_a_witness_that_cannot_be_believed_stops_the_start(
    engine: Engine, database_url: str, signer: Signer, path: Path, tmp_path: Path,
    content: str | None,
) -> None:  # fmt: skip
    if content is not None:
        path.parent.mkdir()
        path.write_text(content)
    settings = Settings(
        database_url=database_url, signing_key_file=tmp_path / "signing_key", witness_file=path
    )
    with pytest.raises(StartupError, match="DPLEDGER_WITNESS_FILE"):
        create_app(settings)
    assert standing(engine).state == "open"
    assert signer is not None


def test_a_witness_of_another_ledger_stops_the_start(
    api: httpx.Client, engine: Engine, follower: Follower, path: Path
) -> None:
    setup(api)
    follower.look()
    follower.close()
    with snapshot(engine) as connection:
        own = connection.execute(select(installation.c.ledger_id)).scalar_one()
    with transaction(engine) as connection:
        connection.execute(installation.update().values(ledger_id="0" * 32))
    try:
        with pytest.raises(StartupError, match="another ledger"):
            follower.begin()
    finally:
        with transaction(engine) as connection:
            connection.execute(installation.update().values(ledger_id=own))
    with suppress(OSError):
        path.unlink()


def test_the_command_appends_once_and_says_what_is_wrong(
    api: httpx.Client, engine: Engine, database_url: str, path: Path, signer: Signer,
    follower: Follower, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("DPLEDGER_SIGNING_KEY_FILE", str(tmp_path / "signing_key"))
    setup(api)
    append(api, event(0, 2))
    before = taken(engine)
    append(api, event(2, 3))

    def run(*words: str) -> Any:
        return CliRunner().invoke(app, [*words, "--database", database_url])

    assert run("witness", str(path)).exit_code == 0
    assert (
        read_witness(path, signer.public_key, leaves=True).leaves("data")
        == leaves_of(engine)["data"]
    )
    printed = json.loads(run("checkpoint").stdout)
    assert [head["dataset"] for head in printed["heads"]] == [None, "data"]
    assert run("checkpoint", "--out", str(tmp_path / "kept")).exit_code == 0
    kept = json.loads((tmp_path / "kept").read_text())
    assert kept["heads"] == printed["heads"]
    assert run("signing-key", "show").stdout == f"{signer.public_key}\t{signer.key_id}\n"
    put_back(engine, before)
    found = run("witness", str(path))
    assert (found.exit_code, "were signed" in found.stderr) == (1, True)
    assert run("reconcile", "--reason", "x").exit_code == 1
    told = run("recover", "--reason", "the disk was replaced")
    assert "dataset data: 5 steps were signed, 2 are recorded, 3 are missing" in told.stdout
    assert run("reconcile", "--reason", "x", "--not-taken", "data=x").exit_code == 2
    assert run("reconcile", "--reason", "x", "--not-taken", "data=3").exit_code == 0
    assert standing(engine).state == "open"
    follower.look()
    assert run("witness", str(path)).exit_code == 1  # another process writes to it
    made = CliRunner().invoke(app, ["signing-key", "create", str(tmp_path / "new")])
    assert made.stdout.split()[0] == Signer.load(tmp_path / "new").public_key
    assert CliRunner().invoke(app, ["signing-key", "create", str(tmp_path / "new")]).exit_code == 2
