"""A person's sessions, tokens and keys are one pair of eyes."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import pytest
from sqlalchemy import Engine

from service.errors import InvalidRequestError
from service.identity.keys import Role, create_key
from service.storage.engine import transaction
from tests.service.samples import BUDGET, dataset
from tests.service.single_sign_on.providers import IdentityProvider

Serve = Callable[..., AbstractContextManager[str]]


def test_a_key_of_a_person_approves_nothing_that_their_token_asked_for(
    provider: IdentityProvider, serve: Serve, tmp_path: Path, engine: Engine
) -> None:
    person = f"{provider.issuer}#dana"
    with transaction(engine) as connection:
        own = create_key(connection, name="laptop", scope=Role.ADMIN, person=person)
        other = create_key(connection, name="bob", scope=Role.ADMIN)
    token = provider.token(sub="dana", groups=["officers"])
    with (
        serve(identity_file=provider.file(tmp_path), approvals=("limits",)) as address,
        httpx.Client(base_url=address, timeout=30) as api,
    ):

        def sent(secret: str, method: str, path: str, body: object) -> httpx.Response:
            headers = {"authorization": f"Bearer {secret}", "if-match": '"1"'}
            return api.request(method, path, json=body, headers=headers)

        assert sent(token, "POST", "/v1/datasets", dataset(budget=BUDGET)).status_code == 201
        more = {"budget": {"epsilon": 50.0, "delta": BUDGET["delta"]}, "reason": "More."}
        asked = sent(token, "PATCH", "/v1/datasets/data", more)
        assert asked.status_code == 202
        assert asked.json()["person"] == person
        where = f"/v1/requests/{asked.json()['id']}:approve"
        assert sent(own, "POST", where, {"reason": "Fine."}).status_code == 409
        assert sent(other, "POST", where, {"reason": "Fine."}).status_code in (200, 201)


@pytest.mark.parametrize("person", ["Dana", "a#\n", "ä#b", "a#" + "b" * 510])
def test_a_person_has_a_name(engine: Engine, person: str) -> None:
    with (
        transaction(engine) as connection,
        pytest.raises(InvalidRequestError, match="person"),
    ):
        create_key(connection, name="laptop", scope=Role.ADMIN, person=person)


def test_with_four_eyes_no_one_makes_a_key_of_another_person(serve: Serve, engine: Engine) -> None:
    with transaction(engine) as connection:
        ann = create_key(connection, name="ann", scope=Role.ADMIN)
        create_key(connection, name="bob", scope=Role.ADMIN)
    with (
        serve(approvals=("limits",)) as address,
        httpx.Client(base_url=address, timeout=30) as api,
    ):
        api.headers["authorization"] = f"Bearer {ann}"
        for asked in ({"name": "carol"}, {"name": "carol", "person": "bob"}):
            refused = api.post("/v1/keys", json=asked | {"scope": "trainer"})
            assert refused.status_code == 409
            assert refused.json()["type"] == "/problems/another-person"
        assert api.post("/v1/keys/bob:rotate", json={}).status_code == 409
        own = api.post("/v1/keys", json={"name": "laptop", "scope": "admin", "person": "ann"})
        assert own.status_code == 201
        assert own.json()["person"] == "ann"
        assert api.post("/v1/keys/laptop:rotate", json={}).status_code == 200
        assert api.post("/v1/keys/bob:revoke", json={"reason": "Leaked."}).status_code == 200
    with serve() as address, httpx.Client(base_url=address, timeout=30) as api:
        api.headers["authorization"] = f"Bearer {ann}"
        asked = {"name": "carol", "scope": "trainer", "person": "dana"}
        assert api.post("/v1/keys", json=asked).json()["person"] == "dana"


def test_the_form_of_a_key_is_held_to_the_same(serve: Serve, engine: Engine) -> None:
    with transaction(engine) as connection:
        ann = create_key(connection, name="ann", scope=Role.ADMIN)
        create_key(connection, name="bob", scope=Role.ADMIN)
    with (
        serve(approvals=("limits",)) as address,
        httpx.Client(
            base_url=address, timeout=30, headers={"sec-fetch-site": "same-origin"}
        ) as page,
    ):
        assert page.post("/sign-in", data={"key": ann}).status_code == 303
        csrf = page.get("/keys").text.split('name="csrf-token" content="')[1].split('"')[0]
        form = {"csrf": csrf, "name": "carol", "scope": "viewer", "days": "", "rate": ""}
        answer = page.post("/keys", data=form)
        assert answer.status_code == 409, answer.text
        assert "act as carol" in answer.text
        rotated = page.post("/keys/bob/rotate", data={"csrf": csrf, "grace": "60"})
        assert rotated.status_code == 409
        assert page.post("/keys", data=form | {"person": "ann"}).status_code == 200


def test_the_start_token_makes_one_key(api: httpx.Client) -> None:
    made = [
        api.post("/v1/keys", json={"name": name, "scope": "admin"}).status_code
        for name in ("alice", "bob")
    ]
    assert made == [201, 401]


def test_the_key_of_a_file_is_no_persons(serve: Serve, tmp_path: Path) -> None:
    file = tmp_path / "first"
    file.write_text("x" * 40)
    with (
        serve(admin_key_file=file, approvals=("limits",)) as address,
        httpx.Client(base_url=address, timeout=30) as api,
    ):
        api.headers["authorization"] = "Bearer " + "x" * 40
        assert api.get("/v1/keys").json()["keys"][0]["person"] == "admin-key-file"
        assert api.post("/v1/datasets", json=dataset(budget=BUDGET)).status_code == 201
        more = {"budget": {"epsilon": 50.0, "delta": BUDGET["delta"]}, "reason": "More."}
        asked = api.patch("/v1/datasets/data", json=more, headers={"if-match": '"1"'})
        assert asked.status_code == 409
        assert asked.json()["type"] == "/problems/another-person"
