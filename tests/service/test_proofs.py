"""Proofs over HTTP: each leaf is in the log, each log is the beginning of the next."""

import httpx
import pytest
from sqlalchemy import Connection, Engine, event, insert, select, update

from service.errors import UnavailableError
from service.ledger.log.leaves import TILE, act_row
from service.ledger.log.leaves import Act as Fact
from service.ledger.log.merkle import (
    Frontier,
    consistency_path,
    inclusion_path,
    leaf_hash,
    tree_root,
    verify_consistency,
    verify_inclusion,
)
from service.schemas.event_codec import canonical
from service.storage import bulk
from service.storage.engine import snapshot, transaction
from service.storage.tables import (
    acts,
    branches,
    datasets,
    distinct_events,
    entries,
    log_tiles,
    runs,
)
from service.transparency.stored_tree import Tree
from tests.conftest import without_triggers
from tests.service.samples import RANK, SAMPLING, append, dataset, setup
from tests.service.samples import event as steps

LOG = "/v1/datasets/data/log"
LARGE = {"sqlite": 66_000, "postgresql": 3_000}  # leaves: more than 256 * 256, and a few tiles


def hashes(texts: list[str]) -> list[bytes]:
    return [bytes.fromhex(text) for text in texts]


def mixed(api: httpx.Client) -> None:
    """Entries with acts before, between and after them, several behind one entry."""
    setup(api)
    append(api, steps(0, 1))
    append(api, steps(1, 1), steps(2, 1, mechanism={"kind": "gaussian", "noise_multiplier": 2.0}))
    api.post("/v1/runs/run/releases", json={"step": 0})
    api.post("/v1/runs/run/findings", json=SAMPLING)
    append(api, steps(3, 4))
    api.post("/v1/runs/run/findings", json=RANK)
    append(api, steps(7, 1), steps(8, 2))
    api.post("/v1/runs/run:finish", json={"state": "finished"})


def test_each_leaf_is_proved_at_each_size_and_its_data_is_what_was_hashed(
    api: httpx.Client, engine: Engine
) -> None:
    mixed(api)
    size = api.get(LOG).json()["size"]
    kinds, sequences = [], []
    for position in range(size):
        for until in (position + 1, size):
            found = api.get(f"{LOG}/inclusion", params={"position": position, "size": until}).json()
            leaf, root = bytes.fromhex(found["leaf"]), bytes.fromhex(found["root"])
            assert leaf == leaf_hash(canonical(found["data"]).encode())
            assert verify_inclusion(leaf, position, until, hashes(found["path"]), root)
        kinds.append(found["data"]["kind"])
        if kinds[-1] == "entry":
            sequence = found["data"]["sequence"]
            sequences.append(sequence)
            assert api.get(f"{LOG}/inclusion", params={"sequence": sequence}).json() == found
        else:
            assert found["data"]["position"] == position
    assert sequences == [1, 2, 3, 4, 5, 6][: len(sequences)]
    assert len(sequences) == api.get(LOG).json()["sequence"]
    assert kinds[-1] == "run_state"
    assert {"entry", "dataset", "run", "branch", "release", "finding"} < set(kinds)
    assert engine is not None


def test_each_size_of_a_log_begins_with_each_smaller_one(api: httpx.Client) -> None:
    mixed(api)
    size = api.get(LOG).json()["size"]
    roots: dict[int, bytes] = {}
    for second in range(size + 1):
        for first in range(second + 1):
            found = api.get(f"{LOG}/consistency", params={"first": first, "second": second}).json()
            old, new = hashes([found["first_root"], found["second_root"]])
            assert verify_consistency(first, second, old, new, hashes(found["path"]))
            assert roots.setdefault(second, new) == new
            assert roots[first] == old
    latest = api.get(f"{LOG}/consistency", params={"first": 3}).json()
    assert (latest["second"], latest["second_root"]) == (size, api.get(LOG).json()["root"])


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("inclusion", 422), ("inclusion?position=0&sequence=1", 422),
        ("inclusion?position=99", 404), ("inclusion?position=-1", 422),
        ("inclusion?sequence=2", 404), ("inclusion?sequence=0", 422),
        ("inclusion?position=0&size=99", 422), ("inclusion?position=2&size=2", 404),
        ("inclusion?position=0&size=0", 404), ("inclusion?position=0&other=1", 422),
        ("consistency", 422), ("consistency?first=99", 422), ("consistency?first=2&second=1", 422),
        ("consistency?first=0&second=99", 422), ("consistency?first=x", 422),
        ("consistency?first=1e3", 422), ("inclusion?position=99999999999999999999", 422),
    ],
)  # fmt: skip
def test_what_is_not_in_the_log_has_no_proof(api: httpx.Client, path: str, status: int) -> None:
    setup(api)
    append(api, steps(0, 1))
    answer = api.get(f"{LOG}/{path}")
    assert answer.status_code == status, answer.text
    assert api.get(f"/v1/datasets/none/log/{path}").status_code in (404, 422)


def test_an_empty_dataset_has_a_log_with_its_creation(api: httpx.Client) -> None:
    api.post("/v1/datasets", json=dataset())
    found = api.get(f"{LOG}/inclusion", params={"position": 0}).json()
    assert (found["data"]["kind"], found["data"]["content"]["name"]) == ("dataset", "data")


