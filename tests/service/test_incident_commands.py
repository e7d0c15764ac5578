"""Incidents from the command line and from Python."""

import json
from collections.abc import Iterator

import httpx
import pytest
from dpledger_client import Client, Forbidden, InvalidRequest, NotFound
from sqlalchemy import Engine
from typer.testing import CliRunner, Result

from service.cli.main import app
from service.identity.keys import Role
from tests.service.office import key_of_each
from tests.service.samples import BUDGET, FULL, append, dataset, event, run
from tests.service.test_keys import Serve, bearer

Keys = dict[Role, str]


@pytest.fixture
def keys(engine: Engine) -> Keys:
    return key_of_each(engine)


@pytest.fixture
def address(serve: Serve, keys: Keys) -> Iterator[str]:
    """A service with an overdraft."""
    with serve() as found:
        with httpx.Client(base_url=found, headers=bearer(keys[Role.ADMIN]), timeout=30) as api:
            api.post("/v1/datasets", json=dataset(budget=BUDGET))
            api.post("/v1/runs", json=run())
            assert append(api, event(0, 1000, sampling=FULL)).status_code == 201
        yield found


def typed(
    address: str, key: str, monkeypatch: pytest.MonkeyPatch, *words: str, code: int = 0
) -> Result:
    monkeypatch.setenv("DPLEDGER_API_KEY", key)
    result: Result = CliRunner().invoke(app, ["incidents", *words, "--url", address])
    assert result.exit_code == code, result.output
    return result


def test_an_incident_is_handled_in_a_terminal(
    address: str, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(role: Role, *words: str, code: int = 0) -> str:
        return typed(address, keys[role], monkeypatch, *words, code=code).stdout

    lines = said(Role.VIEWER, "list", "--state", "open").splitlines()
    assert lines[0].split("\t")[:4] == ["id", "state", "kind", "dataset"]
    number, state, kind, name, *_ = lines[1].split("\t")
    assert (state, kind, name) == ("open", "overdraft", "data")
    assert said(Role.TRAINER, "comment", number, "--text", "a loop").strip() == "open"
    said(Role.TRAINER, "acknowledge", number, code=2)
    assert said(Role.ADMIN, "assign", number, "--to", "trainer").strip() == "open"
    (found,) = json.loads(said(Role.VIEWER, "list", "--assignee", "trainer", "--json"))
    assert [one["action"] for one in found["notes"]] == ["comment", "assign"]
    assert said(Role.ADMIN, "assign", number).strip() == "open"
    assert len(said(Role.VIEWER, "list", "--assignee", "trainer").splitlines()) == 1
    answer = said(Role.APPROVER, "acknowledge", number, "--text", "it was told")
    assert answer.strip() == "acknowledged"
    assert number not in said(Role.VIEWER, "list", "--state", "open")
    assert said(Role.OWNER, "reopen", number).strip() == "open"
    assert number in said(Role.VIEWER, "list", "--kind", "overdraft", "--dataset", "data")
    said(Role.ADMIN, "comment", "incident-1-1", "--text", "x", code=2)


def test_an_incident_is_handled_from_python(address: str, keys: Keys) -> None:
    with (
        Client(address, api_key=keys[Role.TRAINER]) as trainer,
        Client(address, api_key=keys[Role.ADMIN]) as admin,
    ):
        (first,) = trainer.incidents(kind="overdraft")
        number = first["id"]
        assert trainer.comment_incident(number, "a loop")["notes"][0]["text"] == "a loop"
        with pytest.raises(Forbidden):
            trainer.acknowledge_incident(number)
        assert admin.assign_incident(number, "trainer", "yours")["assignee"] == "trainer"
        assert [one["id"] for one in admin.incidents(assignee="trainer")] == [number]
        with pytest.raises(InvalidRequest):
            admin.assign_incident(number, "stranger")
        assert admin.assign_incident(number, None)["assignee"] is None
        assert admin.acknowledge_incident(number, "seen")["state"] == "acknowledged"
        assert number not in [one["id"] for one in trainer.incidents(state="open")]
        assert admin.reopen_incident(number)["state"] == "open"
        with pytest.raises(NotFound):
            trainer.comment_incident("incident-1-1", "x")
