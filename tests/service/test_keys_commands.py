"""The commands for keys, and the one that lists what was done."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine
from typer.testing import CliRunner, Result

from service.cli.main import app
from service.identity.keys import digest_of, list_keys, terms_of
from service.ledger.datasets import create_dataset
from service.schemas.requests import NewDataset
from service.storage import engine as engine_module
from service.storage.engine import connect, snapshot, transaction
from tests.service.samples import dataset

Command = Callable[..., Result]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@pytest.fixture
def command(url: str) -> Command:
    """Run a command on a fresh database."""

    def run(*words: str) -> Result:
        return CliRunner().invoke(app, [*words, "--database", url])

    return run


def lines(result: Result) -> list[dict[str, str]]:
    """A listing, by the names of its columns."""
    assert result.exit_code == 0, result.output
    head, *rows = result.stdout.splitlines()
    return [dict(zip(head.split("\t"), row.split("\t"), strict=True)) for row in rows]


def rows(url: str) -> list[Any]:
    engine = connect(url)
    with snapshot(engine) as connection:
        found = list_keys(connection)
    engine.dispose()
    return found


CREATE = ("keys", "create", "--scope", "trainer", "--name", "cluster-a")


def test_a_key_is_created_for_a_person(url: str, command: Command) -> None:
    assert command(*CREATE, "--person", "dana").exit_code == 0
    assert rows(url)[0].person == "dana"
    assert command("keys", "rotate", "cluster-a").exit_code == 0
    (line,) = lines(command("keys", "list"))
    assert line["person"] == "dana"
    for wrong in ("Dana Miller", "start-token", "d" * 64):
        refused = command(*CREATE[:-1], "other", "--person", wrong)
        assert refused.exit_code != 0
        assert "--person: " in refused.output


def test_a_key_is_created_on_terms_and_listed_with_them(url: str, command: Command) -> None:
    created = command(
        *CREATE, "--dataset", "letters", "--dataset", "digits", "--expires", "2999-01-31",
        "--requests-per-second", "100", "--body-bytes-max", "1000000",
    )  # fmt: skip
    assert created.exit_code == 0, created.output
    (key,) = created.stdout.split()
    (row,) = rows(url)
    terms = terms_of(row)
    assert terms.datasets == frozenset({"letters", "digits"})
    assert (terms.requests_per_second, terms.body_bytes_max) == (100.0, 1_000_000)
    assert terms.expires_at == datetime(2999, 1, 31, tzinfo=UTC)
    (line,) = lines(command("keys", "list"))
    assert line.pop("created").startswith("20")
    assert line == {
        "name": "cluster-a",
        "scope": "trainer",
        "key": f"{key[:12]}...",
        "revoked": "",
        "expires": "2999-01-31T00:00:00.000+00:00",
        "datasets": "digits,letters",
        "requests_per_second": "100",
        "body_bytes_max": "1000000",
        "old_secret_until": "",
        "person": "cluster-a",
    }


def test_a_key_without_terms_reaches_all_for_good(url: str, command: Command) -> None:
    assert command(*CREATE).exit_code == 0
    (line,) = lines(command("keys", "list"))
    assert (line["datasets"], line["expires"], line["requests_per_second"]) == ("all", "", "")
    assert terms_of(rows(url)[0]).datasets is None


def test_a_time_may_be_days_from_now(url: str, command: Command) -> None:
    before = datetime.now(UTC)
    assert command(*CREATE, "--expires", "30").exit_code == 0
    found = terms_of(rows(url)[0]).expires_at
    assert found is not None
    slack = timedelta(milliseconds=1)  # the text that is stored has milliseconds
    assert before - slack <= found - timedelta(days=30) <= datetime.now(UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2999-01-31T12:30", datetime(2999, 1, 31, 12, 30, tzinfo=UTC)),
        ("2999-01-31T12:30+02:00", datetime(2999, 1, 31, 10, 30, tzinfo=UTC)),
    ],
)
def test_a_time_may_be_a_moment(url: str, command: Command, text: str, expected: datetime) -> None:
    assert command(*CREATE, "--expires", text).exit_code == 0
    assert terms_of(rows(url)[0]).expires_at == expected


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (["--expires", "soon"], "--expires: must be days from now"),
        (["--expires", "0"], "--expires: must lie in the future"),
        (["--expires", "9" * 12], "--expires: must be days from now"),
        (["--expires", "2020-01-01"], "--expires: must lie in the future"),
        (["--dataset", "Letters"], "--dataset: must match"),
        (["--requests-per-second", "0"], "--requests-per-second: must lie in"),
        (["--requests-per-second", "nan"], "--requests-per-second: must lie in"),
        (["--body-bytes-max", "10"], "--body-bytes-max: must lie in"),
        (["--name", "command-line"], "--name: is reserved"),
        (["--scope", "admin", "--dataset", "letters"], "--dataset: an admin's key"),
    ],
)
def test_terms_that_cannot_be_are_refused_in_the_words_of_the_options(
    url: str, command: Command, words: list[str], cause: str
) -> None:
    assert command("migrate").exit_code == 0
    refused = command(*CREATE, *words)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr.startswith(cause)
    assert not lines(command("keys", "list"))


def test_a_key_is_rotated_and_the_listing_says_how_long_the_old_secret_works(
    url: str, command: Command
) -> None:
    old = command(*CREATE).stdout.strip()
    rotated = command("keys", "rotate", "cluster-a", "--grace-seconds", "60", "--expires", "90")
    assert rotated.exit_code == 0, rotated.output
    new = rotated.stdout.strip()
    (row,) = rows(url)
    assert (row.digest, row.previous_digest) == (digest_of(new), digest_of(old))
    (line,) = lines(command("keys", "list"))
    assert line["key"] == f"{new[:12]}..."
    ends = datetime.fromisoformat(line["old_secret_until"]) - datetime.now(UTC)
    assert timedelta(0) < ends <= timedelta(seconds=60)
    assert "no such key" in command("keys", "rotate", "cluster-b").stderr
    assert (
        "--grace-seconds: must lie in"
        in command("keys", "rotate", "cluster-a", "--grace-seconds", "-1").stderr
    )


def test_the_audit_lists_what_was_done_with_keys_and_with_a_dataset(
    url: str, command: Command
) -> None:
    secrets = [
        command(*CREATE).stdout.strip(),
        command("keys", "rotate", "cluster-a").stdout.strip(),
    ]
    assert command("keys", "revoke", "cluster-a").exit_code == 0
    found = lines(command("audit"))
    assert [(line["act"], line["by"]) for line in found] == [
        ("key_created", "command-line"),
        ("key_rotated", "command-line"),
        ("key_revoked", "command-line"),
    ]
    assert all(json.loads(line["content"])["name"] == "cluster-a" for line in found)
    assert not any(secret in command("audit").stdout for secret in secrets)
    assert [line["time"] for line in found] == sorted(line["time"] for line in found)
    engine = connect(url)
    with transaction(engine) as connection:
        new = NewDataset.model_validate(dataset("data"))
        create_dataset(connection, new, by="officer")
    engine.dispose()
    line, *_ = lines(command("audit", "--dataset", "data"))
    assert (line["act"], line["by"]) == ("dataset", "officer")
    refused = command("audit", "--dataset", "unknown")
    assert (refused.exit_code, refused.stderr) == (2, "There is no such dataset.\n")
    assert refused.stdout == ""


@pytest.mark.parametrize(
    "words",
    [
        ["audit"], ["audit", "--by", "x", "--entries"], ["keys", "list"], ["keys", "revoke", "x"],
        ["keys", "create", "--scope", "viewer", "--name", "x"], ["keys", "rotate", "x"],
        ["restate"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_command_leaves_no_connection_open(
    database_url: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Engine] = []
    ended: list[Engine] = []
    dispose = Engine.dispose

    def connected(*given: Any, **options: Any) -> Engine:
        made.append(connect(*given, **options))
        return made[-1]

    def disposed(engine: Engine) -> None:
        ended.append(engine)
        dispose(engine)

    monkeypatch.setattr(engine_module, "connect", connected)
    monkeypatch.setattr(Engine, "dispose", disposed)
    CliRunner().invoke(app, [*words, "--database", database_url])
    assert made
    assert set(made) <= set(ended)
