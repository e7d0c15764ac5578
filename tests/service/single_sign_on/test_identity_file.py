"""The identity file: what it may not say, and that the service does not start with it."""

from pathlib import Path

import pytest

from service.errors import StartupError
from service.identity.first_key import first_key
from service.identity.single_sign_on.configuration import read_configuration
from service.settings import Settings

PROVIDER = '[[provider]]\nname = "house"\nissuer = "https://login.example"\n'


def read(tmp_path: Path, text: str) -> None:
    path = tmp_path / "identity.toml"
    path.write_text(text)
    read_configuration(path)


def grant(*lines: str) -> str:
    return PROVIDER + "\n".join(["[[grant]]", 'provider = "house"', *lines]) + "\n"


def test_a_file_with_a_provider_and_a_grant_is_read(tmp_path: Path) -> None:
    read(tmp_path, grant('group = "officers"', 'role = "admin"'))
    read(tmp_path, grant('subject = "*"', 'role = "viewer"', 'datasets = ["scans"]'))
    read(tmp_path, PROVIDER.replace("https://login.example", "http://127.0.0.1:8080"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "provider"),
        ("[[provider", "TOML"),
        (PROVIDER.replace("https", "http"), "https://"),
        (PROVIDER.replace(".example", ".example?a=b"), "no query"),
        (PROVIDER.replace(".example", ".example?"), "no query"),
        (PROVIDER.replace(".example", ".example#"), "no query"),
        (PROVIDER.replace(".example", ".example\\n"), "no query"),
        (PROVIDER.replace("login", "user@login"), "no user"),
        (PROVIDER + 'colour = "red"\n', "colour"),
        (PROVIDER + "session_seconds = 59\n", "session_seconds"),
        (PROVIDER + "session_seconds = 43201\n", "session_seconds"),
        (PROVIDER + PROVIDER, "same name"),
        (PROVIDER + PROVIDER.replace("house", "other"), "same issuer"),
        (grant('group = "a"'), "role"),
        (grant('role = "admin"'), "group or a subject"),
        (grant('group = "a"', 'subject = "b"', 'role = "viewer"'), "group or a subject"),
        (grant('group = "a"', 'role = "king"'), "role"),
        (grant('group = "a"', 'role = "owner"'), "needs the datasets"),
        (grant('subject = "*"', 'role = "owner"', 'datasets = ["b"]'), "not every subject"),
        (grant('subject = "*"', 'role = "approver"'), "not every subject"),
        (grant('group = "a"', 'role = "admin"', 'datasets = ["b"]'), "cannot be limited"),
        (grant('group = "a"', 'role = "viewer"', "datasets = []"), "datasets"),
        (grant('group = "a"', 'role = "viewer"', 'datasets = ["B"]'), "datasets"),
        (grant('subject = "*"', 'role = "admin"'), "not every subject"),
        (grant('group = "a"', 'role = "viewer"').replace('r = "house"', 'r = "none"'), "none"),
    ],
)
def test_what_a_file_may_not_say(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(StartupError, match="DPLEDGER_IDENTITY_FILE") as refused:
        read(tmp_path, text)
    assert words in str(refused.value)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"DPLEDGER_IDENTITY_FILE: .*No such file"):
        read_configuration(tmp_path / "none.toml")


def test_identity_providers_are_enough_to_be_reached_by_others(tmp_path: Path) -> None:
    outside = {"host": "0.0.0.0", "database_url": "sqlite://"}  # noqa: S104
    with pytest.raises(StartupError, match="DPLEDGER_IDENTITY_FILE"):
        first_key(Settings(**outside))  # type: ignore[arg-type]
    assert first_key(Settings(**outside, identity_file=tmp_path / "identity.toml")) is None  # type: ignore[arg-type]
