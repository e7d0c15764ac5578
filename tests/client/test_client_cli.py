"""The command line of a training machine, as a user types it."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import dpledger_client as dp
import httpx
import pytest
from dpledger_client import Client
from dpledger_client.cli import main

from tests.client.fake_service import FakeService
from tests.client.samples import start, step
from tests.client.test_sync import copied, killed

COMMAND = Path(sys.executable).parent / "dpledger-client"
Shown = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def connected(service: FakeService, monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """The addresses that the command connected to; each of them is the service in memory."""
    addresses: list[str | None] = []

    def client(url: str | None) -> Client:
        addresses.append(url)
        return Client(url, transport=httpx.MockTransport(service), retries=1)

    monkeypatch.setattr("dpledger_client.cli.Client", client)
    return addresses


def left(client: Client, name: str = "run", steps: int = 3) -> Path:
    """The spool of a trainer that was killed."""
    run = start(client, name=name)
    step(run, steps=steps)
    return killed(run)


def test_sync_sends_the_usual_folder(
    service: FakeService, client: Client, capsys: Shown, connected: list[str | None]
) -> None:
    one, two = left(client, "a"), left(client, "b", 4)
    assert main(["sync"]) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines() == [
        f"{one}: run a, branch main: 3 steps",
        f"{two}: run b, branch main: 4 steps",
    ]
    assert shown.err == ""
    assert (service.recorded, service.held) == (7, 0)
    assert connected == [None]
    assert main(["sync"]) == 0
    assert capsys.readouterr().out == ""


def test_sync_sends_what_is_named_to_the_address_that_is_named(
    service: FakeService, client: Client, tmp_path: Path, connected: list[str | None]
) -> None:
    left(client, "a")
    copy = copied(left(client, "b"), tmp_path / "usb")
    url = "https://ledger.example"
    assert main(["sync", str(copy), "--url", url]) == 0
    assert connected == [url]
    assert service.recorded == 3


def test_sync_tells_of_a_copy_that_its_leases_are_kept(
    service: FakeService, client: Client, tmp_path: Path, capsys: Shown
) -> None:
    copy = copied(left(client), tmp_path / "usb")
    assert main(["sync", str(tmp_path / "usb")]) == 0
    assert "leases are kept" in capsys.readouterr().out
    assert (service.recorded, service.held) == (3, 61)
    assert main(["sync", str(copy), "--ended"]) == 0
    assert "leases are kept" not in capsys.readouterr().out
    assert (service.recorded, service.held) == (3, 0)


def test_sync_names_what_it_could_not_send_and_sends_the_rest(
    service: FakeService, client: Client, spool: Path, capsys: Shown
) -> None:
    path = left(client)
    (spool / "bad.spool").write_text("{}\n")
    assert main(["sync"]) == 1
    shown = capsys.readouterr()
    assert shown.out.splitlines() == [f"{path}: run run, branch main: 3 steps"]
    assert shown.err.startswith(f"dpledger-client: {spool / 'bad.spool'}, line 1: ")
    assert service.recorded == 3


def test_sync_without_the_service_leaves_something_to_do(
    service: FakeService, client: Client, capsys: Shown
) -> None:
    path = left(client)
    service.away = True
    assert main(["sync"]) == 1
    shown = capsys.readouterr()
    assert shown.err == (
        f"dpledger-client: {path}: http://127.0.0.1:8000 did not answer: ConnectError refused. "
        "Is `dpledger serve` running there? DPLEDGER_URL names another address.\n"
    )


def test_a_trainer_that_runs_is_left_alone(
    service: FakeService, client: Client, capsys: Shown
) -> None:
    run = start(client)
    step(run)
    assert main(["sync"]) == 1
    assert "still runs" in capsys.readouterr().err
    assert main(["show"]) == 0
    assert capsys.readouterr().out == f"{run.spool}: run run, 1 steps, its trainer runs\n"
    assert service.recorded == 0


def test_show_tells_what_is_there_and_sends_nothing(
    service: FakeService, client: Client, capsys: Shown, spool: Path
) -> None:
    run = start(client, name="a")
    step(run, steps=2)
    run.finish()
    path = left(client, "b")
    (spool / "z.spool").touch()
    asked = len(service.requests)
    assert main(["show"]) == 1
    shown = capsys.readouterr()
    assert shown.out.splitlines() == [
        f"{run.spool}: run a, 2 steps, sent",
        f"{path}: run b, 3 steps, to be sent",
    ]
    assert shown.err == f"dpledger-client: {spool / 'z.spool'} is empty: no step was taken\n"
    assert len(service.requests) == asked


def test_steps_of_a_branch_are_counted_from_its_first(client: Client, capsys: Shown) -> None:
    left(client, "run", 5)
    run = start(client, state=dp.state_at("run", "letters", next_step=4))
    step(run)
    path = killed(run)
    assert main(["show", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: run run, 1 steps, to be sent\n"
    assert main(["sync", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: run run, branch {run.branch}: 1 steps\n"


@pytest.mark.parametrize("command", ["sync", "show"])
def test_where_nobody_trained_there_is_nothing_to_do(command: str, capsys: Shown) -> None:
    assert main([command]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("command", ["sync", "show"])
def test_a_spool_that_is_not_there_is_named(command: str, capsys: Shown, tmp_path: Path) -> None:
    missing = tmp_path / "missing.spool"
    assert main([command, str(missing)]) == 1
    assert str(missing) in capsys.readouterr().err


def test_an_address_that_is_none_is_bad_input(
    client: Client, capsys: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    left(client)
    monkeypatch.setattr("dpledger_client.cli.Client", Client)
    assert main(["sync", "--url", "ledger"]) == 2
    assert "base_url" in capsys.readouterr().err


@pytest.mark.parametrize("given", [[], ["send"], ["sync", "--force"], ["show", "--url", "x"]])
def test_what_is_no_command_is_bad_input(given: list[str], capsys: Shown) -> None:
    with pytest.raises(SystemExit) as ended:
        main(given)
    assert ended.value.code == 2
    assert "usage: dpledger-client" in capsys.readouterr().err


def typed(*given: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command as it is installed, in a shell of its own."""
    return subprocess.run(
        [COMMAND, *given], env={**os.environ, **environment}, capture_output=True, text=True,
        check=False, timeout=240,
    )  # fmt: skip


def test_the_installed_command_tells_what_it_does() -> None:
    done = typed("--help")
    assert done.returncode == 0
    assert all(command in done.stdout for command in ("sync", "show", "import"))


def test_the_installed_command_shows_and_fails_as_it_says(client: Client) -> None:
    path = left(client)
    done = typed("show")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{path}: run run, 3 steps, to be sent\n"
    done = typed("sync", "--url", "ledger")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1


def test_the_module_is_the_command(spool: Path) -> None:
    command: list[Any] = [sys.executable, "-m", "dpledger_client.cli", "show", spool / "none"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 1
    assert "No such file" in done.stderr
