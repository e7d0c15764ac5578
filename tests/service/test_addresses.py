"""A database's address that is none is refused without a word of it: it may hold a password."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from service.cli.main import app
from service.errors import StartupError
from service.settings import ADDRESS_FORMS, Settings, address_of
from service.storage.engine import connect

# Who forgets that an @ must be quoted has a part of the password where the port should be.
WRONG = "postgresql://dpledger@host:hunter2/ledger"


@pytest.mark.parametrize("url", [WRONG, "no address but hunter2"])
def test_an_address_that_is_none_is_not_repeated(url: str, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("secret")
    for opened in (
        lambda: address_of(url),
        lambda: connect(url),
        lambda: Settings(database_url=url).signing_key_path,
        lambda: Settings(database_url=url, database_password_file=password).database_address,
    ):
        with pytest.raises(StartupError) as refusal:
            opened()
        assert str(refusal.value) == ADDRESS_FORMS
        assert refusal.value.__suppress_context__


@pytest.mark.parametrize(
    "command", [["serve", "--port", "0", "--database"], ["verify"], ["doctor", "--database"]]
)
def test_no_command_repeats_it(command: list[str]) -> None:
    result = CliRunner().invoke(app, [*command, WRONG])
    assert result.exit_code != 0
    assert "hunter2" not in result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
