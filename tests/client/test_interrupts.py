"""An interrupt at the keyboard in the middle of a step: it may count a step, it never loses one."""

import contextlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from dpledger_client import Client
from dpledger_client.recording.write_ahead_file import read

from tests.client.fake_service import FakeService
from tests.client.samples import LOUD, MAIN, QUIET, lines, start, step


def test_a_step_is_in_the_spool_before_it_is_counted(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start(client)
    found: list[Any] = []

    def append(outbox: Any, content: str, steps: int) -> NoReturn:
        found.append(lines(run)[-1])
        raise KeyboardInterrupt

    monkeypatch.setattr("dpledger_client.recording.outbox.Outbox.append", append)
    with pytest.raises(KeyboardInterrupt):
        step(run)
    assert found == [0]


PLACES = [
    "recording.branch_writer.Journal.admit",
    "recording.branch_writer.Journal.take",
    "recording.write_ahead_file.Spool.append",
    "recording.outbox.Outbox.append",
    "recording.event_buffer.Buffer.append",
    "transport.Transport.post",
    "recording.reservations.Leases.obtain",
]


@pytest.mark.parametrize("mode", ["leased", "strict", "observe"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("after", [False, True])
def test_an_interrupt_at_the_keyboard_within_a_step_spoils_nothing(
    service: FakeService, client: Client, mode: str, place: str, after: bool
) -> None:
    run = start(client, mode=mode, lease_steps=3)
    step(run, steps=3)
    taken = 3
    for noise in (QUIET, LOUD):
        with contextlib.suppress(KeyboardInterrupt), _interrupt(place, after=after):
            step(run, noise)
            taken += 1
        step(run, noise)
        taken += 1
        assert read(Path(str(run.spool))).next_step == run.next_step >= taken
    run.finish()
    assert len(service.steps[MAIN]) == run.next_step <= taken + 2
    assert service.held == 0


@contextlib.contextmanager
def _interrupt(place: str, *, after: bool) -> Iterator[None]:
    """Ctrl-C at the next call of a method, before or after what it does."""
    module, kind, name = place.rsplit(".", 2)
    owner = getattr(sys.modules[f"dpledger_client.{module}"], kind)
    original = owner.__dict__[name]

    def interrupted(*given: Any, **named: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            return original(*given, **named)  # only the main thread hears of the keyboard
        setattr(owner, name, original)
        if after:
            original(*given, **named)
        raise KeyboardInterrupt

    setattr(owner, name, interrupted)
    try:
        yield
    finally:
        setattr(owner, name, original)
