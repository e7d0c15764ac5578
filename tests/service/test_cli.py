"""The command line: one answer or one line of cause, and a service that ends well."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from sqlalchemy import Engine, text
from typer.testing import CliRunner, Result

import accounting
from benchmarks.servers import START_TOKEN, free_port
from service.cli.main import app
from service.identity.keys import digest_of
from service.settings import Settings
from service.storage.engine import connect, transaction
from tests.conftest import AS_ADMIN
from tests.service.dumps import dump
from tests.service.samples import BUDGET, Json, append, dataset, event, run, setup
from tests.service.sockets import Talk, request
from tests.service.sse import until

ANYWHERE: Final = "0.0.0.0"  # noqa: S104 (it is what must be refused)
DOCUMENT: Json = {
    "format": "dpledger/1",
    "neighboring_relation": "add_or_remove_one",
    "dataset_size": 60000,
    "events": [
        {
            "steps": 14040,
            "mechanism": {"kind": "gaussian", "noise_multiplier": 1.1},
            "sampling": {"kind": "poisson", "expected_batch_size": 256},
        }
    ],
}


def command(*words: object) -> Result:
    result: Result = CliRunner().invoke(app, [str(word) for word in words])
    return result


def cause(result: Result) -> str:
    """The one line that a refused command says."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    return str(result.stderr.strip())


@pytest.fixture
def ledger(tmp_path: Path) -> Callable[[object], Path]:
    """Write a ledger document, or any other bytes."""

    def write(content: object) -> Path:
        file = tmp_path / "ledger.json"
        raw = content if isinstance(content, bytes) else json.dumps(content).encode()
        file.write_bytes(raw)
        return file

    return write


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    """A database that does not exist yet."""
    return f"sqlite:///{tmp_path / 'ledger.db'}"


def test_epsilon_is_answered_as_json(ledger: Callable[[object], Path]) -> None:
    result = command("epsilon", ledger(DOCUMENT), "--delta", "1e-5", "--json")
    assert result.exit_code == 0
    answer = json.loads(result.stdout)
    assert answer["epsilon"] == pytest.approx(2.3795545288, rel=1e-6)
    assert answer["epsilon"] * (1 - 1e-5) <= answer["epsilon_lower"] <= answer["epsilon"]
    assert (answer["delta"], answer["steps"], answer["status"]) == (1e-5, 14040, "published")


def test_epsilon_is_answered_as_a_table_and_never_rounded_down(
    ledger: Callable[[object], Path],
) -> None:
    result = command("epsilon", ledger(DOCUMENT), "--delta", "1e-5")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    rows = {line.split()[0]: line.split()[1] for line in lines}
    assert rows["epsilon"] == "2.37956"
    assert rows["epsilon_lower"] == "2.37955"
    assert rows["delta"] == "1e-05"
    assert rows["bound"] == "poisson-gaussian"
    (unamplified,) = [line for line in lines if line.startswith(" unamplified")]
    assert unamplified.endswith(" (epsilon if every batch had held every record)")
    assert rows["alternative"] > rows["epsilon"]
    assert lines[-1].startswith("The guarantee is epsilon; each alternative is what another ")
    assert '"unamplified" is' in " ".join(command("epsilon", "--help").stdout.split())


def test_epsilon_of_a_document_is_that_of_the_service(
    api: httpx.Client, ledger: Callable[[object], Path]
) -> None:
    setup(api, dataset_given={"budget": BUDGET}, labels={"a": "é"}, assumptions={"b": 1.5})
    append(api, event(0, 100), event(100, 10, sampling={"kind": "full"}))
    api.post(
        "/v1/runs/run/branches",
        json={"name": "b", "writer": "writer-of-the-tests-1", "from_step": 50},
    )
    append(api, event(50, 7), branch="b")
    document = ledger(api.get("/v1/runs/run/ledger").content)
    for accountant in ("best", "pld", "rdp", "gdp"):
        result = command(
            "epsilon", document, "--delta", "1e-5", "--accountant", accountant, "--json"
        )
        asked = {"delta": "1e-5", "accountant": accountant}
        answer = api.get("/v1/runs/run/guarantee", params=asked).json()
        assert json.loads(result.stdout) == answer | {"sequence": 0}


