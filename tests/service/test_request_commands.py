"""Change requests from the command line and from Python."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from dpledger_client import (
    AnotherPerson,
    Client,
    Conflict,
    InvalidRequest,
    NotFound,
    check_budget,
    event,
    gaussian,
    poisson,
)
from sqlalchemy import Engine
from typer.testing import CliRunner, Result

from service.cli.main import app
from tests.service.office import APPROVALS, Office, make_keys, working
from tests.service.samples import FULL, GAUSSIAN, Json
from tests.service.test_keys import Serve


@pytest.fixture
def secrets(engine: Engine) -> dict[str, str]:
    return make_keys(engine)


@pytest.fixture
def strict(serve: Serve, secrets: dict[str, str]) -> Iterator[Office]:
    with working(serve, secrets, approvals=APPROVALS) as found:
        yield found


class Terminals:
    """The command line of each person."""

    def __init__(self, address: str, secrets: dict[str, str], patch: pytest.MonkeyPatch) -> None:
        self._address, self._secrets, self._patch = address, secrets, patch

    def __call__(self, person: str, *words: str) -> Result:
        self._patch.setenv("DPLEDGER_API_KEY", self._secrets[person])
        there = ("--url", self._address)
        result: Result = CliRunner().invoke(app, ["requests", *words, *there])
        return result


@pytest.fixture
def terminal(strict: Office, secrets: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Terminals:
    return Terminals(strict.address, secrets, monkeypatch)


def test_a_request_from_asking_to_the_decision(strict: Office, terminal: Terminals) -> None:
    asked = terminal("dana", "ask", "data", "--epsilon", "5", "--reason", "a larger model")
    assert asked.exit_code == 0, asked.output
    number = asked.stdout.strip()
    again = terminal("dana", "ask", "data", "--epsilon", "5", "--reason", "a larger model")
    assert again.stdout.strip() == number
    heads, line = terminal("vic", "list", "--state", "pending").stdout.splitlines()
    told = dict(zip(heads.split("\t"), line.split("\t"), strict=True))
    assert (told["id"], told["person"], told["reason"]) == (number, "dana", "a larger model")
    refused = terminal("eve", "withdraw", number, "--reason", "no")
    assert refused.exit_code == 2
    assert "Only dana, who asked for this change, can withdraw it" in refused.stderr
    assert terminal("ann", "approve", number, "--reason", "fine").stdout.strip() == "approved"
    assert strict.limit() == 5.0
    assert json.loads(terminal("vic", "show", number).stdout)["decision"]["person"] == "ann"
    (found,) = json.loads(terminal("vic", "list", "--json").stdout)
    assert found["state"] == "approved"
    assert terminal("vic", "list", "--by", "eve").stdout.count("\n") == 1


def test_a_request_is_rejected_or_withdrawn(strict: Office, terminal: Terminals) -> None:
    for person, verb, state in (("ann", "reject", "rejected"), ("dana", "withdraw", "withdrawn")):
        asked = terminal("dana", "ask", "data", "--epsilon", "5", "--reason", "x")
        done = terminal(person, verb, asked.stdout.strip(), "--reason", "x")
        assert done.stdout.strip() == state
    assert strict.limit() == 3.0


def test_an_envelope_comes_from_a_file(strict: Office, terminal: Terminals, tmp_path: Path) -> None:
    file = tmp_path / "items.json"
    ask = ("ask", "data", "--epsilon", "8", "--reason", "x", "--envelope", str(file))
    refused = terminal("dana", *ask)
    assert (refused.exit_code, "cannot be read" in refused.stderr) == (2, True)
    file.write_text(json.dumps([{"mechanism": GAUSSIAN, "sampling": FULL, "steps": 1}]))
    asked = terminal("dana", *ask)
    terminal("ann", "approve", asked.stdout.strip(), "--reason", "x")
    budget = strict["vic"].get("/v1/datasets/data").json()["budget"]
    assert (budget["filter"]["kind"], budget["epsilon"], budget["delta"]) == ("envelope", 8.0, 1e-5)


def test_what_is_wrong_is_said_in_one_line(terminal: Terminals) -> None:
    for words, told in (
        (("show", "nothing"), "no such change request"),
        (("ask", "nothing", "--epsilon", "5", "--reason", "x"), "no such dataset"),
        (("ask", "data", "--epsilon", "3", "--reason", "x"), "the settings of data are already so"),
        (("list", "--state", "lost"), "state"),
    ):
        result = terminal("dana", *words)
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
        assert told in result.stderr


def test_the_client_asks_and_decides(strict: Office, secrets: dict[str, str]) -> None:
    with (
        Client(strict.address, secrets["dana"]) as dana,
        Client(strict.address, secrets["ann"]) as ann,
    ):
        asked = dana.request_budget("data", epsilon=5.0, delta=1e-5, reason="a larger model")
        assert dana.request(asked["id"])["state"] == "pending"
        done = ann.approve_request(asked["id"], "fine")
        assert (done["state"], strict.limit()) == ("approved", 5.0)
        with pytest.raises(Conflict, match="approved by ann"):
            dana.withdraw_request(asked["id"], "late")
        own = ann.request_budget("data", epsilon=6.0, delta=1e-5, reason="x")
        with pytest.raises(AnotherPerson, match="another person must decide"):
            ann.approve_request(own["id"], "mine")
        with pytest.raises(AnotherPerson, match="another person must decide"):
            ann.reject_request(own["id"], "mine")
        assert ann.withdraw_request(own["id"], "no need")["state"] == "withdrawn"
        assert [one["id"] for one in dana.requests(by="ann")] == [own["id"]]
        assert [one["id"] for one in dana.requests(state="approved")] == [asked["id"]]
        with pytest.raises(NotFound):
            dana.request("nothing")
        with pytest.raises(InvalidRequest):
            dana.request_budget("data", epsilon=5.0, delta=1e-5, reason="")
        items = [{"mechanism": GAUSSIAN, "sampling": FULL, "steps": 1}]
        found = dana.request_budget("data", epsilon=8.0, delta=1e-5, reason="x", envelope=items)
        assert found["kind"] == "envelope"


def test_a_training_does_not_take_a_request_for_its_budget(
    strict: Office, secrets: dict[str, str], tmp_path: Path
) -> None:
    # The default filter holds two thirds of these steps, and an envelope all of them.
    step: Json = {
        "mechanism": gaussian(noise_multiplier=1.626),
        "sampling": poisson(sampling_probability=0.05),
    }
    plan = [event(**step, steps=400)]
    with (
        Client(strict.address, secrets["ann"]) as ann,
        ann.start_run("long", "data", **step, spool=tmp_path) as training,
        pytest.raises(AnotherPerson, match="another person must approve change request"),
    ):
        check_budget(training, plan, dataset_budget="this plan")
    (found,) = strict["vic"].get("/v1/requests").json()["requests"]
    assert (found["kind"], found["state"]) == ("envelope", "pending")
