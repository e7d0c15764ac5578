"""`dpledger probe`, the health check of the image."""

import pytest
from typer.testing import CliRunner

from deploy.release.session import free_port
from service.cli.main import app
from tests.service.test_light_commands import heavy, loaded

RUNNER = CliRunner()


def port_of(address: str) -> str:
    return address.rpartition(":")[2]


def test_a_ready_service_is_told(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    done = RUNNER.invoke(app, ["probe", "--port", port_of(address)])
    assert (done.exit_code, done.stdout) == (0, "ready\n")
    monkeypatch.setenv("DPLEDGER_PORT", port_of(address))
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")  # it is not asked
    assert RUNNER.invoke(app, ["probe"]).exit_code == 0


def test_a_service_that_is_not_ready_is_quoted(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.cli.probe._PATH", "/readyzz")
    done = RUNNER.invoke(app, ["probe", "--port", port_of(address)])
    assert done.exit_code == 1
    assert '"status":404' in done.stderr
    assert done.stderr.endswith("}\n")
    assert not done.stderr.endswith("\n\n")


def test_no_service_is_a_failure() -> None:
    done = RUNNER.invoke(app, ["probe", "--port", str(free_port())])
    assert done.exit_code == 1
    assert "does not answer at port" in done.stderr


def test_it_loads_nothing_of_the_service() -> None:
    command = ("probe", "--help")
    found = {one for one in heavy(loaded(*command)) if not one.startswith("rich")}
    assert found == set()  # the help is drawn by rich
