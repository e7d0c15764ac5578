"""Five people with their keys, and what they ask of one another."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import httpx
from sqlalchemy import Engine

from service.identity.keys import FREE, Role, Terms, create_key
from service.storage.engine import snapshot, transaction
from service.transparency.activity import ActAnswer, all_acts
from service.transparency.verification.ledger import verify
from tests.service.samples import BUDGET, Json, dataset, run
from tests.service.test_keys import Serve, bearer

MORE: Final = {"epsilon": 5.0, "delta": 1e-5}
WHY: Final = {"reason": "looked at it"}
PEOPLE: Final = {  # the keys of the tests: whose they are, and their scope
    "ann": ("ann", Role.ADMIN),
    "ann-laptop": ("ann", Role.ADMIN),
    "bob": ("bob", Role.ADMIN),
    "cleo": ("cleo", Role.ADMIN),
    "dana": ("dana", Role.TRAINER),
    "eve": ("eve", Role.TRAINER),
    "vic": ("vic", Role.VIEWER),
}


def key_of_each(engine: Engine, *datasets: str, prefix: str = "") -> dict[Role, str]:
    """A key of each scope; an owner's names these datasets, and the others reach all."""
    owned = Terms(datasets=frozenset(datasets or ("data",)))
    with transaction(engine) as connection:
        return {
            scope: create_key(
                connection,
                name=f"{prefix}{scope}",
                scope=scope,
                terms=owned if scope is Role.OWNER else FREE,
            )
            for scope in Role
        }


class Office:
    """A service, and a client for the key of each person."""

    def __init__(self, address: str, secrets: dict[str, str]) -> None:
        self.address = address
        self.clients = {
            name: httpx.Client(base_url=address, headers=bearer(secret), timeout=30)
            for name, secret in secrets.items()
        }

    def __getitem__(self, name: str) -> httpx.Client:
        return self.clients[name]

    def close(self) -> None:
        for client in self.clients.values():
            client.close()

    def asks(self, name: str, budget: Json = MORE, *, status: int = 201, **more: Any) -> Json:
        body = {"reason": "a larger model", "budget": budget} | more
        answer = self[name].post("/v1/datasets/data/requests", json=body)
        assert answer.status_code == status, answer.text
        found: Json = answer.json()
        return found

    def decides(self, name: str, verb: str, request: Json, *, status: int = 200) -> Json:
        answer = self[name].post(f"/v1/requests/{request['id']}:{verb}", json=WHY)
        assert answer.status_code == status, answer.text
        found: Json = answer.json()
        return found

    def changes(self, name: str, *, status: int, **change: Any) -> Json:
        """A change of the settings, on their present revision."""
        etag = self[name].get("/v1/datasets/data").headers["etag"]
        body = {"reason": "because"} | change
        answer = self[name].patch("/v1/datasets/data", json=body, headers={"if-match": etag})
        assert answer.status_code == status, answer.text
        found: Json = answer.json()
        return found

    def limit(self) -> float:
        return float(self["vic"].get("/v1/datasets/data").json()["budget"]["epsilon"])

    def state(self, request: Json) -> str:
        return str(self["vic"].get(f"/v1/requests/{request['id']}").json()["state"])


def make_keys(engine: Engine) -> dict[str, str]:
    with transaction(engine) as connection:
        return {
            name: create_key(connection, name=name, person=person, scope=scope)
            for name, (person, scope) in PEOPLE.items()
        }


def opened(address: str, secrets: dict[str, str]) -> Office:
    office = Office(address, secrets)
    answer = office["ann"].post("/v1/datasets", json=dataset(budget=BUDGET))
    assert answer.status_code in (200, 201), answer.text
    answer = office["dana"].post("/v1/runs", json=run())
    assert answer.status_code in (200, 201), answer.text
    return office


APPROVALS: Final = ("limits", "envelopes", "voids", "corrections")


@contextmanager
def working(serve: Serve, secrets: dict[str, str], **given: Any) -> Iterator[Office]:
    """A service with a dataset and a run, and a client for each person."""
    with serve(**given) as address:
        office = opened(address, secrets)
        yield office
        office.close()


def acts(engine: Engine, *kinds: str) -> list[ActAnswer]:
    with snapshot(engine) as connection:
        return [one for one in all_acts(connection, "data") if one.kind in kinds]


def require_whole(engine: Engine) -> None:
    with snapshot(engine) as connection:
        report = verify(connection)
    assert report.broken == []
