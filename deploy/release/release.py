"""Build both packages, try them in empty environments, and write into a folder what is published.

`make release` runs it. Into dist/ go a wheel and a source archive of each package, SBOM.json
(CycloneDX), LICENCES.md, NOTES.md (the top section of CHANGELOG.md) and SHA256SUMS.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from deploy.release import session

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = (ROOT, ROOT / "client")
# Several packages stand at the top of the service's wheel, and migrations are run by their path.
_KNOWN: Final = "W004,W009"


def run(*words: str | Path, folder: Path = ROOT, **variables: str) -> str:
    """Return what a command prints; a command that fails ends the release and says why."""
    environment = {**os.environ, **variables}
    done = subprocess.run(  # noqa: S603
        [str(one) for one in words], cwd=folder, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}")
    return done.stdout


def build(out: Path) -> list[Path]:
    """Write an sdist of each package into `out`, and the wheel built from it; return the wheels.

    The times in them are that of the last commit, so that the same tree gives the same bytes.
    """
    seconds = run("git", "log", "-1", "--format=%ct").strip()
    for package in PACKAGES:
        run(
            sys.executable, "-m", "build", "--outdir", out, package,
            SOURCE_DATE_EPOCH=seconds, PIP_CONSTRAINT=str(ROOT / "constraints.txt"),
        )  # fmt: skip
    return sorted(out.glob("*.whl"))


def check(out: Path) -> None:
    """Fail if an index would refuse a file, or a wheel holds what it should not."""
    run(sys.executable, "-m", "twine", "check", "--strict", *out.glob("dpledger*"))
    wheels = sorted(out.glob("*.whl"))
    run(sys.executable, "-m", "check_wheel_contents", "--ignore", _KNOWN, *wheels)


def install(folder: Path, wheels: Sequence[Path]) -> Path:
    """Install wheels into `folder/.venv`, with the versions tested together; return its Python."""
    run(sys.executable, "-m", "venv", folder / ".venv")
    python = folder / ".venv" / "bin" / "python"
    pip: list[str | Path] = [
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]
    run(*pip, "--constraint", ROOT / "constraints.txt", *wheels, folder=folder)
    return python


def try_client(wheel: Path) -> None:
    """Import the client where nothing else is installed but httpx."""
    with tempfile.TemporaryDirectory() as folder:
        python = install(Path(folder), [wheel])
        run(python, "-c", "import dpledger_client as dp; dp.start_run", folder=Path(folder))
        run(Path(folder, ".venv/bin/dpledger-client"), "--help", folder=Path(folder))


def try_service(wheels: Sequence[Path], out: Path) -> None:
    """Follow README.md from an empty folder; write what that environment holds into `out`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        python = install(folder, wheels)
        version = run(folder / ".venv/bin/dpledger", "--version", folder=folder).split()[1]
        if f"dpledger-{version}-" not in str(wheels):
            sys.exit(f"dpledger --version says {version}, the wheels are {wheels}")
        session.follow(folder, session.README.read_text(encoding="utf-8"))
        run(
            sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible",
            "--pyproject", ROOT / "pyproject.toml", "--output-file", out / "SBOM.json", python,
        )  # fmt: skip
        licences = (sys.executable, "-m", "piplicenses", "--python", python)
        table = run(*licences, "--format", "markdown")
    (out / "LICENCES.md").write_text(table, encoding="utf-8")
    bill = (out / "SBOM.json").read_text(encoding="utf-8")
    (out / "SBOM.json").write_text(without_paths(bill), encoding="utf-8")


def without_paths(bill: str) -> str:
    """Return an SBOM without references to files of the machine on which it was made."""
    found = json.loads(bill)
    for one in found["components"]:
        kept = [
            each
            for each in one.get("externalReferences", [])
            if not each["url"].startswith("file:")
        ]
        one["externalReferences"] = kept
    return json.dumps(found, indent=2) + "\n"


def notes(changelog: str) -> str:
    """Return the top section of a changelog, without its heading."""
    found = re.search(r"^## .*?\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    if found is None or not found[1].strip():
        sys.exit("CHANGELOG.md: no section at the top.")
    return found[1].strip() + "\n"


def require_tag(tag: str) -> None:
    """End the release unless a tag names the version of both packages, as v1.2.3."""
    for package in PACKAGES:
        project = tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        if tag != f"v{project['version']}":
            sys.exit(f"The tag {tag} does not name {project['name']} {project['version']}.")


def sums(out: Path) -> str:
    """Return a line for each file of a folder, as `sha256sum --check` reads it."""
    files = sorted(one for one in out.iterdir() if one.name != "SHA256SUMS")
    lines = [f"{hashlib.sha256(one.read_bytes()).hexdigest()}  {one.name}\n" for one in files]
    return "".join(lines)


def main() -> None:
    """Build, check, try and describe a release."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder; it is made anew")
    parser.add_argument("--tag", help="fail unless it names this version")
    given = parser.parse_args()
    if given.tag:
        require_tag(given.tag)
    out = given.out.resolve()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    wheels = build(out)
    check(out)
    (client,) = [one for one in wheels if one.name.startswith("dpledger_client-")]
    try_client(client)
    try_service(wheels, out)
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    (out / "NOTES.md").write_text(notes(changelog), encoding="utf-8")
    (out / "SHA256SUMS").write_text(sums(out), encoding="utf-8")
    for file in sorted(out.iterdir()):
        print(f"{file.stat().st_size:>10}  {file.name}")  # noqa: T201


if __name__ == "__main__":
    main()
