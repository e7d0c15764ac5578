"""The three modes, the thread in the background, and what the rest of the world does to them."""

import logging
import os
import random
import signal
import traceback
from collections.abc import Callable
from pathlib import Path

import dpledger_client as dp
import httpx
import pytest
from dpledger_client import Client, Run
from dpledger_client.recording.write_ahead_file import read

from tests.client.conftest import AtExit, Waiter
from tests.client.fake_service import FakeService, answering, busy, lost_reply, problem
from tests.client.samples import FAIL, LOUD, MAIN, QUIET, SAMPLING, lines, observe, start, step


def spooled(run: Run) -> int:
    """How many steps the spool knows."""
    return read(Path(str(run.spool))).next_step


def test_a_strict_step_is_charged_and_spooled_before_it_returns(
    service: FakeService, client: Client
) -> None:
    run = start(client, mode="strict")
    step(run, steps=3)
    assert (len(service.steps[MAIN]), run.next_step, run.unsent_steps) == (3, 3, 0)
    assert spooled(run) == 3
    step(run, LOUD)
    assert service.modes == ["charge", "charge"]
    assert service.reservations == {}


def test_a_refused_charge_leaves_the_run_as_it_was(service: FakeService, client: Client) -> None:
    service.steps_max = 2
    run = start(client, mode="strict")
    step(run)
    with pytest.raises(dp.BudgetExhausted) as raised:
        step(run, steps=5)
    assert raised.value.admissible_steps == 1
    assert raised.value.failing_scopes == [{"scope": "dataset:letters"}]
    assert (run.next_step, len(service.steps[MAIN]), spooled(run)) == (1, 1, 1)
    step(run)
    assert (run.next_step, len(service.steps[MAIN])) == (2, 2)


def test_a_charge_whose_replies_were_lost_is_counted_once_when_repeated(
    service: FakeService, client: Client
) -> None:
    run = start(client, mode="strict")
    service.faults.extend([lost_reply] * 4)
    with pytest.raises(dp.Unavailable):
        step(run)
    assert (run.next_step, spooled(run)) == (0, 0)
    step(run)
    assert (run.next_step, len(service.steps[MAIN])) == (1, 1)


def test_steps_that_were_charged_as_something_else_stay_counted(
    service: FakeService, client: Client
) -> None:
    run = start(client, mode="strict", mechanism=QUIET, sampling=SAMPLING)
    run.admit(3)
    run.step()
    run.step(mechanism=LOUD)
    assert (run.next_step, run.unsent_steps, spooled(run)) == (4, 0, 4)
    assert [content[0] for content in service.contents()] == [QUIET] * 3 + [LOUD]


@pytest.mark.parametrize("mode", ["leased", "strict"])
def test_what_was_admitted_is_found_admitted_by_the_step(
    service: FakeService, client: Client, mode: str
) -> None:
    run = start(client, mode=mode, mechanism=QUIET, sampling=SAMPLING, lease_steps=1)
    run.admit(3)
    assert (run.next_step, spooled(run)) == (0, 0)
    asked = len(service.requests)
    for _ in range(3):
        run.step()
    run.admit(0 + 1)
    assert len(service.requests) > asked
    run.finish()
    assert run.next_step == 3
    assert {request.url.path for request in service.requests[asked : asked + 1]} <= {
        "/v1/runs/run/events", "/v1/runs/run/reservations",
    }  # fmt: skip


@pytest.mark.parametrize("mode", ["leased", "strict"])
def test_what_is_not_admitted_is_not_counted(
    service: FakeService, client: Client, mode: str
) -> None:
    service.steps_max = 3
    run = start(client, mode=mode, mechanism=QUIET, sampling=SAMPLING)
    with pytest.raises(dp.BudgetExhausted):
        run.admit(4)
    with pytest.raises(ValueError, match="at least 1"):
        run.admit(0)
    assert run.next_step == spooled(run) == 0
    run.admit(3)
    run.step(steps=3)


