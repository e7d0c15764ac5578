"""How a run ends, and what is left when it cannot."""

import contextlib
import os
from pathlib import Path

import dpledger_client as dp
import httpx
import pytest
from dpledger_client import Client

from tests.client.conftest import AtExit
from tests.client.fake_service import FakeService, answered, answering, problem
from tests.client.samples import FAIL, LOUD, MAIN, lines, start, step


def test_a_block_finishes_its_run(service: FakeService, client: Client) -> None:
    with start(client) as run:
        step(run)
    assert service.states == {"run": "finished"}
    assert (len(service.steps[MAIN]), service.held) == (1, 0)
    assert {"end": "finished"} in lines(run)
    assert lines(run)[-1] == {"closed": True}


def test_a_block_that_raises_leaves_a_run_that_may_go_on(
    service: FakeService, client: Client
) -> None:
    def train() -> None:
        with start(client) as run:
            step(run)
            raise KeyError

    with pytest.raises(KeyError):
        train()
    assert service.states == {"run": "interrupted"}
    assert (len(service.steps[MAIN]), service.held) == (1, 0)


@pytest.mark.parametrize("caught", [True, False])
@pytest.mark.parametrize("mode", ["leased", "strict"])
def test_a_block_that_its_budget_ends_has_stopped_at_it(
    service: FakeService, client: Client, mode: str, caught: bool
) -> None:
    service.steps_max = 2

    def train() -> None:
        with start(client, mode=mode) as run:
            with contextlib.suppress(*[dp.BudgetExhausted] * caught):
                for _ in range(3):
                    step(run)
            if not caught:
                pytest.fail("the refusal ended the block")

    if caught:
        train()
    else:
        with pytest.raises(dp.BudgetExhausted) as refused:
            train()
        assert str(refused.value).endswith("Run run has taken 2 steps; no more steps fit.")
        assert refused.value.steps_taken == 2
    assert service.states == {"run": "stopped_at_budget"}
    assert len(service.steps[MAIN]) == 2


def test_a_step_that_fits_after_a_refusal_is_no_stop(service: FakeService, client: Client) -> None:
    service.steps_max = 2
    with start(client) as run:
        with pytest.raises(dp.BudgetExhausted):
            step(run, steps=3)
        step(run)
    assert service.states == {"run": "finished"}


def test_a_block_keeps_the_end_it_was_given(service: FakeService, client: Client) -> None:
    with start(client) as run:
        step(run)
        run.finish("aborted")
    assert service.states == {"run": "aborted"}
    assert sum(path.endswith(":finish") for path in service.paths) == 1


@pytest.mark.parametrize("failing", range(4))
def test_a_service_that_is_away_at_the_end_is_no_error(
    service: FakeService, client: Client, caplog: pytest.LogCaptureFixture, failing: int
) -> None:
    run = start(client)
    step(run, steps=3)
    service.faults.extend([*[answered] * failing, *FAIL])  # at the steps, the lease, the end
    ended = run.finish()
    service.faults.clear()
    if failing == 3:
        assert ended == {"name": "run", "state": "finished"}
        return
    assert ended is None
    assert f"dpledger-client sync {run.spool}" in caplog.text
    assert {"end": "finished"} in lines(run)
    assert {"closed": True} not in lines(run)
    [done] = client.sync(Path(str(run.spool)))
    assert getattr(done, "steps", None) == 3
    assert (len(service.steps[MAIN]), service.held) == (3, 0)
    assert service.states == {"run": "finished"}
    assert lines(run)[-1] == {"closed": True}


def test_an_end_that_was_refused_is_tried_again(service: FakeService, client: Client) -> None:
    run = start(client)
    step(run)
    service.faults.append(answering(problem("unauthorized", 401)))
    with pytest.raises(dp.Unauthorized):
        run.finish()
    with pytest.raises(dp.RunFinished, match="was finished here"):
        step(run)
    assert run.next_step == 1
    ended = run.finish()
    assert ended is not None
    assert (ended["name"], ended["state"]) == ("run", "finished")
    assert ended["guarantee"] == run.guarantee()
    assert (len(service.steps[MAIN]), service.held) == (1, 0)


