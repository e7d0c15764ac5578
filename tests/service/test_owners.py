"""Owners and approvers: what each may change, and that neither moves a dataset of another."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final

import httpx
import pytest
from sqlalchemy import Engine

from service.errors import InvalidRequestError
from service.identity.keys import FREE, Role, Terms, create_key
from service.storage.engine import transaction
from tests.service.browsing import csrf_of, signed_in
from tests.service.office import MORE, require_whole
from tests.service.samples import BUDGET, Json, append, dataset, event, run
from tests.service.test_dataset_page import words
from tests.service.test_four_eyes import correction
from tests.service.test_keys import Serve, bearer

KEYS: Final = {  # name: whose it is, its scope, and the datasets that it names
    "ann": ("ann", Role.ADMIN, None),
    "pam": ("pam", Role.OWNER, {"people"}),
    "pia": ("pia", Role.OWNER, {"people", "minors"}),
    "cid": ("cid", Role.OWNER, {"adults", "elders"}),
    "both": ("both", Role.OWNER, {"people", "adults", "elders"}),
    "app": ("app", Role.APPROVER, None),
    "app-adults": ("app-adults", Role.APPROVER, {"adults"}),
    "dana": ("dana", Role.TRAINER, None),
    "dana-approves": ("dana", Role.APPROVER, None),
}
CHILD: Final = {"parents": ["people"], "rows_per_parent_record": "at_most_one"}
LEASE: Final = {"name": "lease", "event": event(0, 5), "ttl_seconds": 600}
WHY: Final = {"reason": "because"}


@pytest.fixture
def secrets(engine: Engine) -> dict[str, str]:
    with transaction(engine) as connection:
        return {
            name: create_key(
                connection, name=name, person=person, scope=scope,
                terms=FREE if named is None else Terms(datasets=frozenset(named)),
            )
            for name, (person, scope, named) in KEYS.items()
        }  # fmt: skip


class Family:
    """People, and the adults among them, with a run and a reservation of the adults."""

    def __init__(self, address: str, secrets: dict[str, str], stack: ExitStack) -> None:
        self.address, self.secrets = address, secrets
        self.clients = {
            name: stack.enter_context(
                httpx.Client(base_url=address, headers=bearer(secret), timeout=30)
            )
            for name, secret in secrets.items()
        }
        for body in (dataset("people", budget=BUDGET), dataset("adults", budget=BUDGET, **CHILD)):
            self.post("ann", "/v1/datasets", body)
        self.post("dana", "/v1/runs", run(dataset="adults"))
        self.post("dana", "/v1/runs/run/reservations", LEASE)

    def __getitem__(self, name: str) -> httpx.Client:
        return self.clients[name]

    def post(self, name: str, path: str, body: Json, status: int = 201) -> Json:
        answer = self[name].post(path, json=body)
        assert answer.status_code == status, answer.text
        found: Json = answer.json()
        return found

    def change(self, name: str, of: str, status: int, **change: object) -> Json:
        revision = self["ann"].get(f"/v1/datasets/{of}").headers["etag"]
        answer = self[name].patch(
            f"/v1/datasets/{of}", json=WHY | change, headers={"if-match": revision}
        )
        assert answer.status_code == status, answer.text
        found: Json = answer.json()
        return found

    def reserved(self) -> Json:
        return {
            name: self["ann"].get(f"/v1/datasets/{name}").json()["reserved"]
            for name in ("people", "adults")
        }


@pytest.fixture
def family(serve: Serve, secrets: dict[str, str]) -> Iterator[Family]:
    with serve() as address, ExitStack() as stack:
        yield Family(address, secrets, stack)


def test_an_owner_changes_what_the_key_names_and_nothing_else(
    family: Family, engine: Engine
) -> None:
    assert family.change("cid", "adults", 200, budget=MORE)["budget"]["epsilon"] == 5.0
    assert family.change("cid", "adults", 200, frozen=True)["frozen"]
    family.change("cid", "people", 404, frozen=True)
    family.change("pam", "adults", 404, frozen=False)
    family.change("app", "adults", 403, frozen=False)
    (first,) = family["cid"].get("/v1/datasets").json()["datasets"]
    assert first["name"] == "adults"
    for path in ("/v1/keys", "/v1/acts"):
        assert family["cid"].get(path).status_code == 403
    family.post("cid", "/v1/keys", {"name": "mine", "scope": "owner", "datasets": ["adults"]}, 403)
    family.post("cid", "/v1/runs/run:finish", {"state": "aborted", "reason": "lost"}, 200)
    require_whole(engine)


def test_a_void_of_a_child_moves_its_parent_and_waits_for_another_person(family: Family) -> None:
    before = family.reserved()
    asked = family.post("cid", "/v1/reservations/lease:void", WHY, 202)
    assert (asked["kind"], asked["person"]) == ("void", "cid")
    whole = family.change("cid", "adults", 202, void_reservations=True)
    assert whole["kind"] == "void"
    assert family.reserved() == before
    family.post("cid", f"/v1/requests/{asked['id']}:approve", WHY, 403)
    # Nor does an approver of the child alone, who is told of the parent's name and no more.
    for one in (asked, whole):
        refused = family.post("app-adults", f"/v1/requests/{one['id']}:approve", WHY, 403)
        assert "also counts in people" in refused["detail"]
    assert family.reserved() == before
    family.post("app-adults", f"/v1/requests/{whole['id']}:reject", WHY, 200)
    family.post("app", f"/v1/requests/{asked['id']}:approve", WHY, 200)
    assert family.reserved() == {"people": 0, "adults": 0}


def test_an_owner_of_the_whole_family_voids_alone(family: Family) -> None:
    assert family.reserved()["people"] > 0
    family.post("both", "/v1/reservations/lease:void", WHY, 200)
    assert family.reserved() == {"people": 0, "adults": 0}


def test_a_correction_of_a_child_waits_unless_it_only_raises_epsilon(family: Family) -> None:
    append(family["dana"], event(0, 10))
    path = "/v1/runs/run/corrections"
    assert family.post("cid", path, correction(4.0), 202)["kind"] == "correction"
    family.post("both", path, correction(4.0), 201)
    family.post("cid", path, correction(0.5, first_step=5), 201)


def test_an_approver_of_a_child_approves_what_counts_in_it_alone(family: Family) -> None:
    asked = family.post("dana", "/v1/datasets/adults/requests", WHY | {"budget": MORE})
    found = family.post("app-adults", f"/v1/requests/{asked['id']}:approve", WHY, 200)
    assert found["state"] == "approved"
    other = family.post("dana", "/v1/datasets/people/requests", WHY | {"budget": MORE})
    family.post("app-adults", f"/v1/requests/{other['id']}:approve", WHY, 404)


def test_an_approver_never_approves_what_the_same_person_asked_for(family: Family) -> None:
    asked = family.post("dana", "/v1/datasets/adults/requests", WHY | {"budget": MORE})
    path = f"/v1/requests/{asked['id']}"
    for verb in ("approve", "reject"):
        refused = family.post("dana-approves", f"{path}:{verb}", WHY, 409)
        assert refused["type"] == "/problems/another-person"
    family.post("app", f"{path}:withdraw", WHY, 403)
    family.post("app", f"{path}:approve", WHY, 200)


def test_with_four_eyes_an_owner_asks_and_an_approver_is_enough(
    serve: Serve, secrets: dict[str, str], engine: Engine
) -> None:
    with serve(approvals=("limits",)) as address, ExitStack() as stack:
        family = Family(address, secrets, stack)
        asked = family.change("cid", "adults", 202, budget=MORE)
        path = f"/v1/requests/{asked['id']}:approve"
        family.post("pam", path, WHY, 403)
        family.post("app", path, WHY, 200)
        last = family["ann"].get("/v1/datasets/adults/settings").json()["settings"][-1]
        assert (last["changed_by"], last["requested_by"]) == ("app", "cid")
        family.change("app", "adults", 403, budget=MORE)
        require_whole(engine)


@pytest.mark.parametrize(
    ("name", "body", "status", "words"),
    [
        ("cid", dataset("elders", parents=["adults"]), 201, ""),
        ("cid", dataset("elders"), 403, "no parents"),
        ("cid", dataset("others", parents=["adults"]), 403, "does not name the new one"),
        ("cid", dataset("elders", parents=["people"]), 404, "no such dataset"),
        ("cid", dataset("elders", parents=["unused"]), 404, "no such dataset"),
        ("both", dataset("elders", parents=["adults"]), 201, ""),
        ("app", dataset("elders", parents=["adults"]), 403, "scope owner"),
    ],
)
def test_an_owner_creates_derived_datasets_of_its_own(
    family: Family, name: str, body: Json, status: int, words: str
) -> None:
    if body.get("parents"):
        body = body | {"rows_per_parent_record": "at_most_one"}
    if name == "cid" and status == 201:  # what adults was made from is not the owner's
        status, words = 403, "adults was made from people"
    refused = family.post(name, "/v1/datasets", body, status)
    assert words in refused.get("detail", "")


def test_a_parent_that_was_made_from_nothing_is_enough(family: Family, engine: Engine) -> None:
    created = family.post("pia", "/v1/datasets", dataset("minors", **CHILD))
    assert created["parents"] == ["people"]
    require_whole(engine)


def test_the_key_of_an_owner_names_datasets(engine: Engine) -> None:
    with (
        transaction(engine) as connection,
        pytest.raises(InvalidRequestError, match="names the datasets that it owns"),
    ):
        create_key(connection, name="all", scope=Role.OWNER)


def test_the_pages_show_each_role_what_it_may_do(family: Family) -> None:
    with ExitStack() as stack:
        browsers = {
            name: stack.enter_context(signed_in(family.address, family.secrets[name]))
            for name in ("cid", "app", "both")
        }
        page = browsers["cid"].get("/datasets/adults").text
        assert "cid \u00b7 owner" in words(page)
        assert 'action="/datasets/adults/limit"' in page
        assert "people" not in browsers["cid"].get("/new-dataset").text
        assert "people" in browsers["both"].get("/new-dataset").text
        assert browsers["cid"].get("/log").status_code == 403
        assert browsers["cid"].get("/keys").status_code == 403
        page = browsers["app"].get("/datasets/adults").text
        assert "app \u00b7 approver" in words(page)
        assert 'action="/datasets/adults/' not in page
        form = {"csrf": csrf_of(browsers["app"]), "reason": "x", "revision": "1", "epsilon": "9"}
        assert browsers["app"].post("/datasets/adults/limit", data=form).status_code == 403
        # A void on the page waits as the same call does, and its approver is told where.
        form = {"csrf": csrf_of(browsers["cid"]), "reason": "gone"}
        answer = browsers["cid"].post("/reservations/lease/void", data=form)
        assert answer.headers["location"].startswith("/requests/")
        page = browsers["app"].get(answer.headers["location"]).text
        assert "Approve and make the change" in page
        assert "Withdraw" not in page


def test_a_dataset_that_an_owner_may_not_create_is_refused_on_the_page(family: Family) -> None:
    with signed_in(family.address, family.secrets["cid"]) as client:
        form = {
            "csrf": csrf_of(client), "name": "elders", "size": "100", "do": "create",
            "relation": "add_or_remove_one", "unit": "example",
        }  # fmt: skip
        answer = client.post("/new-dataset", data=form)
        assert answer.status_code == 403, words(answer.text)
        assert "this one has no parents" in words(answer.text)
        assert "elders" not in str(family["ann"].get("/v1/datasets").json())
