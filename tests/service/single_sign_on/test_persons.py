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
