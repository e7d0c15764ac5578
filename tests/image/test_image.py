"""The image of this tree: it is built for real, refuses without a key, serves, and stops."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from deploy.release.release import install
from deploy.release.session import README, follow_at, free_port, surroundings, wait_until_ready
from tests.image import containers
from tests.image.containers import Container, Image

BYTES_MAX: Final = 250 * 10**6  # on the base
USER: Final = 10001
WHY: Final = containers.missing()
pytestmark = pytest.mark.skipif(WHY is not None, reason=f"no image was built: it {WHY}")


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    yield from containers.built(tmp_path_factory.mktemp("image"))


@pytest.fixture
def container(image: Image, tmp_path: Path) -> Container:
    volume = tmp_path / "volume"  # as an engine makes one: empty, with the owner of /data
    volume.mkdir(mode=0o700)
    os.chown(volume, USER, USER)
    return Container(image, volume)


def test_its_settings_are_those_of_the_dockerfile(image: Image) -> None:
    settings: dict[str, Any] = image.settings
    assert settings["User"] == f"{USER}:{USER}"
    assert settings["Healthcheck"]["Test"] == ["CMD", "dpledger", "probe"]
    labels = settings["Labels"]
    assert labels["org.opencontainers.image.version"] == "0.1.0"
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert labels["org.opencontainers.image.base.name"] == "localhost/base"
    for name in ("backups", "data", "witness"):
        found = (image.root / name).stat()
        assert (found.st_uid, found.st_mode & 0o777) == (USER, 0o700)


def test_it_adds_at_most_250_megabytes_to_its_base(image: Image) -> None:
    print(f"{image.size() / 1e6:.1f} MB")  # noqa: T201
    assert image.size() <= BYTES_MAX


def test_without_a_key_it_refuses_and_says_which_command_makes_one(container: Container) -> None:
    refused = container.run()
    assert refused.returncode == 2
    found = re.search(r"dpledger (keys create [^\n`.]+)", refused.stderr)
    assert found, refused.stderr
    made = container.run(*found[1].split())
    assert made.returncode == 0, made.stderr
    assert made.stdout.startswith("dpl_")


def test_with_a_key_it_becomes_ready_on_a_read_only_root_and_stops(container: Container) -> None:
    key = container.run("keys", "create", "--scope", "admin", "--name", "admin").stdout.strip()
    port = str(free_port())
    with container.started(DPLEDGER_PORT=port) as process:
        address = f"http://127.0.0.1:{port}"
        assert container.run("probe", DPLEDGER_PORT=str(free_port())).returncode == 1
        wait_until_ready(address)
        assert container.run("probe", DPLEDGER_PORT=port).stdout == "ready\n"
        status = Path(f"/proc/{containers.first_child(process)}/status").read_text()
        assert re.search(rf"^Uid:\t{USER}\t{USER}\t{USER}\t{USER}$", status, re.MULTILINE)
        assert re.search(r"^CapEff:\t0+$", status, re.MULTILINE)
        headers = {"Authorization": f"Bearer {key}"}
        dataset = {
            "name": "scans", "dataset_size": 60_000, "privacy_unit": "patient",
            "neighboring_relation": "add_or_remove_one",
            "budget": {"epsilon": 3.0, "delta": 1e-5},
        }  # fmt: skip
        answer = httpx.post(f"{address}/v1/datasets", json=dataset, headers=headers)
        assert answer.status_code == 201, answer.text
        assert httpx.get(f"{address}/", headers=headers, follow_redirects=True).status_code == 200
        status_code, logged = containers.stop(process)
    assert status_code == 0, logged
    levels = {json.loads(line)["level"] for line in logged.splitlines() if line.startswith("{")}
    assert levels <= {"info"}, logged
    assert (container.volume / "dpledger.db").exists()
    written = (container.volume / "dpledger.db").stat()
    assert written.st_uid == USER


def test_the_session_of_the_readme_runs_to_its_last_line(container: Container) -> None:
    # The folder of the session is the volume: `docker run -v "$PWD:/data"`.
    folder = container.volume
    key = container.run("keys", "create", "--scope", "admin", "--name", "admin").stdout.strip()
    install(folder, [containers.ROOT / "client"])
    command = folder / ".venv" / "bin" / "dpledger"
    command.write_text(container.script(), encoding="utf-8")
    command.chmod(0o755)
    port = free_port()
    given = {"DPLEDGER_URL": f"http://127.0.0.1:{port}", "DPLEDGER_API_KEY": key}
    with container.started(DPLEDGER_PORT=str(port)) as process:
        wait_until_ready(given["DPLEDGER_URL"])
        printed = follow_at(folder, README.read_text("utf-8"), surroundings(folder) | given)
        status_code, logged = containers.stop(process)
    assert printed[0].startswith("epsilon 2.37")
    assert status_code == 0, logged


def test_its_root_cannot_be_written(container: Container) -> None:
    assert container.run("migrate").returncode == 0
    tried = container.run("backup", "/opt/x.backup")
    assert tried.returncode != 0
    assert "Read-only file system" in tried.stderr


def test_all_of_scipy_that_the_code_names_is_left(container: Container) -> None:
    texts = [
        one.read_text(encoding="utf-8")
        for folder in ("accounting", "service")
        for one in (containers.ROOT / folder).rglob("*.py")
    ]
    found = {name for one in texts for name in re.findall(r"from scipy(?: import |\.)(\w+)", one)}
    assert {"integrate", "optimize", "special"} <= found
    code = "".join(f"import scipy.{name}\n" for name in sorted(found))
    words = container.image.words()
    start = words.index("dpledger")
    command = [*words[:start], "python", "-c", code]
    done = subprocess.run(command, env=container.variables(), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    broken = [*words[:start], "python", "-c", "import scipy.io"]
    assert subprocess.run(broken, env=container.variables(), capture_output=True).returncode
