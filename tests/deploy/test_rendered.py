"""The chart is what the committed renders show; every manifest fits its published schema.

After a change of the chart: `make renders`, and read the difference.
"""

import re
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
BIN: Final = ROOT / ".deploy" / "bin"  # what make installs
PROFILES: Final = sorted((HERE / "profiles").glob("*.yaml"))
BY_PROFILE = pytest.mark.parametrize("profile", PROFILES, ids=lambda one: str(one.stem))


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [str(one) for one in words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def render(values: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return run(BIN / "python", HERE / "render.py", values, *more)


@BY_PROFILE
def test_a_profile_is_rendered_as_committed_and_fits_the_schemas(profile: Path) -> None:
    done = render(profile)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (HERE / "golden" / profile.name).read_text(encoding="utf-8")


@BY_PROFILE
def test_lint_finds_nothing_but_that_there_is_no_icon(profile: Path) -> None:
    done = render(profile, "--lint")
    assert done.returncode == 0, done.stderr
    assert re.findall(r"'error': '([^']*)'", done.stdout) == ["icon is recommended"]
    assert "'errors': []" in done.stdout


def test_reads_go_to_pods_that_only_read() -> None:
    text = (HERE / "golden" / "readers.yaml").read_text(encoding="utf-8")
    found = {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(text)}
    reader = found["Deployment", "dpledger-reader"]["spec"]["template"]
    (container,) = reader["spec"]["containers"]
    assert {"name": "DPLEDGER_ROLE", "value": "reader"} in container["env"]
    reads, rest = found["HTTPRoute", "dpledger"]["spec"]["rules"]
    assert [match["method"] for match in reads["matches"]] == ["GET", "HEAD"]
    for rule, template in (
        (reads, reader),
        (rest, found["Deployment", "dpledger"]["spec"]["template"]),
    ):
        (backend,) = rule["backendRefs"]
        service = found["Service", backend["name"]]["spec"]
        assert service["selector"].items() <= template["metadata"]["labels"].items()
        assert service["ports"][0]["port"] == backend["port"]
    (other,) = found["Deployment", "dpledger"]["spec"]["template"]["spec"]["containers"]
    assert "DPLEDGER_ROLE" not in {one["name"] for one in other["env"]}


def test_every_profile_has_a_render_and_the_other_way_round() -> None:
    renders = {one.name for one in (HERE / "golden").iterdir()}
    assert renders == {one.name for one in PROFILES}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"ingress": {"enabled": True, "host": "ledger.example"}}, "tlsSecret"),
        ({"gateway": {"enabled": True, "host": "ledger.example", "parents": []}}, "parents"),
        ({"readers": {"replicas": 0}}, "replicas"),
        ({"database": {"password": "s3cret"}}, "password"),
        ({"settings": {"DPLEDGER_DATABASE_URL": "postgresql://a:b@c/d"}}, "DATABASE_URL"),
        ({"settings": {"PASSWORD": "x"}}, "PASSWORD"),
        ({"networkPolicy": {"from": []}}, "from"),
        ({"replicas": 0}, "replicas"),
        ({"image": {"digest": "sha256:1"}}, "digest"),
        ({"replica": 3}, "replica"),
    ],
)
def test_values_that_would_be_unsafe_or_misspelled_are_refused(
    values: dict[str, Any], said: str, tmp_path: Path
) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values), encoding="utf-8")
    done = render(file)
    assert done.returncode != 0
    assert said in done.stderr


def test_what_kubernetes_does_not_know_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump({"resources": {"limit": {"memory": "1Gi"}}}), encoding="utf-8")
    done = render(file)
    assert done.returncode != 0
    assert "limit" in done.stderr


@pytest.mark.parametrize(
    ("schema", "name", "word"),
    [
        ("vendor.github-workflows", ".github/workflows/check.yml", "steps:"),
        ("vendor.github-workflows", ".github/workflows/release.yml", "steps:"),
        ("vendor.gitlab-ci", ".gitlab-ci.yml", "script:"),
        ("vendor.compose-spec", "docker-compose.yml", "image:"),
    ],
    ids=["check", "release", "gitlab", "compose"],
)
def test_a_file_fits_its_published_schema(
    schema: str, name: str, word: str, tmp_path: Path
) -> None:
    command: list[str | Path] = [BIN / "check-jsonschema", "--builtin-schema", schema]
    if name == ".gitlab-ci.yml":
        command += ["--data-transform", "gitlab-ci"]
    done = run(*command, name)
    assert done.returncode == 0, done.stdout + done.stderr
    broken = tmp_path / "broken.yml"
    text = (ROOT / name).read_text(encoding="utf-8")
    broken.write_text(re.sub(rf"(?m)^( +){word}.*$", rf"\1{word} 1\n\1x:", text))
    assert run(*command, broken).returncode != 0