def grow(connection: Connection, leaves: int) -> list[bytes]:
    """A log of many leaves, an act behind each thousandth entry, without accounting any."""
    row = connection.execute(select(datasets)).one()
    (run,) = connection.execute(select(runs.c.id)).scalars()
    (branch,) = connection.execute(select(branches.c.id)).scalars()
    (happened,) = connection.execute(select(distinct_events.c.id)).scalars()
    moment = connection.execute(select(entries.c.recorded_at)).scalar_one()
    new_entries, new_acts = [], []
    sequence, position = row.head_sequence, row.log_size
    while position < leaves:
        sequence, position = sequence + 1, position + 1
        new_entries.append(
            {
                "dataset_id": row.id, "sequence": sequence, "run_id": run, "branch_id": branch,
                "first_step": sequence - 1, "steps": 1, "event_id": happened, "mode": "record",
                "verdict": "within", "recorded_at": moment,
                "leaf": leaf_hash(sequence.to_bytes(8)), "position": position - 1,
            }
        )  # fmt: skip
        if sequence % 1000 == 0:
            values = act_row(
                Fact("settings", {"sequence": sequence}),
                dataset=(row.id, row.name),
                position=position,
                after_sequence=sequence,
                acted_at=moment,
            )
            names = [column.name for column in acts.columns if column.name != "id"]
            new_acts.append(dict(zip(names, values, strict=True)))
            position += 1
    fresh = {one.pop("position"): one["leaf"] for one in new_entries}
    fresh |= {one["position"]: one["leaf"] for one in new_acts}
    connection.execute(insert(entries), new_entries)
    connection.execute(insert(acts), new_acts)
    known = Frontier.from_bytes(row.log_size, row.log_frontier)
    before = Tree(connection, row.id, row.log_size).leaves(0, row.log_size)
    longer, tiles = known.extended([fresh[at] for at in sorted(fresh)])
    bulk.insert(connection, log_tiles, TILE, [(row.id, *tile) for tile in tiles])
    sizes = {"log_size": longer.size, "log_frontier": longer.to_bytes(), "head_sequence": sequence}
    connection.execute(update(datasets).values(sizes))
    return [*before, *(fresh[at] for at in sorted(fresh))]


@pytest.fixture
def large(api: httpx.Client, engine: Engine) -> list[bytes]:
    setup(api)
    append(api, steps(0, 1))
    with transaction(engine) as connection:
        return grow(connection, LARGE[engine.dialect.name])


def test_a_large_log_has_the_proofs_of_its_leaves_and_reads_few_rows(
    api: httpx.Client, engine: Engine, large: list[bytes]
) -> None:
    size, statements = len(large), 0

    def count(*_given: object) -> None:
        nonlocal statements
        statements += 1

    def subtree(begin: int, end: int) -> bytes:
        return tree_root(large[begin:end])

    root = tree_root(large)
    assert api.get(LOG).json()["root"] == root.hex()
    event.listen(engine, "before_cursor_execute", count)
    with snapshot(engine) as connection:
        row = connection.execute(select(datasets)).one()
        for position in (0, 1, 255, 256, 1004, 1005, 1006, size // 2, size - 465, size - 1):
            tree = Tree(connection, row.id, row.log_size)
            statements = 0
            path = inclusion_path(position, size, tree.subtree)
            assert statements <= 20
            assert path == inclusion_path(position, size, subtree)
            assert tree.leaves(position, position + 1) == [large[position]]
        for first in (1, 256, 1 << 11, size - 464, size - 463, size - 1):
            tree = Tree(connection, row.id, row.log_size)
            statements = 0
            path = consistency_path(first, size, tree.subtree)
            assert statements <= 20
            assert path == consistency_path(first, size, subtree)
            assert tree.subtree(0, first) == tree_root(large[:first])
        for sequence in (1, 2, 999, 1000, 1001, 2000, 2001, row.head_sequence):
            position = tree.position_of(sequence)
            expected = leaf_hash(sequence.to_bytes(8))
            assert sequence == 1 or large[position] == expected
        assert tree.leaves(990, 1030) == large[990:1030]
    event.remove(engine, "before_cursor_execute", count)


def test_a_log_whose_rows_are_gone_is_told_as_damaged(api: httpx.Client, engine: Engine) -> None:
    mixed(api)
    with transaction(engine) as connection, without_triggers(connection):
        connection.execute(entries.delete().where(entries.c.sequence == 3))
    answer = api.get(f"{LOG}/consistency", params={"first": 1})
    assert (answer.status_code, answer.json()["type"]) == (503, "/problems/unavailable")
    assert "dpledger verify" in answer.json()["detail"]
    with snapshot(engine) as connection:
        row = connection.execute(select(datasets)).one()
        tree = Tree(connection, row.id, row.log_size)
        with pytest.raises(UnavailableError):
            tree.leaves(0, row.log_size)


def test_a_changed_entry_is_not_what_its_leaf_is_the_hash_of(
    api: httpx.Client, engine: Engine
) -> None:
    mixed(api)
    with transaction(engine) as connection, without_triggers(connection):
        connection.execute(update(entries).where(entries.c.sequence == 4).values(steps=1))
    found = api.get(f"{LOG}/inclusion", params={"sequence": 4}).json()
    assert found["leaf"] != leaf_hash(canonical(found["data"]).encode()).hex()