def test_a_refusal_that_was_saved_in_place_of_a_ledger_is_said(
    api: httpx.Client, ledger: Callable[[object], Path]
) -> None:
    refused = ledger(api.get("/v1/runs/none/ledger").json())
    said = cause(command("epsilon", refused, "--delta", "1e-5"))
    assert said == f"{refused}: the service refused the request: Not found. There is no such run."


def test_a_document_without_a_bound_says_why(ledger: Callable[[object], Path]) -> None:
    none = DOCUMENT["events"][0] | {"mechanism": {"kind": "none"}}
    result = command("epsilon", ledger(DOCUMENT | {"events": [none]}), "--delta", "1e-5")
    assert result.exit_code == 0
    assert "none:" in result.stdout


def changed(**given: Any) -> Json:
    return DOCUMENT | {"events": [DOCUMENT["events"][0] | given]}


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "ledger.json: not JSON at character 0"),
        (b"{", "ledger.json: not JSON"),
        (b"\xff\xfe", "ledger.json: not UTF-8"),
        (b'{"a": NaN}', "ledger.json: not a JSON number"),
        (b'{"a": 1, "a": 1}', "repeats a key"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[]", "ledger.json: "),
        (DOCUMENT | {"format": "dpledger/2"}, "format: "),
        (DOCUMENT | {"surplus": 1}, "surplus: unknown field"),
        (DOCUMENT | {"a\nb\x1b[2J": 1}, "unknown field"),
        (DOCUMENT | {"neighboring_relation": "other"}, "neighboring_relation: "),
        (DOCUMENT | {"dataset_size": 100}, "events[0].sampling.expected_batch_size: "),
        (DOCUMENT | {"dataset_size": None}, "needs a dataset_size"),
        (changed(steps=True), "events[0].steps: "),
        (changed(steps=0), "events[0].steps: "),
        (changed(first_step=5), "events[0].first_step: must be 0"),
        (changed(mechanism={"kind": "gaussian", "noise_multiplier": "1"}), "noise_multiplier: "),
        (changed(mechanism={"kind": "secret"}), "events[0].mechanism: kind must be one of"),
    ],
)
def test_a_document_that_cannot_be_read_is_refused_with_its_place(
    ledger: Callable[[object], Path], content: object, named: str
) -> None:
    said = cause(command("epsilon", ledger(content), "--delta", "1e-5"))
    assert named in said
    assert "secret" not in said


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    said = cause(command("epsilon", tmp_path / "missing.json", "--delta", "1e-5"))
    assert "missing.json: No such file" in said
    assert "Is a directory" in cause(command("epsilon", tmp_path, "--delta", "1e-5"))


@pytest.mark.parametrize("delta", ["nan", "0", "1", "-1", "inf", "2", "1e-400"])
def test_a_delta_outside_its_range_is_refused(ledger: Callable[[object], Path], delta: str) -> None:
    assert "--delta" in cause(command("epsilon", ledger(DOCUMENT), "--delta", delta))


def test_an_unknown_accountant_is_refused(ledger: Callable[[object], Path]) -> None:
    said = cause(command("epsilon", ledger(DOCUMENT), "--delta", "1e-5", "--accountant", "unknown"))
    assert said.startswith("--accountant: ")
    assert "rdp" in said


@pytest.mark.parametrize("words", [["--delta", "abc"], []])
def test_a_command_misused_is_told_its_usage(
    ledger: Callable[[object], Path], words: list[str]
) -> None:
    result = command("epsilon", ledger(DOCUMENT), *words)
    assert result.exit_code == 2
    assert "--delta" in result.stderr


def test_bounds_lists_the_registry() -> None:
    listed = json.loads(command("bounds", "--json").stdout)
    assert [bound["id"] for bound in listed] == [theorem.id for theorem in accounting.THEOREMS]
    table = command("bounds")
    assert table.exit_code == 0
    assert all(bound["id"] in table.stdout for bound in listed)


