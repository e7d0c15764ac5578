"""A process that is forked while a lock is held, as a loader's workers are, does not keep it."""

import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
from dpledger_client.recording import checkpoint_pins
from dpledger_client.recording.write_ahead_file import Spool, is_locked

HEADER: dict[str, Any] = {"run": {"name": "run", "writer": "w"}, "branch": None, "first_step": 0}
LOCK = fcntl.flock

pytestmark = pytest.mark.filterwarnings(
    "ignore:This process .* is multi-threaded:DeprecationWarning"
)


@pytest.fixture
def fork() -> Iterator[Callable[[], None]]:
    """Forks a process that lives until the test ends, with all files that are open now."""
    end, kept = os.pipe()
    children: list[int] = []

    def forked() -> None:
        child = os.fork()
        if child == 0:
            os.close(kept)
            os.read(end, 1)
            os._exit(0)
        children.append(child)

    yield forked
    os.close(kept)
    os.close(end)
    assert [os.waitpid(child, 0)[1] for child in children] == [0]


def is_free(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            LOCK(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def test_the_lock_of_what_was_kept_of_a_log(tmp_path: Path, fork: Callable[[], None]) -> None:
    path = tmp_path / checkpoint_pins.LOCK
    with checkpoint_pins._locked(path):
        fork()
        assert not is_free(path)
    assert is_free(path)


def test_the_lock_of_a_spool(tmp_path: Path, fork: Callable[[], None]) -> None:
    spool = Spool(tmp_path / "a.spool", HEADER)
    fork()
    assert not is_free(spool.path)
    spool.close()
    assert is_free(spool.path)


def test_the_lock_of_who_asks_whether_a_spool_is_locked(
    tmp_path: Path, fork: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    Spool(tmp_path / "a.spool", HEADER).close()

    def lock_and_fork(file: Any, operation: int) -> None:
        LOCK(file, operation)
        if operation & fcntl.LOCK_SH:
            fork()

    monkeypatch.setattr("dpledger_client.recording.write_ahead_file.fcntl.flock", lock_and_fork)
    assert not is_locked(tmp_path / "a.spool")
    assert is_free(tmp_path / "a.spool")


def test_a_new_spool_waits_for_who_asks_just_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.spool"

    def asked_before(file: Any, operation: int) -> None:
        if operation & fcntl.LOCK_EX:
            asking = os.open(path, os.O_RDONLY)
            LOCK(asking, fcntl.LOCK_SH)
            Timer(0.05, os.close, [asking]).start()
        LOCK(file, operation)

    monkeypatch.setattr("dpledger_client.recording.write_ahead_file.fcntl.flock", asked_before)
    Spool(path, HEADER).close()
    assert path.exists()
