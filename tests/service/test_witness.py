"""The witness: it knows every leaf, believes nobody else, and what it saw must still be there."""

import json
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import pytest
from sqlalchemy import Engine

from service.ledger.datasets import create_dataset
from service.ledger.log.merkle import DIGEST_SIZE
from service.schemas.base64url import to_bytes, to_text
from service.schemas.requests import NewDataset
from service.storage.engine import snapshot, transaction
from service.transparency.checkpoints import LogHeads
from service.transparency.signing import Signer
from service.transparency.witness import WitnessError, WitnessFile, next_line, read_witness
from service.transparency.witness_follower import Follower
from tests.service.samples import FULL, POISSON, append, dataset, event, setup
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


def test_a_witness_has_every_leaf_and_names_only_what_moved(
    api: httpx.Client, engine: Engine, follower: Follower, path: Path, signer: Signer
) -> None:
    setup(api)
    follower.look()
    append(api, event(0, 1), event(1, 1))
    api.post("/v1/datasets", json=dataset("another"))
    follower.look()
    append(api, event(2, 1))
    follower.look()
    follower.look()  # nothing moved, so nothing is written
    told = [[head["dataset"] for head in line["heads"]] for line in lines(path)]
    assert told == [[None, "data"], ["another", "data"], ["data"]]
    assert {line["format"] for line in lines(path)} == {"dpledger-witness/1"}
    found = read_witness(path, signer.public_key, leaves=True)
    assert {name: found.leaves(name) for name in found.heads} == leaves_of(engine)
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("change", ["leaf", "root", "size", "drop", "signature", "swap", "steps"])
def test_nothing_in_a_witness_can_be_changed(
    api: httpx.Client, follower: Follower, path: Path, signer: Signer, change: str
) -> None:
    setup(api)
    follower.look()
    append(api, event(0, 1))
    follower.look()
    follower.close()
    told = lines(path)
    head = told[1]["heads"][0]
    if change == "leaf":
        first = told[0]["heads"][1]
        first["leaves"] = ("B" if first["leaves"][0] != "B" else "C") + first["leaves"][1:]
    elif change == "root":
        head["root"] = "0" * 64
    elif change == "size":
        head["size"] += 1
    elif change == "steps":
        head["steps"] -= 1
    elif change == "drop":
        del told[0]
    elif change == "swap":
        told.reverse()
    else:
        signed = told[1]["checkpoint"]
        signed["signature"] = told[0]["checkpoint"]["signature"]
    path.write_text("".join(json.dumps(line) + "\n" for line in told))
    with pytest.raises(WitnessError):
        read_witness(path, signer.public_key, leaves=True).leaves("data")


def test_a_witness_is_believed_for_its_own_key_only(
    api: httpx.Client, follower: Follower, path: Path, tmp_path: Path
) -> None:
    setup(api)
    follower.look()
    other = Signer.create(tmp_path / "other")
    with pytest.raises(WitnessError, match="not signed"):
        read_witness(path, other.public_key)
    assert read_witness(path).heads["data"].size > 0  # whoever asks nothing is told what it says


@pytest.mark.parametrize(
    "text", ["x\n", "{}\n", "[]\n", "null\n", '{"format":"other"}\n', "[" * 99999]
)
def test_what_is_no_witness_is_refused_by_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "witness"
    path.write_text(text + "\n")
    with pytest.raises(WitnessError, match=r"witness, line 1: it is no line of a witness"):
        read_witness(path)


def test_a_torn_last_line_is_dropped_and_written_again(
    api: httpx.Client, engine: Engine, follower: Follower, path: Path, signer: Signer
) -> None:
    setup(api)
    follower.look()
    whole = path.read_bytes()
    append(api, event(0, 1))
    follower.look()
    follower.close()
    torn = path.read_bytes()[:-20]
    path.write_bytes(torn)
    assert read_witness(path, signer.public_key).length == len(whole)
    follower.look()
    found = read_witness(path, signer.public_key, leaves=True)
    assert found.leaves("data") == leaves_of(engine)["data"]
    assert len(lines(path)) == 2


