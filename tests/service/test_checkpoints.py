"""Signed checkpoints: what they say is what the rows are, and nothing but that verifies."""

import base64
import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from sqlalchemy import Engine, select

from service.identity.keys import Role, Terms, create_key
from service.ledger.log.merkle import leaf_hash, tree_root, verify_consistency, verify_inclusion
from service.storage.engine import snapshot, transaction
from service.storage.tables import datasets
from service.transparency.checkpoints import LogHeads, Part
from service.transparency.recovery import standing
from service.transparency.signing import Signer
from service.transparency.stored_tree import Tree
from tests.conftest import AS_ADMIN
from tests.service.samples import Json, append, dataset, event, setup

Serve = Callable[..., AbstractContextManager[str]]
PART = "/v1/datasets/data/checkpoint"


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    Signer.create(tmp_path / "signing_key")
    return tmp_path / "signing_key"


@pytest.fixture
def api(serve: Serve, key_file: Path) -> Iterator[httpx.Client]:
    """A service that signs, on both databases."""
    with (
        serve(signing_key_file=key_file) as address,
        httpx.Client(base_url=address, timeout=60, headers=AS_ADMIN) as client,
    ):
        yield client


def canonical(value: Json) -> bytes:
    """As the documentation has it, without the service's code."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def raw(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def hashes(texts: list[str]) -> list[bytes]:
    return [bytes.fromhex(text) for text in texts]


def test_a_stranger_can_check_a_checkpoint_by_what_the_guide_says(api: httpx.Client) -> None:
    setup(api)
    append(api, event(0, 3), event(3, 2))
    for name in ("before", "zeta"):
        api.post("/v1/datasets", json=dataset(name))
    part = api.get(PART).json()
    signed = part["checkpoint"]
    public = raw(part["public_key"])
    message = b"dpledger checkpoint 1\n" + canonical(signed)
    Ed25519PublicKey.from_public_bytes(public).verify(raw(part["signature"]), message)
    assert part["key_id"] == hashlib.sha256(public).hexdigest()[:16]
    with pytest.raises(InvalidSignature):
        Ed25519PublicKey.from_public_bytes(public).verify(raw(part["signature"]), message[22:])
    assert (signed["logs"], signed["generation"], part["index"]) == (
        4,
        0,
        2,
    )  # in the order of names
    leaf = leaf_hash(canonical(part["head"]))
    root = bytes.fromhex(signed["root"])
    assert verify_inclusion(leaf, part["index"], signed["logs"], hashes(part["path"]), root)
    assert (part["head"]["dataset"], part["head"]["steps"]) == ("data", 5)
    whole = api.get("/v1/checkpoint").json()
    assert whole["checkpoint"] | {"issued_at": ""} == signed | {"issued_at": ""}
    assert set(whole) == {"checkpoint", "key_id", "public_key", "signature"}


def test_a_head_is_the_root_of_the_leaves_in_the_rows(api: httpx.Client, engine: Engine) -> None:
    setup(api)
    for step in range(0, 20, 2):
        append(api, event(step, 2))
    head = api.get(PART).json()["head"]
    with snapshot(engine) as connection:
        row = connection.execute(select(datasets)).one()
        leaves = Tree(connection, row.id, row.log_size).leaves(0, row.log_size)
        heads = LogHeads.of(connection)
    assert (head["size"], head["root"]) == (len(leaves), tree_root(leaves).hex())
    assert [one.dataset for one in heads.in_order] == [None, "data"]
    log = api.get("/v1/datasets/data/log").json()
    assert log == {
        "dataset": "data", "size": head["size"], "root": head["root"], "sequence": 10,
    }  # fmt: skip


def changed(value: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(value, int):
        return value + 1
    if isinstance(value, list):
        return [*value, "0" * 64] if not value else value[:-1]
    return "epsilon" if value == "data" else value[:-1] + ("0" if value[-1] != "0" else "1")


def test_nothing_in_a_checkpoint_can_be_changed(api: httpx.Client, engine: Engine) -> None:
    setup(api)
    part = api.get(PART).json()
    for name in [*part, *part["checkpoint"], *part["head"]]:
        if name in ("checkpoint", "head", "key_id", "public_key", "format"):
            continue
        forged = json.loads(json.dumps(part))
        home = next(one for one in (forged, forged["checkpoint"], forged["head"]) if name in one)
        home[name] = changed(home[name])
        answer = api.post(
            f"/v1/datasets/{forged['head']['dataset']}/checkpoint:compare", json=forged
        )
        assert answer.status_code == 422, name
        assert not Part.model_validate(forged).holds(part["public_key"])
    assert Part.model_validate(part).holds(part["public_key"])
    assert standing(engine).state == "open"  # a lie suspends nothing


def test_what_was_kept_is_continued_however_old_it_is(api: httpx.Client) -> None:
    setup(api)
    kept = [api.get(PART).json()]
    for step in range(6):
        append(api, event(step, 1))
        api.post("/v1/runs/run/releases", json={"step": step})
        kept.append(api.get(PART).json())
    for old in kept:
        answer = api.post(f"{PART}:compare", json=old)
        assert answer.status_code == 200, answer.text
        told = answer.json()
        assert (told["verdict"], told["reason"], told["head"]) == (
            "extends",
            None,
            kept[-1]["head"],
        )
        first, second = old["head"], told["head"]
        roots = hashes([first["root"], second["root"]])
        path = hashes(told["consistency"])
        assert verify_consistency(first["size"], second["size"], roots[0], roots[1], path)
        again = {name: told[name] for name in old}
        assert api.post(f"{PART}:compare", json=again).json()["verdict"] == "extends"


def test_what_another_ledger_or_another_key_signed_suspends_nothing(
    api: httpx.Client, engine: Engine, tmp_path: Path, key_file: Path
) -> None:
    setup(api)
    with snapshot(engine) as connection:
        heads = LogHeads.of(connection)
    stranger = heads.part(Signer.create(tmp_path / "stranger"), "data").model_dump()
    answer = api.post(f"{PART}:compare", json=stranger)
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/invalid-request")
    other = LogHeads(list(heads.logs.values()), ledger_id="0" * 32)
    elsewhere = other.part(Signer.load(key_file), "data").model_dump()
    answer = api.post(f"{PART}:compare", json=elsewhere)
    assert (answer.status_code, answer.json()["type"]) == (409, "/problems/conflict")
    assert standing(engine).state == "open"


def test_a_head_is_compared_under_its_own_dataset(api: httpx.Client) -> None:
    setup(api)
    api.post("/v1/datasets", json=dataset("other"))
    answer = api.post("/v1/datasets/other/checkpoint:compare", json=api.get(PART).json())
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["location"] == "body.head.dataset"


def test_a_key_that_is_limited_to_a_dataset_learns_of_no_other(
    serve: Serve, engine: Engine, key_file: Path
) -> None:
    with transaction(engine) as connection:
        admin = create_key(connection, name="admin", scope=Role.ADMIN)
        terms = Terms(datasets=frozenset({"data"}))
        limited = create_key(connection, name="limited", scope=Role.VIEWER, terms=terms)
    with (
        serve(signing_key_file=key_file) as address,
        httpx.Client(base_url=address, headers=AS_ADMIN) as api,
    ):
        api.headers["authorization"] = f"Bearer {admin}"
        setup(api)
        for name in ("secret-a", "secret-b"):
            api.post("/v1/datasets", json=dataset(name))
        api.headers["authorization"] = f"Bearer {limited}"
        part = api.get(PART)
        compared = api.post(f"{PART}:compare", json=part.json())
        assert (part.status_code, compared.status_code) == (200, 200)
        assert "secret" not in part.text + compared.text + api.get("/v1/log").text
        assert api.get("/v1/datasets/secret-a/checkpoint").status_code == 404


def test_without_a_signing_key_there_are_proofs_but_no_checkpoints(
    engine: Engine, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.app._signer", lambda _settings, _engine: None)
    with serve(new=True) as address, httpx.Client(base_url=address, headers=AS_ADMIN) as api:
        setup(api)
        for path in ("/v1/checkpoint", PART):
            answer = api.get(path)
            assert (answer.status_code, answer.json()["type"]) == (503, "/problems/unavailable")
            assert "DPLEDGER_SIGNING_KEY_FILE" in answer.json()["detail"]
        assert api.get("/v1/datasets/data/log").status_code == 200
    assert engine is not None
