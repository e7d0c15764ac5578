"""Both wheels, installed into an empty folder: README.md's session runs to its last line."""

from pathlib import Path

import pytest

from deploy.release import release, session

README = session.README.read_text(encoding="utf-8")


def test_the_session_runs_to_its_last_line(wheels: list[Path], tmp_path: Path) -> None:
    release.install(tmp_path, wheels)
    assert [one.name for one in tmp_path.iterdir()] == [".venv"]
    printed = session.follow(tmp_path, README)
    assert printed[0].startswith("epsilon 2.37955")
    assert any(line.startswith("noise_multiplier 1.") for line in printed)
    assert printed[-1] == "nothing is broken"
    installed = tmp_path / ".venv" / "lib"
    assert next(installed.rglob("service/py.typed"))  # it is the wheel that was tried
    assert untracked(tmp_path) == {".local/", "serve.log"}  # of a home, and of this test
    broken = README.replace("certificate.json --public-key", "ledger.json --public-key")
    assert broken != README
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / ".venv").symlink_to(tmp_path / ".venv")
    with pytest.raises(session.SessionError, match="verify"):
        session.follow(tmp_path / "second", broken)


def untracked(folder: Path) -> set[str]:
    """What git would list of a folder in a clone of this repository."""
    ignored = (session.README.parent / ".gitignore").read_text(encoding="utf-8")
    (folder / ".gitignore").write_text(f"{ignored}.gitignore\n", encoding="utf-8")
    release.run("git", "init", "--quiet", folder=folder)
    listed = release.run("git", "status", "--short", folder=folder)
    return {line.removeprefix("?? ") for line in listed.splitlines()}


def test_the_client_alone_brings_httpx_and_nothing_of_the_service(
    wheels: list[Path], tmp_path: Path
) -> None:
    client = next(one for one in wheels if one.name.startswith("dpledger_client-"))
    python = release.install(tmp_path, [client])
    listed = release.run(python, "-m", "pip", "list", "--format", "freeze", folder=tmp_path)
    names = {line.partition("==")[0].lower().replace("_", "-") for line in listed.split()}
    expected = {"anyio", "certifi", "dpledger-client", "h11", "httpcore", "httpx", "idna"}
    assert names - {"pip", "setuptools", "typing-extensions"} == expected
    command = tmp_path / ".venv" / "bin" / "dpledger-client"
    assert "sync" in release.run(command, "--help", folder=tmp_path)
