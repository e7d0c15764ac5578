"""The page of a dataset: its open reservations, and how an admin stops what is admitted."""

import re
from collections.abc import Iterator
from html import unescape
from typing import Final

import httpx
import pytest
from sqlalchemy import Engine

from benchmarks.servers import START_TOKEN
from service.formatting import moment
from service.identity.keys import Role
from tests.service.browsing import make_key, signed_in
from tests.service.samples import BUDGET, POISSON, Json, append, dataset, event, setup
from tests.service.test_dataset_page import QUIET, Serve, fields, page, send, words

AHEAD: Final[Json] = {"steps": 7, "mechanism": QUIET, "sampling": POISSON}


@pytest.fixture
def officer(api: httpx.Client, address: str) -> Iterator[httpx.Client]:
    """Somebody with the start token, beside whom the interface is still open."""
    setup(api, dataset_given={"budget": BUDGET})
    append(api, event(0, 100))
    with signed_in(address, START_TOKEN) as client:
        yield client


def stop(client: httpx.Client, given: dict[str, str], **more: str) -> httpx.Response:
    kept = {name: given[name] for name in ("csrf", "revision")}
    return send(client, kept | more, form="admission")


def test_open_reservations_are_listed_and_voided(officer: httpx.Client, api: httpx.Client) -> None:
    assert "Open reservations None." in words(page(officer))
    assert 'name="void"' not in page(officer)
    for name, seconds in (("lease", 3600), ("short", 1)):
        given = {"name": name, "event": AHEAD, "ttl_seconds": seconds}
        api.post("/v1/runs/run/reservations", json=given).raise_for_status()
    expires = api.get("/v1/datasets/data/reservations").json()["reservations"][0]["expires_at"]
    text = page(officer)
    assert f"run lease main 7 of 7 {moment(expires)}" in words(text)
    assert "Void the open reservations: 2" in words(text)
    answer = stop(officer, fields(text), void="yes", reason="A key was stolen")
    assert (answer.status_code, answer.headers["location"]) == (303, "/datasets/data#limits")
    assert api.get("/v1/datasets/data/reservations").json()["reservations"] == []
    standing = api.get("/v1/datasets/data").json()
    assert (standing["frozen"], standing["reserved"]) == (False, 0.0)
    assert "A key was stolen" in words(page(officer))


def test_an_admin_freezes_a_dataset_and_ends_that(officer: httpx.Client, api: httpx.Client) -> None:
    child = dataset("child", parents=["data"], rows_per_parent_record="at_most_one")
    api.post("/v1/datasets", json=child).raise_for_status()
    assert "Frozen." not in words(page(officer))
    answer = stop(officer, fields(page(officer)), frozen="yes", reason="It looks wrong")
    assert answer.status_code == 303
    assert api.get("/v1/datasets/data").json()["frozen"]
    assert "Frozen. Charges, reservations and plans are refused" in words(page(officer))
    assert "Nothing, until the freeze ends." in words(page(officer))
    below = words(page(officer, "child"))
    assert "Nothing is admitted here. data from which it was made is frozen." in below
    assert "Frozen. Charges" not in below
    assert append(api, event(100, 1), mode="charge").status_code == 409
    assert stop(officer, fields(page(officer)), reason="It was right").status_code == 303
    assert not api.get("/v1/datasets/data").json()["frozen"]
    assert append(api, event(100, 1), mode="charge").status_code == 201


def test_what_is_wrong_with_a_freeze_is_said(officer: httpx.Client, api: httpx.Client) -> None:
    given = fields(page(officer))
    for more, status, said in (
        ({"frozen": "yes", "reason": ""}, 422, "must not be empty"),
        ({"reason": "why"}, 422, "the settings of data are already so: nothing would change"),
        (
            {"frozen": "yes", "reason": "why", "revision": "9"},
            409,
            "The settings changed meanwhile",
        ),
    ):
        answer = send(officer, {"csrf": given["csrf"], "revision": "1"} | more, form="admission")
        assert answer.status_code == status
        wrong = answer.text[answer.text.index("/admission") :]
        assert said in unescape(wrong)
        assert (' checked aria-describedby="admission-frozen' in wrong) == ("frozen" in more)
        assert 'href="#change-admission"' in answer.text
    assert not api.get("/v1/datasets/data").json()["frozen"]
    again = officer.get("/datasets/data/admission")
    assert (again.status_code, again.headers["location"]) == (303, "/datasets/data#limits")


def accepts(
    client: httpx.Client, given: dict[str, str], *statuses: str, **more: str
) -> httpx.Response:
    ticked = {f"accept_{status}": "yes" for status in statuses}
    kept = {name: given[name] for name in ("csrf", "revision")}
    return send(client, kept | ticked | {"reason": "we read the proofs"} | more, form="accept")


def test_an_admin_says_which_theorems_count(officer: httpx.Client, api: httpx.Client) -> None:
    text = page(officer)
    assert re.findall(r'name="accept_(\w+)" value="yes" checked', text) == ["published", "declared"]
    answer = accepts(officer, fields(text), "published", "derived", "declared")
    assert (answer.status_code, answer.headers["location"]) == (303, "/datasets/data#limits")
    assert api.get("/v1/datasets/data").json()["accept"] == ["declared", "derived", "published"]
    text = words(page(officer))
    assert "accepts declared, derived, published we read the proofs" in text


@pytest.mark.parametrize(
    ("statuses", "more", "status", "said"),
    [
        ((), {}, 422, "needs at least one status"),
        (
            ("published", "declared"),
            {},
            422,
            "the settings of data are already so: nothing would change",
        ),
        (("declared",), {}, 422, "must list published, as the budget's filter is"),
        (("published",), {"reason": " "}, 422, "must not be empty"),
        (("published",), {"revision": "9"}, 409, "The settings changed meanwhile"),
    ],
)
def test_what_is_wrong_with_accepted_statuses_is_said(
    officer: httpx.Client,
    api: httpx.Client,
    statuses: tuple[str, ...],
    more: dict[str, str],
    status: int,
    said: str,
) -> None:
    answer = accepts(officer, fields(page(officer)), *statuses, **more)
    assert answer.status_code == status
    assert said in unescape(answer.text[answer.text.index('/accept"') :])
    assert 'href="#change-accept"' in answer.text
    ticked = re.findall(r'name="accept_(\w+)" value="yes" checked', answer.text)
    assert ticked == list(statuses)  # as they were sent
    assert api.get("/v1/datasets/data").json()["accept"] == ["declared", "published"]
    again = officer.get("/datasets/data/accept")
    assert (again.status_code, again.headers["location"]) == (303, "/datasets/data#limits")


def test_only_an_admin_may_freeze(
    officer: httpx.Client, engine: Engine, serve: Serve, api: httpx.Client
) -> None:
    given = fields(page(officer))
    unsigned = {"frozen": "yes", "reason": "why", "revision": "1"}
    assert send(officer, unsigned, form="admission").status_code == 403
    assert not api.get("/v1/datasets/data").json()["frozen"]
    key = make_key(engine, "looker", scope=Role.VIEWER)
    with serve() as address, signed_in(address, key) as client:
        assert "/admission" not in page(client)
        assert stop(client, given, frozen="yes", reason="why").status_code == 403
        assert "/accept" not in page(client)
        assert "Theorems count whose status is declared or published" in words(page(client))
        assert accepts(client, given, "published").status_code == 403
