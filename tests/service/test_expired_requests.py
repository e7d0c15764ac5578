"""The incident of a change request that expires undecided needs no acknowledgement."""

from typing import Any

import pytest
from sqlalchemy import Engine

from service.ledger.change_requests.messages import EXPIRY_DAYS
from service.operations.incident_inbox import count_open
from service.operations.overview import Boards
from service.storage.engine import snapshot
from tests.service.browsing import signed_in
from tests.service.dumps import dump
from tests.service.office import Office, make_keys, working
from tests.service.samples import Json
from tests.service.test_change_requests import later
from tests.service.test_incident_notes import inbox, note
from tests.service.test_keys import Serve
from tests.service.test_listing import page, words

KIND = "change_request"


def states(office: Office, **query: Any) -> list[str]:
    return [one["state"] for one in inbox(office["vic"], kind=KIND, **query)]


def open_ones(engine: Engine) -> int:
    with snapshot(engine) as connection:
        return count_open(connection, None).get(KIND, 0)


def reason(one: Json) -> str:
    return str(one["detail"]["reason"])


def test_an_incident_ends_with_its_request_and_only_that_one(
    serve: Serve, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = make_keys(engine)
    with working(serve, secrets) as office:
        office.asks("dana", reason="the first")
        office.changes("ann", status=200, frozen=True)  # a change that needs no other person
        with monkeypatch.context() as patch:
            later(patch, days=EXPIRY_DAYS / 2)
            # Its reason has the words of another incident's detail in it.
            office.asks("eve", reason='the second: "request":"')
        before = dump(engine)
        assert (states(office, state="open"), open_ones(engine)) == (["open"] * 2, 2)
        with monkeypatch.context() as patch:
            later(patch, days=EXPIRY_DAYS + 0.01)
            (left,) = inbox(office["vic"], kind=KIND, state="open")
            assert reason(left) == 'the second: "request":"'
            assert states(office) == ["open", "acknowledged"]
            assert states(office, state="acknowledged") == ["acknowledged"]
            assert open_ones(engine) == 1
            with snapshot(engine) as connection:
                assert Boards().look(connection, None).incident_counts[KIND] == 1
            with signed_in(office.address, secrets["vic"]) as client:
                text = words(page(client, "/incidents", {"kind": KIND, "state": "any"}))
            assert text.count("Its request expired undecided") == 1
        assert dump(engine) | {"sessions": []} == before | {"sessions": []}  # nothing was written


def test_a_decided_request_leaves_its_incident_as_it_is(
    serve: Serve, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with working(serve, make_keys(engine)) as office:
        office.decides("ann", "reject", office.asks("dana"))
        (one,) = inbox(office["vic"], kind=KIND)
        assert note(office["ann"], one, "reopen").status_code == 201
        later(monkeypatch, days=EXPIRY_DAYS + 0.01)
        assert states(office) == ["open"]  # it was opened after the decision, which stands


def test_an_incident_that_is_opened_again_after_the_expiry_stays_open(
    serve: Serve, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with working(serve, make_keys(engine)) as office:
        office.asks("dana")
        (one,) = inbox(office["vic"], kind=KIND)
        assert note(office["ann"], one, "acknowledge").status_code == 201
        assert note(office["ann"], one, "reopen").status_code == 201
        later(monkeypatch, days=EXPIRY_DAYS + 0.01)
        assert states(office) == ["acknowledged"]  # it was opened before that
        assert note(office["ann"], one, "reopen", text="ask again").status_code == 201
        assert (states(office), open_ones(engine)) == (["open"], 1)
        assert note(office["ann"], one, "acknowledge").status_code == 201
        assert (states(office), open_ones(engine)) == (["acknowledged"], 0)