def test_keys_are_created_listed_and_revoked_on_a_fresh_file(file_url: str) -> None:
    there = ("--database", file_url)
    name = "n" * 63
    created = command("keys", "create", "--scope", "trainer", "--name", name, *there)
    secret = created.stdout.strip()
    assert created.exit_code == 0
    listed = command("keys", "list", *there).stdout
    fields = listed.splitlines()[1].split("\t")
    assert fields[:2] == [name, "trainer"]
    assert fields[2] == f"{secret[:12]}..."
    assert fields[4] == ""
    assert secret not in listed
    engine = connect(file_url)
    assert digest_of(secret) in repr(dump(engine))
    engine.dispose()
    assert command("keys", "revoke", name, *there).exit_code == 0
    assert command("keys", "list", *there).stdout.splitlines()[1].split("\t")[4] != ""


def test_keys_refuses_what_it_cannot_do(file_url: str) -> None:
    there = ("--database", file_url)
    create = ("keys", "create", "--scope", "viewer", "--name")
    assert command(*create, "one", *there).exit_code == 0
    assert "already exists" in cause(command(*create, "one", *there))
    assert "--name" in cause(command(*create, "A B", *there))
    assert "--scope" in cause(command("keys", "create", "--scope", "root", "--name", "two", *there))
    assert "no such key" in cause(command("keys", "revoke", "two", *there))


COMMANDS = [["migrate"], ["keys", "list"], ["serve", "--port", "0"]]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_database_that_cannot_be_used_is_refused_in_one_line(
    words: list[str], tmp_path: Path
) -> None:
    (tmp_path / "text").write_text("not a database " * 100, encoding="utf-8")
    absent = "no such file" if words == ["keys", "list"] else "unable to open"
    for url, named in {
        "anything": "DPLEDGER_DATABASE_URL",
        "mysql://here/name": "DPLEDGER_DATABASE_URL",
        "sqlite://": "DPLEDGER_DATABASE_URL",
        f"sqlite:///{tmp_path}/missing/ledger.db": absent,
        f"sqlite:///{tmp_path}/text": "not a database",
        f"postgresql://nobody@127.0.0.1:{free_port()}/name": "refused",
    }.items():
        assert named in cause(command(*words, "--database", url))


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_database_of_another_version_is_refused(words: list[str], file_url: str) -> None:
    assert command("migrate", "--database", file_url).exit_code == 0
    assert command("migrate", "--database", file_url).exit_code == 0
    engine = connect(file_url)
    with transaction(engine) as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = 'zzz'"))
    assert "zzz" in cause(command(*words, "--database", file_url))
    with transaction(engine) as connection:
        left = connection.scalar(text("SELECT version_num FROM alembic_version"))
    engine.dispose()
    assert left == "zzz"


def test_serving_others_needs_a_key(tmp_path: Path) -> None:
    ledger, file = tmp_path / "ledger", tmp_path / "key"
    ledger.mkdir()
    database = f"sqlite:///{ledger / 'ledger.db'}"
    words = ("serve", "--host", ANYWHERE, "--port", "0", "--database", database)
    assert "dpledger keys create" in cause(command(*words))
    for content in (b"short", b"\xff\xfe" * 50):
        file.write_bytes(content)
        result = CliRunner().invoke(app, words, env={"DPLEDGER_ADMIN_KEY_FILE": str(file)})
        assert cause(result).startswith("DPLEDGER_ADMIN_KEY_FILE: ")
    missing = {"DPLEDGER_ADMIN_KEY_FILE": str(tmp_path / "missing")}
    assert "missing" in cause(CliRunner().invoke(app, words, env=missing))
    assert list(ledger.iterdir()) == []  # nothing was begun
    assert command("migrate", "--database", database).exit_code == 0
    assert "dpledger keys create" in cause(command(*words))


