import dpledger_client as dp
import pytest
from dpledger_client import Client

from tests.client.fake_service import FakeService
from tests.client.samples import FAIL, MAIN, start, step


def test_a_block_finishes_its_run(service: FakeService, client: Client) -> None:
    with start(client) as run:
        step(run)
    assert service.states == {"run": "finished"}
    assert len(service.steps[MAIN]) == 1


def test_a_block_that_raises_aborts_its_run(service: FakeService, client: Client) -> None:
    def train() -> None:
        with start(client) as run:
            step(run)
            raise KeyError

    with pytest.raises(KeyError):
        train()
    assert service.states == {"run": "aborted"}
    assert len(service.steps[MAIN]) == 1


def test_a_failing_end_does_not_hide_why_the_block_raised(
    service: FakeService, client: Client
) -> None:
    run = start(client)

    def train() -> None:
        with run:
            step(run, steps=2)
            run.flush()
            step(run, steps=3)
            service.faults.extend(FAIL)
            raise KeyError

    with pytest.raises(KeyError) as raised:
        train()
    assert raised.value.__notes__ == [
        "dpledger: run run could not be closed: The service did not answer: ConnectError refused. "
        "Steps not recorded: 3, from step 2 on."
    ]
    assert service.states == {}
    run.finish("aborted")
    assert (len(service.steps[MAIN]), service.states) == (5, {"run": "aborted"})


def test_a_block_whose_last_steps_cannot_be_sent_raises(
    service: FakeService, client: Client
) -> None:
    run = start(client)

    def train() -> None:
        with run:
            step(run)
            service.faults.extend(FAIL)

    with pytest.raises(dp.Unavailable):
        train()
    assert (run.unsent_steps, service.states) == (1, {})


def test_a_block_keeps_the_end_it_was_given(service: FakeService, client: Client) -> None:
    with start(client) as run:
        step(run)
        run.finish("aborted")
    assert service.states == {"run": "aborted"}
    assert sum(path.endswith(":finish") for path in service.paths) == 1


def test_a_step_after_the_end_is_sent_at_once(service: FakeService, client: Client) -> None:
    run = start(client)
    run.finish()
    step(run)
    assert len(service.steps[MAIN]) == 1


def test_a_block_sends_what_could_not_be_sent_after_the_end(
    service: FakeService, client: Client
) -> None:
    with start(client) as run:
        run.finish()
        service.faults.extend(FAIL)
        with pytest.raises(dp.Unavailable):
            step(run)
    assert len(service.steps[MAIN]) == 1
