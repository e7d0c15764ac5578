"""What can be seen without the database: versions, files, room on the disk."""

import os
import platform
import re
import shutil
import sqlite3
import stat
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distributions, requires, version
from pathlib import Path
from typing import Final

import psycopg

from accounting.math_library import POINTS, inaccuracies
from service.operations.diagnostics.result import Finding, fail, ok, warn
from service.settings import Settings
from service.storage.sqlite import find_earlier_ledger

PYTHON_MIN: Final = (3, 11)
SQLITE_MIN: Final = (3, 38)  # the first to have the operator ->> for JSON
FREE_MIN: Final = 64 * 2**20  # bytes; below, appends will soon be refused
FREE_LOW: Final = 2**30
# Where the engine of a container puts secrets, in a file system of that container only.
MOUNTED_SECRETS: Final = Path("/run/secrets")
SECRETS: Final = ("admin_key_file", "database_password_file", "webhook_secret_file")
_PROGRAM: Final = "dpledger"


def check_versions() -> Iterator[Finding]:
    """Of Python, SQLite and the driver of PostgreSQL."""
    yield _at_least("python", platform.python_version(), sys.version_info[:2], PYTHON_MIN)
    found = sqlite3.sqlite_version_info
    yield _at_least("sqlite", sqlite3.sqlite_version, found[:2], SQLITE_MIN)
    yield ok("psycopg", psycopg.__version__)


def _at_least(name: str, said: str, found: tuple[int, ...], least: tuple[int, ...]) -> Finding:
    if found >= least:
        return ok(name, said)
    return fail(name, said, f"needs {'.'.join(map(str, least))} or newer")


def dependencies() -> Iterator[Finding]:
    """Whether what the program needs is here, in the versions that were tested together."""
    needed = [re.split(r"[^\w.-]", one)[0] for one in requires(_PROGRAM) or () if ";" not in one]
    missing = sorted(name for name in needed if not _is_installed(name))
    if missing:
        yield fail("dependencies", f"missing: {', '.join(missing)}", "install dpledger again")
        return
    tested = versions_tested()
    here = {one.name.lower(): one.version for one in distributions()}
    other = {
        name: f"{name} {here[name]} (tested: {pinned})"
        for name, pinned in tested.items()
        if here.get(name, pinned) != pinned
    }
    if other:
        pins = " ".join(f"{name}=={pinned}" for name, pinned in tested.items() if name in other)
        yield warn("dependencies", ", ".join(other.values()), f"pip install {pins}")
    else:
        yield ok("dependencies", f"{version(_PROGRAM)} with the versions it was tested with")


def mathematics() -> Finding:
    """Whether the mathematical library is as accurate as the bounds need."""
    found = inaccuracies()
    if found:
        remedy = "nothing is certified here: install the versions of constraints.txt"
        return fail("mathematics", "; ".join(found), remedy)
    return ok("mathematics", f"{len(POINTS)} values as accurate as the bounds need")


def _is_installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


def versions_tested() -> dict[str, str]:
    """The versions in constraints.txt, which the wheel carries along."""
    here = Path(__file__).parents[2]
    for folder in (here, here.parent):
        file = folder / "constraints.txt"
        if file.is_file():
            lines = file.read_text(encoding="utf-8").splitlines()
            pins = (line.partition("==") for line in lines if "==" in line)
            return {name.lower(): pinned for name, _, pinned in pins}
    return {}


def secrets(settings: Settings) -> Iterator[Finding]:
    """The files of secrets that the settings name."""
    for name in SECRETS:
        path: Path | None = getattr(settings, name)
        if path is not None:
            yield secret(name, path)


def secret(name: str, path: Path) -> Finding:
    """A file that only the service may read."""
    try:
        with path.open("rb") as file:
            file.read(1)
        found = path.stat()
    except OSError as error:
        return fail(name, f"{path}: {error.strerror}", "the service cannot read it")
    if MOUNTED_SECRETS in path.absolute().parents:
        return ok(name, f"{path}, mounted for this container alone")
    shown = f"{path} has mode {stat.S_IMODE(found.st_mode):o}"
    # Where another user owns it, its group is how the service may read it.
    mine = found.st_uid == os.geteuid()
    if found.st_mode & (stat.S_IRWXO | stat.S_IWGRP) or (mine and found.st_mode & stat.S_IRGRP):
        return fail(name, shown, f"chmod 600 {path}; another user may have read it")
    return ok(name, shown)


def ledger_file(path: Path) -> Iterator[Finding]:
    """The file of a SQLite ledger, and the room beside it."""
    if not path.is_file():
        remedy = "`dpledger serve` makes a new one; if there was one, restore a backup"
        if (left := find_earlier_ledger(path)) is not None:  # then it makes none
            remedy = f"{left.name} shows that there was one: mount its folder, or restore a backup"
        yield fail("database_file", f"{path} does not exist", remedy)
        return
    mode = path.stat().st_mode
    shown = f"{path} has mode {stat.S_IMODE(mode):o}"
    remedy = f"chmod 600 {path}*"
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        yield fail("database_file", f"{shown}: others may write to the ledger", remedy)
    elif mode & (stat.S_IRGRP | stat.S_IROTH):
        yield warn("database_file", f"{shown}: others may read the ledger", remedy)
    else:
        yield ok("database_file", shown)
    yield _room(path.absolute().parent)


def _room(folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free
    said = f"{free / 2**30:.1f} GiB free in {folder}"
    if free < FREE_MIN:
        return fail("disk", said, "make room: appends will be refused")
    return ok("disk", said) if free >= FREE_LOW else warn("disk", said, "make room soon")