READING: Final = [
    ["keys", "list"], ["keys", "rotate", "a"], ["keys", "revoke", "a"], ["audit"], ["backup", "to"],
    ["restate", "--dry-run"], ["recover", "--reason", "r"], ["as-new-ledger", "--reason", "r"],
]  # fmt: skip


@pytest.mark.parametrize("words", READING, ids=" ".join)
def test_a_ledger_that_is_not_there_is_not_begun_by_who_would_read_it(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = cause(command(*words, "--database", "sqlite:///typo.db"))
    assert said == "typo.db: there is no such file."
    assert list(tmp_path.iterdir()) == []


def test_a_variable_without_a_value_names_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [name for name in Settings.model_fields if name.endswith("_file")]
    assert len(names) == 7
    for name in names:
        monkeypatch.setenv(f"DPLEDGER_{name.upper()}", "")
    found = Settings()
    assert [getattr(found, name) for name in names] == [None] * len(names)
    assert found.database_address == found.database_url


class Served:
    """`dpledger serve` as a process of its own."""

    def __init__(self, database_url: str) -> None:
        self.port = free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "service.cli.main", "serve", "--port", str(self.port)],
            env=os.environ | {"DPLEDGER_DATABASE_URL": database_url},
            stderr=subprocess.PIPE,
        )
        deadline = time.monotonic() + 120
        while not self.listens():
            assert time.monotonic() < deadline, "The service did not start."
            time.sleep(0.05)

    def listens(self) -> bool:
        """Whether it takes a new connection, and is ready."""
        try:
            return httpx.get(f"{self.address}/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def log(self) -> list[Json]:
        """What it logged, once it has ended."""
        _, errors = self.process.communicate(timeout=120)
        return [json.loads(line) for line in errors.splitlines()]


@pytest.fixture
def served(database_url: str) -> Iterator[Served]:
    found = Served(database_url)
    yield found
    found.process.kill()
    found.process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_service_told_to_stop_finishes_what_it_accepted(
    served: Served, engine: Engine, number: signal.Signals
) -> None:
    with httpx.Client(base_url=served.address, headers=AS_ADMIN) as api:
        api.post("/v1/datasets", json=dataset())
        api.post("/v1/runs", json=run())
    body = json.dumps({"events": [event(0, 7)]}).encode()
    headers = [b"Content-Type: application/json", b"Content-Length: %d" % len(body)]
    head = request("POST", "/v1/runs/run/events", headers, end=True)
    with Talk(served.address) as talk:
        talk.send(request("GET", "/healthz"))
        assert talk.answer() is not None  # the connection was taken
        talk.send(head + body[:10])
        served.process.send_signal(number)
        until(lambda: not served.listens())
        talk.send(body[10:])
        (answer,) = talk.answers()
    assert answer.status == 201
    assert served.process.wait(timeout=120) == 0
    assert [row[5] for row in dump(engine)["entries"]] == [7]


def test_every_line_of_the_log_is_json_and_names_its_request(served: Served) -> None:
    with httpx.Client(base_url=served.address, headers=AS_ADMIN) as api:
        ids = [
            api.get("/v1/runs").headers["x-request-id"],
            api.get("/v1/runs/a%0Ab").headers["x-request-id"],
            api.post("/v1/plan", content=b"{").headers["x-request-id"],
        ]
    served.process.send_signal(signal.SIGTERM)
    lines = served.log()
    for line in lines:
        assert {"time", "level", "logger", "message"} <= set(line)
    requests = {line["request_id"]: line for line in lines if line["message"] == "request"}
    found = [(requests[i]["method"], requests[i]["path"], requests[i]["status"]) for i in ids]
    assert found == [
        ("GET", "/v1/runs", 200), ("GET", "/v1/runs/a\nb", 422), ("POST", "/v1/plan", 415),
    ]  # fmt: skip
    assert all(requests[i]["milliseconds"] > 0 for i in ids)
    assert any("no API key was created yet" in line["message"] for line in lines)
    assert START_TOKEN not in repr(lines)
