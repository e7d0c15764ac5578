"""The list of keys in the browser: searched, sorted, and in parts."""

import re
from collections.abc import Iterator

import httpx
import pytest
from sqlalchemy import Engine

from service.clock import now
from service.identity.keys import Role, create_key, revoke_key
from service.storage.engine import transaction
from service.storage.tables import api_keys
from tests.service.test_keys import bearer
from tests.service.test_listing import words
from tests.service.test_reports import Serve

KEYS = 30


@pytest.fixture
def office(engine: Engine, serve: Serve) -> Iterator[httpx.Client]:
    with transaction(engine) as connection:
        admin = create_key(connection, name="admin", scope=Role.ADMIN, person="ada")
        for place in range(KEYS):
            create_key(connection, name=f"cluster-{place:02}", scope=Role.TRAINER)
        revoke_key(connection, "cluster-00", reason="leaked")
        connection.execute(
            api_keys.update().where(api_keys.c.name == "cluster-01").values(expires_at=now())
        )
    with serve() as address, httpx.Client(base_url=address, headers=bearer(admin)) as client:
        yield client


def names(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 200
    return re.findall(r'<th scope="row"><a href="/keys/([^"]+)"', answer.text)


def test_those_that_work_come_first_in_parts(office: httpx.Client) -> None:
    first = office.get("/keys")
    assert names(first) == ["admin", *(f"cluster-{place:02}" for place in range(2, 26))]
    assert "31 in all" in first.text
    (further,) = re.findall(r'rel="next" href="([^"]+)"', first.text)
    assert names(office.get(further.replace("&amp;", "&"))) == [
        *(f"cluster-{place:02}" for place in range(26, 30)), "cluster-00", "cluster-01",
    ]  # fmt: skip


def test_keys_are_found_by_name_person_scope_and_state(office: httpx.Client) -> None:
    assert names(office.get("/keys", params={"name": "CLUSTER-1"})) == [
        f"cluster-{place}" for place in range(10, 20)
    ]
    assert names(office.get("/keys", params={"name": "ada"})) == ["admin"]
    assert names(office.get("/keys", params={"scope": "admin"})) == ["admin"]
    search = office.get("/keys").text.partition("<main")[2].partition("</form>")[0]
    assert {scope.value for scope in Role} <= set(re.findall(r'<option value="(\w*)"', search))
    assert names(office.get("/keys", params={"state": "ended"})) == ["cluster-00", "cluster-01"]
    active = names(office.get("/keys", params={"state": "active", "sort": "-name"}))
    assert active[0] == "cluster-29"
    nothing = office.get("/keys", params={"name": "nothing"})
    assert names(nothing) == []
    assert "No key found" in nothing.text


def test_the_page_of_a_key_names_its_person(office: httpx.Client) -> None:
    listed = office.get("/keys", params={"name": "cluster-02"}).text
    assert '<td data-label="Person">cluster-02</td>' in listed
    for key, person in (("admin", "ada"), ("cluster-02", "cluster-02")):
        said = words(office.get(f"/keys/{key}").text)
        assert f"Person {person} Begins with" in said


def test_where_two_persons_are_needed_no_form_is_offered_that_is_refused(
    engine: Engine, serve: Serve
) -> None:
    with transaction(engine) as connection:
        admin = create_key(connection, name="admin", scope=Role.ADMIN, person="ada")
        create_key(connection, name="laptop", scope=Role.VIEWER, person="ada")
        create_key(connection, name="cluster", scope=Role.TRAINER, person="bob")
    other, create = "You cannot rotate a key of another person here", "you create your own keys"
    for approvals in ((), ("limits",)):
        with (
            serve(approvals=approvals) as address,
            httpx.Client(base_url=address, headers=bearer(admin)) as client,
        ):
            needed = bool(approvals)
            for name, refused in (("cluster", needed), ("laptop", False), ("admin", False)):
                text = client.get(f"/keys/{name}").text
                assert (other in text) is refused
                assert (f"dpledger keys rotate {name}" in text) is refused
                assert (f'action="/keys/{name}/rotate"' in text) is not refused
                assert f'action="/keys/{name}/revoke"' in text
            text = client.get("/keys").text
            assert (create in text) is needed
            assert ('name="person" value="ada"' in text) is needed
