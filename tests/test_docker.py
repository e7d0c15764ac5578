"""What of the image can be checked without a container engine."""

import re
import subprocess
import sys
import tomllib
import zipfile
from fnmatch import fnmatch
from pathlib import Path

import pytest
from sqlalchemy import make_url

from service.settings import Settings
from service.web.problems import PROBLEMS

ROOT = Path(__file__).parents[1]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
COMPOSE = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
NOT_COMMITTED = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
IGNORED = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()


def instructions(text: str) -> list[tuple[str, str]]:
    """Each instruction of a Dockerfile with its arguments, continued lines joined."""
    joined = re.sub(r"\\\n", " ", re.sub(r"(?m)^#.*\n", "", text))
    lines = [line.strip().partition(" ") for line in joined.splitlines() if line.strip()]
    return [(name, arguments.strip()) for name, _, arguments in lines]


def last_stage() -> dict[str, str]:
    """The final stage's instructions; of several alike, the last."""
    return dict(instructions("FROM" + DOCKERFILE.rpartition("\nFROM")[2]))


def block(name: str, level: int = 2) -> str:
    """The part of the compose file below a key of that indentation."""
    indent = " " * level
    found = re.search(rf"(?m)^{indent}{name}:.*\n((?:{indent} .*\n|\s*\n)*)", COMPOSE)
    assert found, name
    return found[1]


def test_every_base_image_is_pinned_to_a_full_version() -> None:
    lines = instructions(DOCKERFILE)
    images = [arguments for name, arguments in lines if name == "FROM"]
    assert images == ["${BASE} AS build", "${BASE}"]
    (base,) = [one for name, one in lines if name == "ARG" and one.startswith("BASE=")]
    assert re.fullmatch(r"BASE=python:\d+\.\d+\.\d+-slim-bookworm@sha256:[0-9a-f]{64}", base)
    assert re.search(r"image: postgres:17\.\d+-bookworm\n", COMPOSE)


def test_everything_that_is_copied_exists_and_is_sent_to_the_builder() -> None:
    assert IGNORED[1] == "*"
    sent = {line[1:] for line in IGNORED if line.startswith("!")}
    copied: set[str] = set()
    for name, arguments in instructions(DOCKERFILE):
        if name == "COPY" and not arguments.startswith("--from"):
            copied.update(arguments.split()[:-1])
    for source in copied:
        assert (ROOT / source).exists(), source
    assert copied == sent
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"].keys() <= copied


def test_the_image_runs_as_a_user_that_is_not_root_and_reports_its_health() -> None:
    stage = last_stage()
    user = stage["USER"].partition(":")[0]
    assert user.isdigit()
    assert int(user) > 0
    assert stage["HEALTHCHECK"].endswith('CMD ["dpledger", "probe"]')
    assert "--system" not in DOCKERFILE  # whose numbers end below that of the user
    assert stage["EXPOSE"] == "8000"
    assert stage["ENTRYPOINT"] == '["dpledger"]'
    assert stage["CMD"] == '["serve", "--host", "0.0.0.0"]'
    assert not re.search(r"\b(apt-get|gcc|build-essential)\b", DOCKERFILE)