def test_observed_steps_are_never_refused(service: FakeService, client: Client) -> None:
    service.steps_max = 2
    run = observe(client)
    step(run, steps=5)
    run.flush()
    assert run.verdict == "overdraft"
    assert service.modes == ["record"]


def test_an_unsupported_event_is_refused_before_the_step(
    service: FakeService, client: Client
) -> None:
    run = start(client)
    service.faults.append(answering(problem("unsupported-event", 422)))
    with pytest.raises(dp.UnsupportedEvent):
        step(run)
    assert run.next_step == spooled(run) == 0


@pytest.mark.parametrize("mode", ["leased", "strict"])
def test_a_step_waits_for_a_service_that_is_away(
    service: FakeService, client: Client, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    run = start(client, mode=mode, wait_seconds=1000.0)
    service.faults.extend([*FAIL, *FAIL, *FAIL])
    step(run)
    assert run.next_step == 1
    assert caplog.text.count("a step waits for the service") == 1


@pytest.mark.parametrize("seconds", [0.0, 10.0, float("nan")])
def test_a_step_does_not_wait_for_ever(
    service: FakeService, client: Client, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    now = 0.0

    def pass_time(waited: float) -> None:
        nonlocal now
        assert waited > 0
        now += waited

    monkeypatch.setattr("dpledger_client.recording.branch_writer.monotonic", lambda: now)
    monkeypatch.setattr("dpledger_client.recording.branch_writer.sleep", pass_time)
    run = start(client, wait_seconds=seconds)
    service.away = True
    with pytest.raises(dp.Unavailable):
        step(run)
    assert run.next_step == spooled(run) == 0
    assert 10.0 <= now <= 11.0 if seconds == 10.0 else now == 0.0


def test_within_a_lease_steps_go_on_without_the_service(
    service: FakeService, client: Client
) -> None:
    run = start(client, lease_steps=10)
    step(run)
    service.away = True
    step(run, steps=9)
    with pytest.raises(dp.Unavailable):
        step(run)
    assert run.next_step == spooled(run) == 10
    service.away = False
    step(run)
    run.finish()
    assert (service.recorded, service.held) == (11, 0)


def test_trouble_in_the_background_is_told_once_and_passes(
    service: FakeService, client: Client, eventually: Waiter, caplog: pytest.LogCaptureFixture
) -> None:
    run = observe(client, flush_steps=1)
    service.away = True
    for _ in range(6):
        step(run)
        eventually(lambda: isinstance(run.trouble, dp.Unavailable))
    service.away = False
    eventually(lambda: not run.unsent_steps and not run.trouble)
    told = [each.message for each in caplog.records if "steps wait in" in each.message]
    assert len(told) == 1
    assert str(run.spool) in told[0]
    assert len(service.steps[MAIN]) == 6


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(200, text="<html>"), httpx.Response(200, json={"next_step": None}),
        problem("budget-exhausted", 409, admissible_steps=None), problem("invalid-request", 422),
        httpx.Response(200, content=b"x", headers={"Content-Encoding": "gzip"}),
    ],
)  # fmt: skip
def test_no_answer_however_odd_ends_the_sending(
    service: FakeService, client: Client, eventually: Waiter, answer: httpx.Response
) -> None:
    run = observe(client, flush_steps=1)
    service.faults.append(answering(answer))
    step(run)
    eventually(lambda: len(service.steps[MAIN]) == 1)
    step(run)
    eventually(lambda: len(service.steps[MAIN]) == 2)


def test_no_fault_of_any_kind_ends_the_sending(
    service: FakeService, client: Client, eventually: Waiter
) -> None:
    run = observe(client, flush_steps=1)

    def broken(answer: object) -> httpx.Response:
        raise RuntimeError("a bug")

    service.faults.append(broken)
    step(run)
    eventually(lambda: len(service.steps[MAIN]) == 1)


