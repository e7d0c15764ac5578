"""Both wheels, built and installed once."""

import subprocess
import sys
from pathlib import Path

import pytest

from deploy.release import release


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("wheels")
    for package in release.PACKAGES:
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
        subprocess.run(command, cwd=package, check=True, capture_output=True, timeout=240)
    return sorted(folder.iterdir())


@pytest.fixture(scope="session")
def installed(wheels: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with nothing but an environment that holds both wheels."""
    folder = tmp_path_factory.mktemp("installed")
    release.install(folder, wheels)
    assert [one.name for one in folder.iterdir()] == [".venv"]
    return folder
