"""A certificate is verified where there is only the wheel: no sources, database or network."""

import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path
from typing import Final

import pytest

from service.transparency.signing import Signer
from tests.service.certifying import certificate_of, resealed, signer_of

ROOT: Final = Path(__file__).parents[1]
# Python tells its audit hooks before it opens a connection or a database: there is none here.
GUARD: Final = """
import sys

def refuse(event, arguments):
    if event.startswith(("socket.", "sqlite3.")) and event != "socket.__new__":
        raise RuntimeError(f"offline, and yet {event}")

sys.addaudithook(refuse)
"""


@pytest.fixture(scope="module")
def signer(tmp_path_factory: pytest.TempPathFactory) -> Signer:
    return signer_of(tmp_path_factory.mktemp("key"))


@pytest.fixture(scope="module")
def raw(signer: Signer, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return certificate_of(tmp_path_factory.mktemp("certified"), signer)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel in it, and what the wheel requires."""
    folder = tmp_path_factory.mktemp("machine")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=240)
    venv.create(folder / "venv", symlinks=True)
    (packages,) = (folder / "venv").glob("lib/python*/site-packages")
    with zipfile.ZipFile(next(folder.glob("dpledger-*.whl"))) as wheel:
        wheel.extractall(packages)
    # The folder itself, not what its .pth files add: the sources are not among it.
    (packages / "required.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    (packages / "sitecustomize.py").write_text(GUARD)
    return folder / "venv" / "bin" / "python"


def run(machine: Path, folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [str(machine), *words]
    environment = {"OPENBLAS_NUM_THREADS": "1", "HOME": str(folder)}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240,
        check=False,
    )  # fmt: skip


def verify(machine: Path, file: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    start = "from service.cli.main import main; main()"
    return run(machine, file.parent, "-c", start, "verify", file.name, *words)


def test_the_environment_has_the_wheel_and_not_the_sources(machine: Path, tmp_path: Path) -> None:
    done = run(machine, tmp_path, "-c", "import sys, service; print(service.__file__, sys.path)")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(machine.parents[1]))
    assert str(ROOT) not in done.stdout.replace(sysconfig.get_paths()["purelib"], "")
    for word in ("import socket; socket.create_connection(('127.0.0.1', 9))",
                 "import sqlite3; sqlite3.connect('x')"):  # fmt: skip
        assert "offline" in run(machine, tmp_path, "-c", word).stderr


def test_a_certificate_verifies_there(
    machine: Path, raw: bytes, signer: Signer, tmp_path: Path
) -> None:
    file = tmp_path / "certificate.json"
    file.write_bytes(raw)
    done = verify(machine, file, "--public-key", signer.public_key)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "checked: delta 1e-05, rdp: [" in done.stdout


def test_a_changed_one_does_not(machine: Path, raw: bytes, signer: Signer, tmp_path: Path) -> None:
    file = tmp_path / "certificate.json"
    file.write_bytes(raw.replace(b'"steps":100', b'"steps":101', 1))
    done = verify(machine, file, "--public-key", signer.public_key)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "the signature is not that of the key it names" in done.stderr

    def lie(certificate: dict[str, object]) -> None:
        certificate["model_sha256"] = "ab" * 32

    file.write_bytes(resealed(raw, signer, lie))
    done = verify(machine, file, "--public-key", signer.public_key)
    assert done.returncode == 1
    assert "log.path" in done.stderr