def test_a_full_disk_in_the_background_keeps_nothing_from_the_service(
    service: FakeService, client: Client, eventually: Waiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = observe(client, flush_seconds=0.005)
    step(run)

    def full(spool: object, line: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dpledger_client.recording.write_ahead_file.Spool.write", full)
    eventually(lambda: len(service.steps[MAIN]) == 1 and not run.unsent_steps)
    run.flush()


def test_the_thread_ends_with_its_run(
    client: Client, eventually: Waiter, service: FakeService
) -> None:
    run = start(client)
    thread = run._writer._thread  # type: ignore[union-attr]
    assert thread.daemon
    assert thread.is_alive()
    run.finish()
    eventually(lambda: not thread.is_alive())


def test_a_seeded_trainer_draws_the_same_numbers_with_the_ledger(
    service: FakeService, client: Client, eventually: Waiter
) -> None:
    random.seed(7)
    expected = random.getstate()
    run = start(client, wait_seconds=1000.0)
    service.faults.extend([busy] * 9)
    step(run)
    service.away = True
    step(run, steps=40)
    eventually(lambda: run.trouble)
    service.away = False
    run.finish()
    assert random.getstate() == expected


def test_an_observed_run_starts_without_the_service_and_registers_later(
    service: FakeService, client: Client, eventually: Waiter
) -> None:
    service.away = True
    run = observe(client, flush_seconds=0.005)
    assert run.dataset_size is None
    step(run, steps=4)
    assert spooled(run) == 4
    service.away = False
    eventually(lambda: service.steps.get(MAIN) and not run.unsent_steps)
    ended = run.finish()
    assert ended is not None
    assert (ended["name"], ended["state"]) == ("run", "finished")


def test_an_observed_run_whose_name_was_taken_meanwhile_keeps_its_steps(
    service: FakeService, client: Client
) -> None:
    service.away = True
    run = observe(client)
    step(run)
    service.away = False
    service.writers[MAIN] = "somebody"
    service.steps[MAIN], service.from_step[MAIN] = [], 0
    with pytest.raises(dp.RunExists):
        run.finish()
    assert (run.unsent_steps, spooled(run)) == (1, 1)
    assert service.recorded == 0


def test_a_second_process_is_refused(service: FakeService, client: Client) -> None:
    start(client)
    with pytest.raises(dp.RunExists):
        start(client)


def in_a_fork(work: Callable[[], None]) -> int:
    """The exit status of a fork that does so; what it raises is printed."""
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # a fork that waits for ever for a lock is a failure, too
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("mode", ["leased", "strict", "observe"])
def test_a_fork_neither_steps_nor_ends_nor_returns_anything(
    service: FakeService,
    client: Client,
    at_exit: AtExit,
    caplog: pytest.LogCaptureFixture,
    mode: str,
) -> None:
    run = start(client, mode=mode, mechanism=QUIET, sampling=SAMPLING)
    run.step(steps=3)
    before, asked = lines(run), len(service.requests)
    attempts: list[Callable[[], object]] = [
        run.step, lambda: step(run, LOUD), run.admit, run.flush, run.release, run.finish,
        run.guarantee, lambda: run.load_state_dict({**run.state_dict(), "next_step": 1}),
    ]  # fmt: skip

    def work() -> None:
        for attempt in attempts:
            with pytest.raises(dp.DPLedgerError, match="process that opened it"):
                attempt()
        at_exit.run()
        assert caplog.text == ""  # what a fork leaves behind is nobody's business
        assert len(service.requests) == asked

    assert in_a_fork(work) == 0
    assert lines(run) == before
    run.step()
    run.finish()
    assert (service.recorded, service.held) == (4, 0)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_block_that_a_fork_leaves_ends_nothing(service: FakeService, client: Client) -> None:
    run = start(client, mechanism=QUIET, sampling=SAMPLING)
    run.step()
    before = lines(run)

    def work() -> None:
        def block() -> None:
            with run:
                raise KeyError

        with pytest.raises(KeyError) as raised:
            block()
        assert "process that opened it" in raised.value.__notes__[0]

    assert in_a_fork(work) == 0
    assert lines(run) == before
    run.step()


def test_nothing_is_logged_of_a_run_without_trouble(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="dpledger_client")
    run = start(client)
    step(run)
    step(run, LOUD)
    run.finish()
    assert caplog.records == []