def test_a_guarantee_that_is_refused_at_the_end_is_left_out(
    service: FakeService, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    run = start(client)
    step(run)
    run.flush()
    service.faults.extend([answered, answered, answering(problem("too-expensive", 422))])
    assert run.finish() == {"name": "run", "state": "finished"}
    assert "its guarantee is not known now" in caplog.text
    assert service.states == {"run": "finished"}


def test_a_refused_end_does_not_hide_why_the_block_raised(
    service: FakeService, client: Client
) -> None:
    run = start(client)

    def train() -> None:
        with run:
            step(run, steps=2)
            run.flush()
            step(run, steps=3)
            service.faults.append(answering(problem("unauthorized", 401)))
            raise KeyError

    with pytest.raises(KeyError) as raised:
        train()
    assert raised.value.__notes__ == [
        "dpledger: run run could not be closed: Title of unauthorized: why. "
        f"Steps not sent: 3; they are in {run.spool}."
    ]
    assert service.states == {}
    run.finish("aborted")
    assert (len(service.steps[MAIN]), service.states) == (5, {"run": "aborted"})


def test_to_end_twice_is_to_end_once(service: FakeService, client: Client) -> None:
    run = start(client)
    step(run)
    assert run.finish() == run.finish()
    assert len(service.steps[MAIN]) == 1
    assert lines(run)[-1] == {"closed": True}
    assert lines(run).count({"end": "finished"}) == 1


def test_a_step_after_the_end_is_refused(service: FakeService, client: Client) -> None:
    run = start(client)
    step(run)
    run.finish()
    for noise in (None, LOUD):
        with pytest.raises(dp.RunFinished):
            step(run) if noise is None else step(run, noise)
    assert (run.next_step, len(service.steps[MAIN])) == (1, 1)


def test_after_the_end_no_file_is_written_that_got_the_spools_number(
    service: FakeService, client: Client, tmp_path: Path
) -> None:
    run = start(client)
    step(run)
    service.away = True
    assert run.finish() is None
    others = [os.open(tmp_path / f"other-{n}", os.O_CREAT | os.O_WRONLY) for n in range(20)]
    service.away = False
    run.flush()
    run.release()
    run.finish()
    for other in others:
        os.close(other)
    assert all(not (tmp_path / f"other-{n}").read_bytes() for n in range(20))
    assert len(service.steps[MAIN]) == 1


def test_a_process_that_ends_sends_and_returns_and_may_go_on(
    service: FakeService, client: Client, at_exit: AtExit
) -> None:
    run = start(client)
    step(run, steps=3)
    at_exit.run()
    assert (len(service.steps[MAIN]), service.held) == (3, 0)
    assert service.states == {"run": "interrupted"}
    assert lines(run)[-1] == {"closed": True}
    assert {"end": "left"} in lines(run)
    assert at_exit.waiting == []


def test_a_process_that_ends_without_the_service_leaves_a_spool(
    service: FakeService, client: Client, at_exit: AtExit, waits: list[float]
) -> None:
    run = start(client)
    step(run, steps=3)
    service.away = True
    before = len(waits)
    at_exit.run()
    assert len(waits) - before == 1  # a process that ends does not wait for long
    assert lines(run)[-1] == {"end": "left"}
    service.away = False
    [done] = client.sync(Path(str(run.spool)))
    assert getattr(done, "ended", None) is True
    assert (len(service.steps[MAIN]), service.held) == (3, 0)


def test_a_run_that_was_ended_leaves_nothing_to_the_end_of_the_process(
    client: Client, at_exit: AtExit
) -> None:
    start(client).finish()
    assert at_exit.waiting == []


def test_a_client_that_was_closed_is_named(service: FakeService) -> None:
    with Client(transport=httpx.MockTransport(service)) as client:
        run = start(client)
        step(run)
    with pytest.raises(dp.DPLedgerError, match="client was closed"):
        run.finish()
    assert run.unsent_steps == 1
