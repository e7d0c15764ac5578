"""The tree over heads: what it says is what the rows are, whoever writes them."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as some
from sqlalchemy import Engine

from service.errors import NotFoundError
from service.ledger.log.merkle import inclusion_path, leaf_hash, tree_root
from service.storage.engine import snapshot, transaction
from service.storage.tables import datasets
from service.transparency import head_tree
from service.transparency.checkpoints import LogHeads
from service.transparency.head_tree import HeadTree, Levels
from service.transparency.signing import Signer
from tests.conftest import AS_ADMIN
from tests.service.samples import append, dataset, event, run, setup

Serve = Callable[..., AbstractContextManager[str]]


def path_in(leaves: list[bytes], at: int) -> list[bytes]:
    return inclusion_path(at, len(leaves), lambda begin, end: tree_root(leaves[begin:end]))


@given(some.integers(1, 70), some.data())
def test_levels_are_the_tree_of_the_rfc(size: int, data: some.DataObject) -> None:
    leaves = [leaf_hash(bytes([at])) for at in range(size)]
    levels = Levels(leaves)
    for _ in range(3):
        at = data.draw(some.integers(0, size - 1))
        leaf = leaf_hash(b"new" + data.draw(some.binary(max_size=3)))
        other = [*leaves[:at], leaf, *leaves[at + 1 :]]
        assert levels.root_with(at, leaf) == tree_root(other)
        assert levels.root_with(at, leaves[at]) == tree_root(leaves)
        levels.replace(at, leaf)
        leaves = other
        assert list(levels.leaves) == leaves
        assert levels.path(at) == path_in(leaves, at)


@pytest.fixture
def signer(tmp_path: Path) -> Signer:
    return Signer.create(tmp_path / "signing_key")


def same(engine: Engine, tree: HeadTree, signer: Signer, name: str | None) -> None:
    """The tree's checkpoint with a head is that of all rows, but for the moment."""
    with snapshot(engine) as connection:
        whole, found = LogHeads.of(connection), tree.head(connection, name)
        expected = whole.part(signer, name)
        part = found.part(signer, name)
    assert part.holds(signer.public_key)
    assert part.model_dump(exclude={"checkpoint", "signature"}) == expected.model_dump(
        exclude={"checkpoint", "signature"}
    )
    assert part.checkpoint.model_copy(update={"issued_at": ""}) == expected.checkpoint.model_copy(
        update={"issued_at": ""}
    )


def test_the_tree_follows_whatever_other_processes_write(
    api: httpx.Client, engine: Engine, signer: Signer
) -> None:
    setup(api)
    trees = [HeadTree(age_seconds=0.0), HeadTree(age_seconds=0.0)]  # two processes
    names = ["data", "zeta", "before", "middle"]
    for number, name in enumerate(names[1:]):
        api.post("/v1/datasets", json=dataset(name))
        same(engine, trees[number % 2], signer, name)
    for step in range(0, 6, 2):
        assert append(api, event(step, 2)).status_code == 201
        for tree in trees:
            for known in (None, *names):
                same(engine, tree, signer, known)
    api.patch("/v1/datasets/zeta", json={"reason": "x"}, headers={"if-match": '"1"'})
    for tree in [*trees, HeadTree()]:  # and one that was just started
        same(engine, tree, signer, "before")


def test_a_head_is_as_fresh_as_its_rows_and_the_others_within_a_second(
    api: httpx.Client, engine: Engine, signer: Signer
) -> None:
    setup(api)
    api.post("/v1/datasets", json=dataset("other"))
    api.post("/v1/runs", json=run("elsewhere", dataset="other"))
    tree = HeadTree(age_seconds=3600.0)
    same(engine, tree, signer, "data")
    append(api, event(0, 1))
    same(engine, tree, signer, "data")  # though nothing was read of it since
    append(api, event(0, 1), run="elsewhere")
    with snapshot(engine) as connection:
        old = tree.head(connection, "data").part(signer, "data")
        assert old.holds(signer.public_key)
        assert (
            old.checkpoint.root != LogHeads.of(connection).root
        )  # the other head is the one before
        tree.head(connection, "other")  # which is now known of it
    for known in ("other", "data", None):
        same(engine, tree, signer, known)
    api.post("/v1/datasets", json=dataset("new"))
    same(engine, tree, signer, "new")  # a name that it does not know makes it look


def test_another_database_is_not_taken_for_the_one_before(
    api: httpx.Client, engine: Engine, signer: Signer
) -> None:
    setup(api)
    tree = HeadTree(age_seconds=0.0)
    same(engine, tree, signer, "data")
    with transaction(engine) as connection:  # as after a backup was put in the place of the file
        connection.execute(datasets.update().values(name="renamed", version=1))
    same(engine, tree, signer, "renamed")
    with snapshot(engine) as connection, pytest.raises(NotFoundError):
        tree.head(connection, "data")


def test_a_checkpoint_reads_few_rows_however_many_datasets_there_are(
    serve: Serve, engine: Engine, signer: Signer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_tree, "AGE_SECONDS", 3600.0)
    with (
        serve(signing_key_file=tmp_path / "signing_key") as address,
        httpx.Client(base_url=address, timeout=60, headers=AS_ADMIN) as api,
    ):
        for number in range(40):
            api.post("/v1/datasets", json=dataset(f"data-{number}"))
        hashed: list[str] = []
        monkeypatch.setattr(
            head_tree,
            "node_hash",
            lambda *_: hashed.append("") or b"\0" * 32,  # type: ignore[func-returns-value]
        )
        api.get("/v1/datasets/data-0/checkpoint").raise_for_status()
        first = len(hashed)
        for _ in range(5):
            hashed.clear()
            api.get("/v1/datasets/data-0/checkpoint").raise_for_status()
            assert len(hashed) <= 6  # the height of the tree, with 41 leaves
        assert first >= 40
