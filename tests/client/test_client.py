import ast
import inspect
import json
import logging
import pydoc
import re
from pathlib import Path
from typing import Any

import dpledger_client as dp
import httpx
import pytest
from dpledger_client import Client

from tests.client.fake_service import FakeService, answering, problem, unreachable

KEY = "dpl_0123456789abcdef"


def test_address_and_key_come_from_the_environment(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPLEDGER_URL", "https://ledger.example/below")
    monkeypatch.setenv("DPLEDGER_API_KEY", KEY)
    with Client(transport=httpx.MockTransport(service)) as client:
        client.guarantee("run")
    request = service.requests[0]
    assert str(request.url) == "https://ledger.example/below/v1/runs/run/guarantee"
    assert request.headers["Authorization"] == f"Bearer {KEY}"


def test_arguments_come_before_the_environment(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPLEDGER_URL", "https://ledger.example")
    monkeypatch.setenv("DPLEDGER_API_KEY", "other")
    with Client("http://localhost:1", KEY, transport=httpx.MockTransport(service)) as client:
        client.guarantee("run")
    assert service.requests[0].url.host == "localhost"
    assert service.requests[0].headers["Authorization"] == f"Bearer {KEY}"


def test_the_default_is_the_local_service_without_a_key(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DPLEDGER_API_KEY")
    with Client(transport=httpx.MockTransport(service)) as client:
        client.guarantee("run")
    assert str(service.requests[0].url) == "http://127.0.0.1:8000/v1/runs/run/guarantee"
    assert "Authorization" not in service.requests[0].headers


def test_the_key_is_never_shown(service: FakeService, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with Client("http://localhost:1", KEY, transport=httpx.MockTransport(service)) as client:
        shown = [repr(client), repr(client.start_run("run", "letters"))]
        service.faults.extend([answering(problem("unauthorized", 401)), *[unreachable] * 6])
        for kind in (dp.Unauthorized, dp.Unavailable):
            with pytest.raises(kind) as raised:
                client.guarantee("run")
            shown += [str(raised.value), repr(raised.value), str(raised.getrepr(showlocals=True))]
    text = "\n".join([*shown, caplog.text])
    assert "localhost" in text
    assert KEY not in text


@pytest.mark.parametrize("key", [f"{KEY}\n", f"{KEY}é"])
def test_an_ill_formed_key_is_refused_without_showing_it(key: str) -> None:
    with pytest.raises(ValueError, match="api_key") as raised:
        Client(api_key=key)
    assert KEY not in str(raised.value)


@pytest.mark.parametrize(
    "url", ["localhost:8000", "ftp://localhost", "http://", "ledger", "http://me:secret@localhost"]
)
def test_an_address_that_is_not_http_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="base_url") as raised:
        Client(url)
    assert "secret" not in str(raised.value)


def test_negative_retries_are_refused() -> None:
    with pytest.raises(ValueError, match="retries"):
        Client(retries=-1)


@pytest.mark.parametrize("name", ["", "A", "../keys", "a/b", "a b", "a?b", "x" * 64, "a\n"])
def test_a_name_that_could_mean_another_path_is_never_sent(
    service: FakeService, client: Client, name: str
) -> None:
    for call in (client.run, client.dataset, client.guarantee, client.ledger, client.history):
        with pytest.raises(ValueError, match="name"):
            call(name)
    with pytest.raises(ValueError, match="name"):
        client.start_run(name, "letters")
    with pytest.raises(ValueError, match="name"):
        client.start_run("run", name)
    state = {**dp.state_at("run", "letters", next_step=0), "branch": name}
    with pytest.raises(ValueError, match="name"):
        client.start_run("run", "letters", state=state)
    assert service.requests == []


def test_create_dataset_sends_what_was_given_only(service: FakeService, client: Client) -> None:
    service.faults.append(answering(httpx.Response(201, json={"name": "letters"})))
    made = client.create_dataset(
        "letters",
        dataset_size=60_000,
        neighboring_relation="add_or_remove_one",
        privacy_unit="one letter",
        budget={"epsilon": 3.0, "delta": 1e-5},
    )
    assert made == {"name": "letters"}
    assert json.loads(service.requests[0].content) == {
        "name": "letters",
        "dataset_size": 60_000,
        "neighboring_relation": "add_or_remove_one",
        "privacy_unit": "one letter",
        "budget": {"epsilon": 3.0, "delta": 1e-5},
    }


def test_start_run_sends_what_was_given_only(service: FakeService, client: Client) -> None:
    plan = [dp.event(mechanism=dp.no_noise(), sampling=dp.full(), steps=2)]
    client.start_run("run", "letters", delta=1e-5, plan=plan, labels={"team": "a"})
    body = service.bodies("/v1/runs")[0]
    assert body.pop("writer")
    assert body == {
        "name": "run",
        "dataset": "letters",
        "delta": 1e-5,
        "release": "every_step",
        "plan": plan,
        "labels": {"team": "a"},
    }


def test_a_second_process_continues_on_a_branch(service: FakeService, client: Client) -> None:
    first = client.start_run("run", "letters", mode="observe")
    with pytest.raises(dp.RunExists):
        client.start_run("run", "letters")
    first.step(mechanism=dp.no_noise(), sampling=dp.full(), steps=9)
    first.finish()
    run = client.start_run("run", "letters", state=dp.state_at("run", "letters", next_step=7))
    assert (run.branch.startswith("from-7-"), run.next_step) == (True, 7)
    other = client.start_run("run", "letters", state=dp.state_at("run", "letters", next_step=7))
    assert other.branch != run.branch


def test_lists_are_read_page_after_page(service: FakeService, client: Client) -> None:
    for noun, first, token in (("datasets", "a", "t1"), ("runs", "b", "t2")):
        one = {noun: [{"name": first}], "next_page_token": token}
        two = {noun: [{"name": "z"}], "next_page_token": None}
        service.faults.extend([answering(httpx.Response(200, json=page)) for page in (one, two)])
    assert [each["name"] for each in client.datasets()] == ["a", "z"]
    assert [each["name"] for each in client.runs(dataset="letters")] == ["b", "z"]
    assert [dict(request.url.params) for request in service.requests] == [
        {},
        {"page_token": "t1"},
        {"dataset": "letters"},
        {"dataset": "letters", "page_token": "t2"},
    ]


def test_reads_ask_the_path_of_the_contract(service: FakeService, client: Client) -> None:
    client.start_run("run", "letters", dataset_size=1000)
    service.requests.clear()
    client.run("run")
    client.dataset("letters")
    client.dataset_guarantee("letters", epsilon=1.0)
    client.ledger("run")
    client.history("run", points=5)
    answer = client.guarantee("run", delta=1e-6, accountant="rdp")
    assert answer["query"] == {"delta": "1e-06", "accountant": "rdp"}
    assert service.paths == [
        "/v1/runs/run",
        "/v1/datasets/letters",
        "/v1/datasets/letters/guarantee",
        "/v1/runs/run/ledger",
        "/v1/runs/run/history",
        "/v1/runs/run/guarantee",
    ]


def test_plan_and_bounds(service: FakeService, client: Client) -> None:
    service.faults.extend(
        [
            answering(httpx.Response(200, json={"epsilon": 1.0})),
            answering(httpx.Response(200, json={"bounds": [{"id": "gdp"}]})),
        ]
    )
    events = [dp.event(mechanism=dp.gaussian(noise_multiplier=2), sampling=dp.full(), steps=3)]
    planned = client.plan(
        neighboring_relation="replace_one", events=events, delta=1e-5, release="last_iterate"
    )
    assert planned == {"epsilon": 1.0}
    assert client.bounds() == [{"id": "gdp"}]
    assert json.loads(service.requests[0].content) == {
        "neighboring_relation": "replace_one",
        "events": events,
        "delta": 1e-5,
        "release": "last_iterate",
    }


def test_a_run_of_the_service_that_the_environment_names(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPLEDGER_URL", "http://ledger.example")
    made: list[Client] = []

    def connected() -> Client:
        made.append(Client(transport=httpx.MockTransport(service)))
        return made[0]

    monkeypatch.setattr("dpledger_client.client.Client", connected)
    run = dp.start_run("run", "letters", labels={"team": "a"}, mode="observe")
    run.finish()
    assert run.url == "http://ledger.example/v1/runs/run"
    assert service.bodies("/v1/runs")[0]["labels"] == {"team": "a"}


def test_a_key_without_a_scope_for_it_opens_nothing(
    service: FakeService, client: Client, spool: Path
) -> None:
    for slug, kind in (("forbidden", dp.Forbidden), ("not-found", dp.NotFound)):
        service.faults.append(answering(problem(slug, 403)))
        with pytest.raises(kind):
            client.start_run("run", "letters")
    assert not spool.exists()


def test_everything_exported_exists() -> None:
    assert dp.__all__ == sorted(dp.__all__)
    assert all(hasattr(dp, name) for name in dp.__all__)


def test_only_public_names_are_listed() -> None:
    assert dir(dp) == dp.__all__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = dp.nothing


def test_the_types_of_the_package_are_those_that_it_loads() -> None:
    tree = ast.parse(inspect.getsource(dp))
    typed = {
        alias.name: str(one.module)
        for one in ast.walk(tree)
        if isinstance(one, ast.ImportFrom) and str(one.module).startswith("dpledger_client.")
        for alias in one.names
    }
    homes = {
        name: f"dpledger_client.{home}"
        for home, names in dp._HOMES.items()
        for name in names.split()
    }
    assert typed == homes
    assert set(homes) | set(dp._MODULES) == set(dp.__all__)


def test_the_function_has_the_arguments_and_the_help_of_the_method() -> None:
    ours = list(inspect.signature(Client.start_run).parameters.values())[1:]
    assert list(inspect.signature(dp.start_run).parameters.values()) == ours
    assert all(one.annotation is not inspect.Parameter.empty for one in ours)
    told = pydoc.render_doc(dp.start_run)
    for one in ours:
        assert f"    {one.name}: " in told, one.name


def test_a_run_without_a_name_gets_one(service: FakeService, client: Client) -> None:
    names = {client.start_run(None, "letters", mode="strict").name for _ in range(2)}
    assert len(names) == 2
    assert all(re.fullmatch(r"letters-\d{8}-[0-9a-f]{8}", name) for name in names)
    long = client.start_run(None, "l" * 63, mode="strict").name
    assert len(long) <= 63


@pytest.mark.parametrize(
    "given",
    [{"resume": "allow"}, {"state": dp.state_at("a", "letters", next_step=0)}, {"world_size": 2}],
)
def test_a_run_that_others_must_find_has_a_name(client: Client, given: Any) -> None:
    with pytest.raises(ValueError, match="Give a name"):
        client.start_run(None, "letters", **given)


def test_a_run_in_a_notebook_shows_its_band(service: FakeService, client: Client) -> None:
    run = client.start_run("run", "letters", mode="observe")
    points = [{"steps": 3, "epsilon": 0.5, "epsilon_lower": None, "sequence": 1}]
    history = {"run": "run", "delta": 1e-5, "points": points}
    service.faults.append(answering(httpx.Response(200, json=history)))
    shown = run._repr_html_()
    assert "<svg" in shown
    assert "epsilon at most 0.5000 after 3 steps" in shown
    service.away = True
    assert "<table>" in run._repr_html_()  # and it does not wait
    service.away = False
    run.finish()
