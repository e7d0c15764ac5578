"""Both wheels, installed into an empty folder: README.md's session runs to its last line."""

from pathlib import Path

import pytest

from deploy.release import release, session

README = session.README.read_text(encoding="utf-8")


def test_the_session_runs_to_its_last_line(installed: Path) -> None:
    printed = session.follow(installed, README)
    assert printed[0].startswith("epsilon 2.37955")
    assert any(line.startswith("noise_multiplier 1.") for line in printed)
    assert printed[-1] == "nothing is broken"
    library = installed / ".venv" / "lib"
    assert next(library.rglob("service/py.typed"))  # it is the wheel that was tried
    assert untracked(installed) == {".local/", "serve.log"}  # of a home, and of this test
    broken = README.replace("certificate.json --public-key", "ledger.json --public-key")
    assert broken != README
    second = installed / "second"
    second.mkdir()
    (second / ".venv").symlink_to(installed / ".venv")
    with pytest.raises(session.SessionError, match="verify"):
        session.follow(second, broken)


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
