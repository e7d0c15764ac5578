"""What a package index, a forge and `make release` read."""

import json
import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from trove_classifiers import classifiers, deprecated_classifiers

from deploy.release import release, session

ROOT: Final = Path(__file__).parents[1]
PROJECTS: Final[dict[str, dict[str, Any]]] = {
    str(one.relative_to(ROOT)): tomllib.loads((one / "pyproject.toml").read_text())["project"]
    for one in release.PACKAGES
}
WORKFLOWS: Final = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
GITLAB: Final[dict[str, Any]] = yaml.safe_load((ROOT / ".gitlab-ci.yml").read_text())


def workflow(name: str) -> dict[str, Any]:
    """A file of .github/workflows; its key `on` is read by YAML 1.1 as True."""
    found = yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text())
    return {"on" if key is True else key: value for key, value in found.items()}


@pytest.mark.parametrize("project", PROJECTS.values(), ids=PROJECTS)
def test_a_package_says_all_that_an_index_shows(project: dict[str, Any]) -> None:
    assert set(project["classifiers"]) <= classifiers
    assert not set(project["classifiers"]) & set(deprecated_classifiers)
    assert project["classifiers"] == sorted(
        project["classifiers"], key=project["classifiers"].index
    )
    assert "Typing :: Typed" in project["classifiers"]
    assert project["license"] == "Apache-2.0"
    assert project["license-files"] == ["LICENSE"]
    assert project["readme"] == "README.md"
    assert "urls" not in project  # there is no site yet, and an invented one would mislead


def test_both_packages_have_one_version_and_one_licence() -> None:
    assert len({one["version"] for one in PROJECTS.values()}) == 1
    texts = {(one / "LICENSE").read_text(encoding="utf-8") for one in release.PACKAGES}
    assert len(texts) == 1


@pytest.mark.parametrize("package", release.PACKAGES, ids=PROJECTS)
def test_a_source_archive_builds_the_same_wheel_as_the_tree(package: Path, tmp_path: Path) -> None:
    def built(kind: str, folder: Path, out: Path) -> Path:
        command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(out)]
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=240)
        (found,) = out.iterdir()
        return found

    with tarfile.open(built("sdist", package, tmp_path / "sdist")) as archive:
        archive.extractall(tmp_path / "source", filter="data")
        names = {one.partition("/")[2] for one in archive.getnames()}
    assert {"LICENSE", "README.md", "PKG-INFO"} <= names
    assert not any(one.startswith(("tests/", "docs/screenshots/", "client/")) for one in names)
    (source,) = (tmp_path / "source").iterdir()
    first = built("wheel", source, tmp_path / "first")
    second = built("wheel", package, tmp_path / "second")
    assert first.name == second.name
    assert first.read_bytes() == second.read_bytes()


def test_the_notes_of_a_release_are_the_top_section_alone() -> None:
    text = "# Changelog\n\n## 2.0 (soon)\n\n- new\n\n### More\n\n- b\n\n## 1.0\n\n- old\n"
    assert release.notes(text) == "- new\n\n### More\n\n- b\n"
    with pytest.raises(SystemExit, match="no section"):
        release.notes("# Changelog\n\n## 2.0\n\n## 1.0\n\n- old\n")
    assert release.notes((ROOT / "CHANGELOG.md").read_text(encoding="utf-8")).startswith("- ")


def test_the_sums_are_those_that_sha256sum_checks(tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_bytes(b"first")
    (tmp_path / "SHA256SUMS").write_text(release.sums(tmp_path))
    check = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    assert subprocess.run(check, cwd=tmp_path, capture_output=True, check=False).returncode == 0
    (tmp_path / "a.whl").write_bytes(b"second")
    assert subprocess.run(check, cwd=tmp_path, capture_output=True, check=False).returncode == 1


def test_the_bill_of_materials_names_no_file_of_the_machine() -> None:
    references = [{"type": "distribution", "url": "file:///tmp/a.whl"}, {"url": "kept"}]
    bill = json.dumps({"components": [{"externalReferences": references}, {"name": "b"}]})
    found = json.loads(release.without_paths(bill))["components"]
    assert found[0]["externalReferences"] == [{"url": "kept"}]
    assert found[1]["name"] == "b"


def test_a_tag_names_the_version_that_is_released() -> None:
    version = PROJECTS["."]["version"]
    release.require_tag(f"v{version}")
    for other in (version, "v9.9.9", f"v{version}.post1"):
        with pytest.raises(SystemExit, match="tag"):
            release.require_tag(other)


def test_the_session_has_a_script_and_ends_with_a_verification() -> None:
    readme = session.README.read_text(encoding="utf-8")
    first, second = session.scripts(readme)
    for script in (first, second):
        assert script.count("create_dataset(") == script.count("dp.start_run(") == 1
        compile(script, "first_run.py", "exec")
    assert '"cnn-1"' in first
    assert '"cnn-1"' not in second
    assert session.commands(readme)[0].startswith("A=")
    assert " verify certificate.json " in session.commands(readme)[-1]


@pytest.mark.parametrize(("target", "extra"), [("run", "demo"), ("demo", "demo"), ("check", "dev")])
def test_make_installs_what_its_target_needs(target: str, extra: str, tmp_path: Path) -> None:
    words = ["make", "--dry-run", f"VENV={tmp_path}", target]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert re.findall(r"--editable '\.\[(\w+)\]'", done.stdout) == [extra]


def test_what_the_release_installs_is_pinned() -> None:
    lines = (ROOT / "deploy" / "release" / "requirements.txt").read_text().splitlines()[1:]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines)
    for name in ("build", "cyclonedx-bom", "twine", "pip-licenses"):
        assert any(line.startswith(f"{name}==") for line in lines), name


def test_a_change_is_checked_by_the_same_script_on_both_forges() -> None:
    check = workflow("check")
    assert {"push", "pull_request", "workflow_call"} <= set(check["on"])
    (job,) = check["jobs"].values()
    assert any("bash .ci/run" in step.get("run", "") for step in job["steps"])
    assert "bash .ci/run" in GITLAB["check"]["script"]
    assert job["container"] == GITLAB["check"]["image"]


def test_only_a_tag_publishes_and_only_after_the_check() -> None:
    jobs = workflow("release")["jobs"]
    assert workflow("release")["on"] == {"push": {"tags": ["v*"]}}
    assert jobs["check"]["uses"] == "./.github/workflows/check.yml"
    for name, job in jobs.items():
        if name != "check":
            assert job["needs"], name
    assert jobs["packages"]["needs"] == "check"
    for name in ("publish-packages", "publish-image", "publish-chart"):
        assert GITLAB[name]["rules"] == [{"if": "$CI_COMMIT_TAG =~ /^v/"}]
        assert GITLAB[name]["stage"] == "publish"
    assert GITLAB["stages"] == ["check", "build", "publish"]


def test_a_job_has_only_the_rights_that_it_needs() -> None:
    for file in WORKFLOWS:
        found = workflow(file.stem)
        assert found["permissions"] == {"contents": "read"}, file.name
    jobs = workflow("release")["jobs"]
    with_token = {name for name, job in jobs.items() if "id-token" in job.get("permissions", {})}
    assert with_token == {"publish-packages"}
    assert jobs["publish-packages"]["environment"] == "release"  # a person may have to agree


def test_no_workflow_names_the_host_of_a_registry() -> None:
    for file in (*WORKFLOWS, ROOT / ".gitlab-ci.yml"):
        text = file.read_text(encoding="utf-8")
        assert re.findall(r"https?://|\b\w+\.(?:io|org|com)\b", text) == [], file.name
