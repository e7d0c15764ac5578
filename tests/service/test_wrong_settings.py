"""What commands say of settings that are wrong, and of options that they have."""

from typing import Final

import pytest
from typer.testing import CliRunner

from service.cli.main import app
from tests.service.test_cli import cause

RUNNER: Final = CliRunner()


@pytest.mark.parametrize("group", ["keys", "requests", "incidents", "signing-key"])
def test_a_group_of_commands_offers_no_option_of_the_shell(group: str) -> None:
    assert "completion" not in RUNNER.invoke(app, [group, "--help"]).stdout


WRONG_SETTINGS: Final = {
    "DPLEDGER_ROLE": "both",
    "DPLEDGER_BUDGET_THRESHOLDS": "0.5,2",
    "DPLEDGER_DATABASE_PASSWORD_FILE": "/missing",
    "DPLEDGER_KEY_BODY_BYTES_MAX": "1",
}


def test_a_setting_out_of_range_is_named() -> None:
    said = cause(RUNNER.invoke(app, ["serve", "--port", "99999"]))
    assert said == "DPLEDGER_PORT: must be a number from 0 to 65,535."
    result = RUNNER.invoke(app, ["migrate"], env={"DPLEDGER_BUSY_TIMEOUT_SECONDS": "nan"})
    assert cause(result).startswith(
        "DPLEDGER_BUSY_TIMEOUT_SECONDS: must be a number from 0.1 to 60"
    )
    for variable, value in WRONG_SETTINGS.items():
        result = RUNNER.invoke(app, ["migrate"], env={variable: value})
        assert cause(result).startswith(f"{variable}: ")
