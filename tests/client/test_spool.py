"""The spool: what is read back from it, whatever interrupted the writing."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import dpledger_client as dp
import httpx
import pytest
from dpledger_client import Client
from dpledger_client.recording import write_ahead_file as spools
from dpledger_client.recording.event_buffer import Span, content_of
from dpledger_client.recording.write_ahead_file import Spool, SpoolError, has_ended, is_locked, read
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.client.fake_service import FakeService
from tests.client.samples import LOUD, QUIET, SAMPLING, lines, observe, start, step

HEADER: dict[str, Any] = {
    "run": {"name": "run", "writer": "w" * 32, "dataset": "letters"},
    "branch": None,
    "first_step": 0,
    "before": None,
}
WHAT = {"mechanism": QUIET, "sampling": SAMPLING}
OTHER = {"mechanism": LOUD, "sampling": SAMPLING}
QUIETLY, LOUDLY = (content_of(noise, SAMPLING) for noise in (QUIET, LOUD))
KEY = "dpl_0123456789abcdef"


CHANGES: list[dict[str, Any]] = [
    {"run": None}, {"run": {}}, {"run": {"name": "run"}}, {"first_step": "0"}, {"branch": {}},
    {"first_step": None}, {"branch": {"name": "b", "writer": "w"}}, {"branch": 1},
]  # fmt: skip


def write(path: Path, *facts: Any, header: Any = None) -> Path:
    """A spool that says so much, and that nobody has open."""
    given = {"format": spools.FORMAT, **HEADER} if header is None else header
    text = "".join(json.dumps(fact) + "\n" for fact in (given, *facts))
    path.write_text(text)
    return path


def test_every_kind_of_line_is_read_back(tmp_path: Path) -> None:
    told = ["releases", {"step": 3}]
    path = write(
        tmp_path / "a.spool",
        {"what": WHAT}, 0, [1, 3], {"lease": "lease-1"}, {"sent": 2}, 4, {"what": OTHER}, 5,
        {"tell": told}, {"lease": "lease-2"}, {"end": "aborted"}, {"closed": True},
    )  # fmt: skip
    held = read(path)
    assert held.spans == [Span(0, 5, QUIETLY), Span(5, 1, LOUDLY)]
    assert (held.leases, held.told) == (["lease-1", "lease-2"], [("releases", {"step": 3})])
    assert (held.next_step, held.end, held.closed) == (6, "aborted", True)
    assert held.header["run"] == HEADER["run"]


def test_a_trainer_writes_each_kind_of_line(service: FakeService, client: Client) -> None:
    run = start(client, mechanism=QUIET, sampling=SAMPLING, lease_steps=10)
    run.step()
    run.step(steps=3)
    run.step(mechanism=LOUD)
    run.release()
    run.finish()
    header, *facts = lines(run)
    assert header["run"]["name"] == "run"
    assert (header["mode"], header["first_step"]) == ("leased", 0)
    leases = [fact["lease"] for fact in facts if isinstance(fact, dict) and "lease" in fact]
    assert leases == list(service.reservations)
    assert facts == [
        {"lease": leases[0]}, {"what": WHAT}, 0, [1, 3], {"lease": leases[1]}, {"what": OTHER}, 4,
        {"tell": ["releases", {"branch": "main", "step": 4}]}, {"sent": 5}, {"end": "finished"},
        {"closed": True},
    ]  # fmt: skip


@pytest.mark.parametrize("between", [[], [{"sent": 0}, {"lease": "x"}, {"what": OTHER}]])
@pytest.mark.parametrize("first", [1, [1, 50]])
def test_a_step_that_was_interrupted_before_it_counted_comes_again_and_counts_once(
    tmp_path: Path, first: Any, between: list[Any]
) -> None:
    path = write(tmp_path / "a.spool", {"what": WHAT}, 0, first, *between, [1, 3], 4)
    last = LOUDLY if between else QUIETLY
    spans = [Span(0, 5, QUIETLY)] if last == QUIETLY else [Span(0, 1, QUIETLY), Span(1, 4, LOUDLY)]
    assert (read(path).spans, read(path).next_step) == (spans, 5)


@pytest.mark.parametrize(
    "damage",
    [
        "{", "nonsense", "null", "true", "1.5", '"0"', "[]", "[2]", "[2, 1, 1]", "[2.0, 1]", "{}",
        '{"what": {}}', '{"what": {"mechanism": 1, "sampling": {}}}', '{"lease": 1}',
        '{"end": "gone"}', '{"closed": false}', '{"closed": true, "end": "left"}', '{"tell": [1]}',
        '{"sent": "2"}', '{"other": 1}', "1", "3", "[2, 0]", "[1, 2]", "-1", "[2, -1]", "\x00" * 20,
        "[" * 100_000,
    ],
)  # fmt: skip
def test_a_damaged_line_is_named(tmp_path: Path, damage: str) -> None:
    path = write(tmp_path / "a.spool", {"what": WHAT}, [0, 2])
    path.write_text(path.read_text() + damage + "\n2\n")
    with pytest.raises(SpoolError, match=r"a\.spool, line 4: "):
        read(path)


def test_a_step_of_which_nothing_is_said_is_damage(tmp_path: Path) -> None:
    with pytest.raises(SpoolError, match="line 2: a step without an event"):
        read(write(tmp_path / "a.spool", 0))


@pytest.mark.parametrize(
    "header",
    [
        [],
        1,
        {},
        {"format": "dpledger-spool/2", **HEADER},
        {"format": spools.FORMAT},
        *({"format": spools.FORMAT, **HEADER, **change} for change in CHANGES),
    ],
)
def test_a_first_line_of_no_spool_is_named(tmp_path: Path, header: Any) -> None:
    with pytest.raises(SpoolError, match="line 1"):
        read(write(tmp_path / "a.spool", header=header))


def test_an_empty_file_is_no_spool(tmp_path: Path) -> None:
    (tmp_path / "a.spool").touch()
    with pytest.raises(SpoolError, match="empty: no step was taken"):
        read(tmp_path / "a.spool")


def test_a_spool_cut_at_any_byte_holds_the_steps_before_the_cut(
    client: Client, tmp_path: Path
) -> None:
    run = start(client, lease_steps=4)
    for number in range(12):
        step(run, (QUIET, LOUD)[number // 6], steps=1 + number % 3)
    whole = Path(str(run.spool)).read_bytes()
    last = read(Path(str(run.spool)))
    steps = [span.content for span in last.spans for _ in range(span.steps)]
    cut = tmp_path / "cut.spool"
    longest = 0
    for end in range(whole.index(b"\n") + 1, len(whole) + 1):
        cut.write_bytes(whole[:end])
        held = read(cut)
        found = [span.content for span in held.spans for _ in range(span.steps)]
        assert found == steps[: held.next_step]
        assert held.next_step >= longest  # nothing that was whole is ever lost again
        longest = held.next_step
    assert longest == run.next_step == 24


@pytest.mark.usefixtures("tmp_path")
@given(
    taken=st.lists(
        st.tuples(st.sampled_from([QUIET, LOUD]), st.integers(1, 10**6)), min_size=1, max_size=20
    )
)
@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_what_is_read_back_is_what_was_counted(
    client: Client, service: FakeService, taken: list[tuple[dict[str, Any], int]]
) -> None:
    service.away = False
    service.writers.clear()
    run = observe(client)
    service.away = True
    for noise, steps in taken:
        step(run, noise, steps=steps)
    held = read(Path(str(run.spool)))
    assert held.next_step == run.next_step == sum(steps for _, steps in taken)
    for noise, content in ((QUIET, QUIETLY), (LOUD, LOUDLY)):
        found = sum(span.steps for span in held.spans if span.content == content)
        assert found == sum(steps for each, steps in taken if each == noise)
    assert all(one.content != two.content for one, two in pairwise(held.spans))


def _full_after(bytes_left: int) -> Callable[[int, bytes], int]:
    """A disk with so much room."""
    left, write_all = [bytes_left], os.write

    def write_part(file: int, data: bytes) -> int:
        part = data[: left[0]]
        if not part:
            raise OSError(errno.ENOSPC, "No space left on device")
        left[0] -= len(part)
        return write_all(file, part)

    return write_part


@pytest.mark.parametrize("room", range(11))
@pytest.mark.parametrize("mode", ["leased", "strict", "observe"])
def test_a_full_disk_stops_the_step_and_leaves_nothing_of_its_line(
    client: Client, monkeypatch: pytest.MonkeyPatch, mode: str, room: int
) -> None:
    run = start(client, mode=mode, lease_steps=100)
    step(run, steps=10)
    before = lines(run)
    with monkeypatch.context() as patch:
        patch.setattr("dpledger_client.recording.write_ahead_file.os.write", _full_after(room))
        with pytest.raises(OSError, match="No space left"):
            step(run, steps=1000)
    if mode == "observe":
        assert lines(run) == before
    assert run.next_step == read(Path(str(run.spool))).next_step == 10
    step(run, steps=5)
    assert run.next_step == read(Path(str(run.spool))).next_step == 15


def test_a_full_disk_at_the_start_leaves_no_spool(
    client: Client, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpledger_client.recording.write_ahead_file.os.write", _full_after(9))
    with pytest.raises(OSError, match="No space left"):
        start(client)
    assert list(spool.iterdir()) == []


def test_a_spool_is_its_owners_alone(client: Client) -> None:
    assert Path(str(start(client).spool)).stat().st_mode & 0o777 == 0o600


def test_a_spool_is_never_written_by_two(tmp_path: Path) -> None:
    one = Spool(tmp_path / "a.spool", HEADER)
    with pytest.raises(FileExistsError):
        Spool(tmp_path / "a.spool", HEADER)
    one.close()


def test_a_spool_that_is_closed_takes_nothing(tmp_path: Path) -> None:
    one = Spool(tmp_path / "a.spool", HEADER)
    one.close()
    one.close()
    with pytest.raises(OSError, match="spool is closed"):
        one.write({"sent": 1})


def test_a_spool_is_locked_until_it_is_closed(client: Client) -> None:
    run = start(client)
    path = Path(str(run.spool))
    code = (
        "import sys; from pathlib import Path\n"
        "from dpledger_client.recording.write_ahead_file import is_locked\n"
        "sys.exit(is_locked(Path(sys.argv[1])))"
    )
    locked = [sys.executable, "-c", code, str(path)]
    assert subprocess.run(locked, check=False).returncode == 1
    assert is_locked(path)
    assert not has_ended(path, read(path))
    run.finish()
    assert subprocess.run(locked, check=False).returncode == 0
    assert not is_locked(path)


def test_the_lock_goes_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "a.spool"
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from dpledger_client.recording.write_ahead_file import Spool\n"
        "spool = Spool(Path(sys.argv[1]), {'run': {'name': 'run', 'writer': 'w'},"
        " 'branch': None, 'first_step': 0})\n"
        "print('open', flush=True); sys.stdin.read(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        assert is_locked(path)
        assert not has_ended(path, read(path))
        process.communicate()
    assert not is_locked(path)
    assert has_ended(path, read(path))


def test_a_copy_does_not_tell_whether_its_trainer_ended(client: Client, tmp_path: Path) -> None:
    run = start(client)
    step(run)
    path, copy = Path(str(run.spool)), tmp_path / "copy.spool"
    copy.write_bytes(path.read_bytes())
    assert not has_ended(copy, read(copy))
    run.finish()
    assert not has_ended(copy, read(copy))
    copy.write_bytes(path.read_bytes())
    assert has_ended(copy, read(copy))  # the end is in it


def test_what_was_moved_within_its_file_system_is_no_copy(tmp_path: Path) -> None:
    Spool(tmp_path / "a.spool", HEADER).close()
    moved = (tmp_path / "a.spool").rename(tmp_path / "b.spool")
    assert has_ended(moved, read(moved))


def test_a_spool_holds_no_key_and_no_size(service: FakeService) -> None:
    with Client("http://localhost:1", KEY, transport=httpx.MockTransport(service)) as client:
        run = start(client)
        with pytest.warns(dp.SamplingContradicted):
            step(run, size=987654321987)
        service.away = True
        run.finish()
    text = Path(str(run.spool)).read_text()
    assert KEY not in text
    assert "987654321" not in text


def test_spools_are_kept_where_one_says(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert spools.folder("there") == Path("there")
    run = start(client, spool=tmp_path / "given" / "deep")
    assert Path(str(run.spool)).parent == tmp_path / "given" / "deep"
    assert spools.folder(None) == tmp_path / "spool"
    monkeypatch.delenv("DPLEDGER_SPOOL")
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert spools.folder(None) == Path("/state/dpledger")
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert spools.folder(None) == Path("/home/somebody/.local/state/dpledger")


def test_a_refused_start_leaves_no_spool(service: FakeService, client: Client, spool: Path) -> None:
    service.away = True
    for mode in ("leased", "strict"):
        with pytest.raises(dp.Unavailable):
            start(client, mode=mode, dataset_size=1000)
    service.away = False
    start(client).finish()
    for mode in ("leased", "strict", "observe"):
        with pytest.raises(dp.RunExists):
            start(client, mode=mode)
    assert len(list(spool.iterdir())) == 1