def test_a_line_that_does_not_fit_on_the_disk_leaves_nothing_behind(
    api: httpx.Client, follower: Follower, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup(api)
    follower.look()
    before = path.read_bytes()
    append(api, event(0, 1))
    written = os.write

    def full(descriptor: int, data: bytes) -> int:
        if len(data) > 100:
            return written(descriptor, data[:100])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("service.transparency.witness.os.write", full)
        patch.setattr("service.transparency.witness.os.fsync", lambda _descriptor: full(-1, b""))
        with pytest.raises(OSError, match="No space"):
            follower.look()
    assert path.read_bytes() == before
    follower.look()
    assert len(lines(path)) == 2


def test_of_several_processes_one_writes_and_another_takes_over(
    api: httpx.Client, engine: Engine, follower: Follower, path: Path, signer: Signer
) -> None:
    setup(api)
    other = Follower(engine, signer, path, seconds=60)
    follower.look()
    append(api, event(0, 1))
    assert other.look().state == "open"
    assert (follower.writing, other.writing, len(lines(path))) == (True, False, 1)
    follower.close()
    other.look()
    assert (other.writing, len(lines(path))) == (True, 2)
    other.close()


@pytest.mark.parametrize("again", ["the line", "its log from the beginning"])
def test_within_an_epoch_no_leaf_is_told_twice(
    api: httpx.Client, follower: Follower, path: Path, signer: Signer, again: str
) -> None:
    setup(api)
    follower.look()
    append(api, event(0, 1))
    follower.look()
    follower.close()
    told = lines(path)
    if again == "the line":
        told.append(told[1])
    else:
        (_, before), (moved,) = told[0]["heads"], told[1]["heads"]
        leaves = to_bytes(before["leaves"]) + to_bytes(moved["leaves"])
        moved |= {"first": 0, "leaves": to_text(leaves)}
    path.write_text("".join(json.dumps(line) + "\n" for line in told))
    with pytest.raises(WitnessError, match="the leaves of data do not follow"):
        read_witness(path, signer.public_key)


def test_a_line_that_nobody_would_believe_is_not_written(
    api: httpx.Client, engine: Engine, follower: Follower, path: Path, signer: Signer
) -> None:
    setup(api)
    follower.look()
    follower.close()
    before = path.read_bytes()
    append(api, event(0, 1))
    api.post("/v1/datasets", json=dataset("another"))
    file = WitnessFile.open(path, signer.public_key)
    assert file is not None
    with snapshot(engine) as connection:
        line = next_line(connection, LogHeads.of(connection), signer, file.seen)
    assert line is not None
    with pytest.raises(WitnessError, match="heads are not those"):
        file.append(line.model_copy(update={"heads": line.heads[:1]}))
    assert path.read_bytes() == before
    file.append(line)
    file.close()
    assert read_witness(path, signer.public_key).heads["data"].steps == 1


@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
def test_datasets_that_are_created_at_once_are_in_one_order_for_everybody(
    api: httpx.Client, engine: Engine, follower: Follower, path: Path, signer: Signer
) -> None:
    """The later number is committed first: only PostgreSQL lets two be created at once."""
    setup(api)
    created, go_on = threading.Event(), threading.Event()

    def slow() -> None:
        with transaction(engine) as connection:
            create_dataset(connection, NewDataset.model_validate(dataset("slow")), by="me")
            created.set()
            go_on.wait()

    thread = threading.Thread(target=slow)
    thread.start()
    created.wait()
    try:
        with transaction(engine) as connection:
            create_dataset(connection, NewDataset.model_validate(dataset("quick")), by="me")
        follower.look()
    finally:
        go_on.set()
        thread.join()
    follower.look()
    follower.close()
    follower.begin()  # what it wrote is believed
    found = read_witness(path, signer.public_key, leaves=True)
    assert {name: found.leaves(name) for name in found.heads} == leaves_of(engine)


def test_who_follows_keeps_no_leaf(
    api: httpx.Client, engine: Engine, signer: Signer, path: Path
) -> None:
    setup(api)
    append(api, event(0, 1))
    path.parent.mkdir()
    sizes = []
    for first in (1, 101):
        steps = range(first, first + 100)
        append(api, *(event(one, 1, sampling=(POISSON, FULL)[one % 2]) for one in steps))
        file = WitnessFile.open(path, signer.public_key)
        assert file is not None
        with snapshot(engine) as connection:
            line = next_line(connection, LogHeads.of(connection), signer, file.seen)
        assert line is not None
        file.append(line)
        sizes.append(len(pickle.dumps(file.seen)))
        file.close()
    assert sizes[1] - sizes[0] < DIGEST_SIZE
