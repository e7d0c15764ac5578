"""Sending spools whose trainers are gone: nothing lost, nothing twice, nothing too early."""

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import dpledger_client as dp
import pytest
from dpledger_client import Client, Run, SpoolError
from dpledger_client.recording.sync import Synced, sync_all
from dpledger_client.recording.write_ahead_file import is_locked, read

from tests.client.conftest import AtExit
from tests.client.fake_service import FakeService, answered, lost_reply
from tests.client.samples import FAIL, LOUD, MAIN, QUIET, lines, observe, start, step


def killed(run: Run) -> Path:
    """The spool of a trainer that was killed: nobody holds it, and no end is in it."""
    path = Path(str(run.spool))
    run._writer.spool.close()  # type: ignore[union-attr]
    return path


def copied(path: Path, folder: Path) -> Path:
    """What an air-gapped copy has of a spool."""
    folder.mkdir(exist_ok=True)
    copy = folder / path.name
    copy.write_bytes(path.read_bytes())
    return copy


@pytest.mark.parametrize("mode", ["leased", "strict", "observe"])
def test_what_a_killed_trainer_left_is_sent_and_what_it_leased_returned(
    service: FakeService, client: Client, mode: str
) -> None:
    run = start(client, mode=mode)
    for number in range(30):
        step(run, (QUIET, LOUD)[number // 10 % 2])
    path = killed(run)
    assert list(client.sync(path)) == [
        Synced(path=path, run="run", branch="main", steps=30, ended=True)
    ]
    expected = [*[QUIET] * 10, *[LOUD] * 10, *[QUIET] * 10]
    assert [content[0] for content in service.contents()] == expected
    assert (service.recorded, service.held, service.states) == (30, 0, {"run": "interrupted"})


def test_a_spool_without_its_first_line_holds_up_nothing(client: Client, tmp_path: Path) -> None:
    killed_early = tmp_path / "run.main.0.spool"
    killed_early.write_bytes(b'{"format": "dpledger-sp')
    assert list(client.sync(killed_early)) == []


def test_a_fork_of_the_trainer_does_not_hold_the_spool_after_the_end(
    service: FakeService, client: Client
) -> None:
    run = observe(client)
    path, file = Path(str(run.spool)), run._writer.spool._file  # type: ignore[union-attr]
    forked = os.dup(file)  # the same open file, as a worker of a loader has it
    service.away = True
    run.finish()
    assert not is_locked(path)
    os.close(forked)


@pytest.mark.parametrize("boot", ["another", None])
def test_after_a_start_of_the_machine_leases_are_kept(
    service: FakeService,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    boot: str | None,
) -> None:
    run = start(client, lease_steps=100)
    step(run, steps=20)
    path = killed(run)
    now = tmp_path / "boot_id"
    if boot is not None:
        now.write_text(boot)
    monkeypatch.setattr("dpledger_client.recording.write_ahead_file._BOOT", now)
    [synced] = client.sync(path)
    assert isinstance(synced, Synced)
    assert not synced.ended  # its last lines may be lost
    assert (service.recorded, service.held) == (20, 80)
    list(client.sync(str(path), ended=True))
    assert service.held == 0


def test_to_send_again_changes_nothing(service: FakeService, client: Client) -> None:
    run = start(client)
    step(run, steps=5)
    run.release()
    run.flush()
    step(run, LOUD)
    path = killed(run)
    copy = copied(path, path.parent / "copies")
    for _ in range(2):
        assert all(isinstance(one, Synced) for one in client.sync(path, copy, ended=True))
    assert (service.recorded, service.held) == (6, 0)
    assert set(service.releases) == {("run", "main", 4)}


def test_what_was_sent_and_closed_is_not_sent_again(service: FakeService, client: Client) -> None:
    run = start(client)
    step(run)
    path = killed(run)
    list(client.sync(path))
    asked = len(service.requests)
    assert list(client.sync(path)) == []
    assert len(service.requests) == asked


def test_a_folder_is_sent_spool_by_spool(service: FakeService, client: Client, spool: Path) -> None:
    for name in ("a", "b", "c"):
        run = start(client, name=name)
        step(run, steps=2)
        killed(run)
    (spool / "notes.txt").write_text("not a spool")
    (spool / "bad.spool").write_text("not a spool\n")
    results = list(client.sync(spool))
    done = {each.run for each in results if isinstance(each, Synced)}
    assert done == {"a", "b", "c"}
    [(path, error)] = [each for each in results if not isinstance(each, Synced)]
    assert path == spool / "bad.spool"
    assert isinstance(error, SpoolError)
    assert (service.recorded, service.held) == (6, 0)


def test_a_trainer_that_still_runs_sends_its_spool_itself(
    service: FakeService, client: Client
) -> None:
    run = start(client)
    step(run)
    for ended in (False, True):
        [(path, error)] = client.sync(Path(str(run.spool)), ended=ended)  # type: ignore[misc]
        assert path == Path(str(run.spool))
        with pytest.raises(SpoolError, match="still runs"):
            raise error
    assert service.recorded == 0
    assert service.held == 64


def test_a_copy_returns_no_lease_unless_its_trainer_is_known_to_be_gone(
    service: FakeService, client: Client, tmp_path: Path
) -> None:
    run = start(client)
    step(run, steps=3)
    copy = copied(Path(str(run.spool)), tmp_path / "usb")
    [done] = client.sync(copy)
    assert getattr(done, "ended", None) is False
    assert (service.recorded, service.held) == (3, 61)
    assert read(copy).closed is False
    step(run, steps=2)
    run.flush()
    assert service.recorded == 5
    killed(run)
    [done] = client.sync(copied(Path(str(run.spool)), tmp_path / "usb"), ended=True)
    assert getattr(done, "ended", None) is True
    assert (service.recorded, service.held) == (5, 0)


def test_an_old_copy_takes_nothing_back(
    service: FakeService, client: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = start(client)
    step(run, steps=3)
    copy = copied(Path(str(run.spool)), tmp_path / "usb")
    step(run, steps=4)
    run.flush()
    caplog.set_level(logging.INFO)
    list(client.sync(copy, ended=True))
    assert service.recorded == 7
    assert "could not be released" in caplog.text
    run.finish()
    assert (service.recorded, service.held) == (7, 0)


def test_an_end_in_a_copy_is_an_end(
    service: FakeService, client: Client, tmp_path: Path, at_exit: AtExit
) -> None:
    run = start(client)
    step(run, steps=3)
    service.away = True
    run.finish("aborted")
    copy = copied(Path(str(run.spool)), tmp_path / "usb")
    service.away = False
    [done] = client.sync(copy)
    assert getattr(done, "ended", None) is True
    assert (service.recorded, service.held, service.states) == (3, 0, {"run": "aborted"})
    assert read(copy).closed


def test_a_run_that_never_had_a_network_is_registered_by_its_spool(
    service: FakeService, client: Client, tmp_path: Path
) -> None:
    service.away = True
    run = observe(client, dataset_size=1000)
    step(run, steps=4)
    run.finish()
    copy = copied(Path(str(run.spool)), tmp_path / "usb")
    service.away = False
    list(client.sync(copy))
    assert (service.recorded, service.states) == (4, {"run": "finished"})


def test_branches_wait_for_the_spool_that_registers_their_run(
    service: FakeService, client: Client, spool: Path
) -> None:
    service.away = True
    run = observe(client, dataset_size=1000)
    step(run, steps=4)
    killed(run)
    for _ in range(2):  # a rewind of a rewind
        run = observe(client, dataset_size=1000, state={**run.state_dict(), "next_step": 2})
        step(run, LOUD, steps=3)
        killed(run)
    names = sorted(path.name for path in spool.iterdir())
    assert names[0].startswith("run.from-2")
    service.away = False
    assert all(isinstance(each, Synced) for each in client.sync(spool))
    assert service.recorded == 4 + 3 + 3


def test_a_branch_whose_run_nobody_knows_is_told(
    service: FakeService, client: Client, spool: Path
) -> None:
    service.away = True
    state = dp.state_at("run", "letters", next_step=2)
    run = observe(client, dataset_size=1000, state=state)
    step(run)
    killed(run)
    service.away = False
    [(_, error)] = client.sync(spool)  # type: ignore[misc]
    assert isinstance(error, dp.NotFound)


@pytest.mark.parametrize("failing", range(6))
@pytest.mark.parametrize("fault", [lost_reply, FAIL[0]])
def test_what_fails_half_way_is_done_by_the_next_attempt(
    service: FakeService, client: Client, failing: int, fault: Any
) -> None:
    run = start(client, lease_steps=5)
    step(run, steps=5)
    step(run, LOUD)
    run.release()
    step(run)
    service.away = True
    run.finish()
    service.away = False
    service.faults.extend([*[answered] * failing, *[fault] * 4])
    path = Path(str(run.spool))
    [failed] = client.sync(path)
    assert isinstance(failed, tuple)
    assert not read(path).closed
    service.faults.clear()
    [done] = client.sync(path)
    assert isinstance(done, Synced)
    assert (service.recorded, service.held, service.states) == (7, 0, {"run": "finished"})
    assert set(service.releases) == {("run", "main", 5)}


def test_a_step_that_was_cut_was_not_taken(service: FakeService, client: Client) -> None:
    run = start(client)
    step(run, steps=3)
    path = killed(run)
    path.write_bytes(path.read_bytes() + b"[3, 1")
    [done] = client.sync(path)
    assert getattr(done, "steps", None) == 3
    assert read(path).next_step == 3
    assert service.recorded == 3


def test_a_damaged_spool_is_named_and_sends_nothing(service: FakeService, client: Client) -> None:
    run = start(client)
    step(run, steps=3)
    step(run)
    path = killed(run)
    path.write_text(path.read_text().replace("[0, 3]", "[0, 2]"))
    [(_, error)] = client.sync(path)  # type: ignore[misc]
    with pytest.raises(SpoolError, match=r"line \d: step 2 is missing"):
        raise error
    assert service.recorded == 0


def test_a_spool_that_is_not_there_is_an_error(client: Client, tmp_path: Path) -> None:
    [(path, error)] = client.sync(tmp_path / "none.spool")  # type: ignore[misc]
    assert path == tmp_path / "none.spool"
    assert isinstance(error, FileNotFoundError)


def test_a_spool_that_cannot_be_marked_is_sent_again(
    service: FakeService, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start(client)
    step(run)
    path = killed(run)
    with monkeypatch.context() as patch:
        original = Path.open

        def read_only(path: Path, mode: str = "r", *given: Any, **named: Any) -> Any:
            if "+" in mode:
                raise PermissionError(mode)
            return original(path, mode, *given, **named)

        patch.setattr(Path, "open", read_only)
        assert all(isinstance(one, Synced) for one in client.sync(path))
    assert not read(path).closed
    assert all(isinstance(one, Synced) for one in client.sync(path))
    assert read(path).closed
    assert service.recorded == 1


def test_a_lease_that_was_never_granted_is_no_obstacle(
    service: FakeService, client: Client
) -> None:
    run = start(client)
    step(run)
    run._writer.spool.write({"lease": "lease-never"})  # type: ignore[union-attr]
    [done] = client.sync(killed(run))
    assert isinstance(done, Synced)
    assert service.held == 0


def test_a_spool_of_no_step_returns_the_whole_lease(service: FakeService, client: Client) -> None:
    run = start(client)
    run.declare(mechanism=QUIET, sampling=dp.full())
    run.admit(5)
    assert service.held == 64
    list(client.sync(killed(run)))
    assert (service.recorded, service.held) == (0, 0)


def test_a_killed_process_leaves_what_sync_needs(
    service: FakeService, client: Client, tmp_path: Path
) -> None:
    path = tmp_path / "run.main.x.spool"
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from dpledger_client.recording.write_ahead_file import Spool\n"
        "spool = Spool(Path(sys.argv[1]), {'run': {'name': 'run', 'writer': 'w',"
        " 'dataset': 'letters'}, 'branch': None, 'first_step': 0, 'before': None})\n"
        "spool.write({'what': {'mechanism': {'kind': 'none'}, 'sampling': {'kind': 'full'}}})\n"
        "spool.append(b'0\\n'); spool.append(b'1\\n'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    process = subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert process.returncode == -9
    [done] = client.sync(path)
    assert getattr(done, "ended", None) is True
    assert service.contents() == [[dp.no_noise(), dp.full()]] * 2
    assert lines(path)[-1] == {"closed": True}
    assert service.recorded == len(service.steps[MAIN]) == 2


def test_one_that_fails_holds_up_no_other(
    service: FakeService, client: Client, spool: Path
) -> None:
    for name in ("a", "b"):
        run = start(client, name=name)
        step(run)
        killed(run)
    service.faults.extend(FAIL)
    results = list(sync_all(client._transport, [spool]))
    assert [isinstance(each, Synced) for each in results] == [False, True]
    assert isinstance(results[0], tuple)
    assert isinstance(results[0][1], dp.Unavailable)