def test_the_image_names_its_version_licence_and_source() -> None:
    labels = dict(re.findall(r'org\.opencontainers\.image\.([a-z.]+)="([^"]*)"', DOCKERFILE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert labels["licenses"] == project["license"]
    assert f"ARG VERSION={project['version']}\n" in DOCKERFILE
    for name in ("version", "revision", "source"):
        assert labels[name] == f"${{{name.upper()}}}"


def test_packages_are_installed_in_the_versions_that_were_tested_together() -> None:
    installs = [line for name, line in instructions(DOCKERFILE) if name == "RUN" and "pip" in line]
    assert len(installs) == 2
    assert all("constraints.txt" in line for line in installs)


def test_no_password_or_key_is_written_into_the_compose_file() -> None:
    for line in COMPOSE.splitlines():
        key, _, value = line.strip().partition(":")
        if re.search(r"PASSWORD|_KEY|TOKEN", key) and not key.startswith("#"):
            assert key.endswith("_FILE"), key
            assert value.strip().startswith("/run/secrets/"), key
    for address in re.findall(r"postgresql://\S+", COMPOSE):
        assert make_url(address).password is None
    assert set(re.findall(r"file: (\S+)", COMPOSE)) == {
        "./secrets/database_password",
        "./secrets/owner_password",
        "./secrets/admin_key",
        "./secrets/signing_key",
        "./secrets/metrics_key",
        "./secrets/grafana_password",
    }
    assert "secrets/" in NOT_COMMITTED


def test_no_file_of_a_ledger_or_its_secrets_is_committed_from_a_clone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("DPLEDGER_START_TOKEN_FILE", raising=False)
    paths = []
    for url in ("sqlite:///dpledger.db", "postgresql://dpledger@database/dpledger"):
        settings = Settings(database_url=url)
        paths += [settings.start_token_path, settings.signing_key_path]
    names = [path.name for path in paths if path is not None]
    assert names == ["dpledger.db.token", "dpledger.db.signing_key", "dpledger.token"]
    for name in (*names, "dpledger.db", "dpledger.db-wal", "dpledger.db-shm"):
        assert any(fnmatch(name, pattern) for pattern in NOT_COMMITTED), name


def test_the_service_starts_after_the_migration_on_a_read_only_disk_for_this_machine_only() -> None:
    service = block("service")
    assert re.search(r"migrate:\s+condition: service_completed_successfully", service)
    assert re.search(r"database:\s+condition: service_healthy", block("migrate"))
    assert 'ports: ["127.0.0.1:8000:8000"]' in service
    ports = re.findall(r"ports: (.*)", COMPOSE.replace(block("caddy"), ""))
    assert all(one.startswith('["127.0.0.1:') for one in ports)
    assert len(ports) == 3
    for name in ("service", "migrate"):
        assert "<<: *dpledger" in block(name)
    for line in ("read_only: true", "tmpfs: [/tmp]", "cap_drop: [ALL]"):
        assert line in block("x-dpledger", level=0)
    assert "pg_isready" in block("database")


def test_the_compose_file_sets_only_what_the_service_reads() -> None:
    names = set(re.findall(r"DPLEDGER_(\w+):", COMPOSE)) | set(
        re.findall(r"DPLEDGER_(\w+)=", DOCKERFILE)
    )
    assert names
    assert {name.lower() for name in names} <= set(Settings.model_fields)


def test_the_database_password_is_read_from_its_file_whatever_its_characters(
    tmp_path: Path,
) -> None:
    file = tmp_path / "password"
    file.write_text("p@ss/w:rd %41\n", encoding="utf-8")
    settings = Settings(
        database_url="postgresql://dpledger@database/dpledger", database_password_file=file
    )
    address = make_url(settings.database_address)
    assert address.password == "p@ss/w:rd %41"  # noqa: S105
    assert (address.username, address.host, address.database) == (
        "dpledger",
        "database",
        "dpledger",
    )
    assert "p@ss" not in repr(settings)


def test_a_password_file_that_is_missing_stops_the_start_in_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "service.cli.main", "migrate"],
        env={
            "DPLEDGER_DATABASE_URL": "postgresql://dpledger@127.0.0.1:9/dpledger",
            "DPLEDGER_DATABASE_PASSWORD_FILE": str(tmp_path / "none"),
        },
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "none" in done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names of the files in a wheel built from this tree."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=240)
    with zipfile.ZipFile(next(folder.glob("dpledger-*.whl"))) as archive:
        return set(archive.namelist())


def test_the_wheel_carries_the_migrations_and_the_pages_of_every_problem(wheel: set[str]) -> None:
    migrations = (ROOT / "migrations").rglob("*.py")
    expected = {str(path.relative_to(ROOT)) for path in migrations}
    assert expected | {"migrations/script.py.mako"} <= wheel
    pages = {f"service/problem_pages/{slug}.md" for slug in PROBLEMS}
    assert {name for name in wheel if name.startswith("service/problem_pages/")} == pages


def test_the_wheel_carries_whatever_pages_are_made_of(wheel: set[str]) -> None:
    folder = ROOT / "service" / "web" / "dashboard"
    files = [one for part in ("templates", "static") for one in (folder / part).rglob("*.*")]
    assert {str(one.relative_to(ROOT)) for one in files} <= wheel
    assert len(files) > 10


def test_the_wheel_carries_nothing_else(wheel: set[str]) -> None:
    tops = {name.partition("/")[0] for name in wheel}
    assert tops == {"accounting", "service", "migrations", "dpledger-0.1.0.dist-info"}
