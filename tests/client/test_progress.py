"""A terminal is told of a request that takes long, and nothing else is."""

import io
import sys
from threading import Event, Thread

import httpx
import pytest
from dpledger_client import Client

SECONDS = 0.02


class Terminal(io.StringIO):
    """Standard error; `told` is set once something is said."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal
        self.told = Event()

    def isatty(self) -> bool:
        return self.terminal

    def flush(self) -> None:
        self.told.set()


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpledger_client.progress.QUIET_SECONDS", SECONDS)
    monkeypatch.setattr("dpledger_client.progress.TICK_SECONDS", SECONDS)


def said(monkeypatch: pytest.MonkeyPatch, terminal: bool, takes: float, aside: bool = False) -> str:
    """What is said while an answer takes so long, or until something is said."""

    def answer(request: httpx.Request) -> httpx.Response:
        stream.told.wait(takes)
        return httpx.Response(200, json={"epsilon": 1.0})

    stream = Terminal(terminal=terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    with Client("http://ledger.example", transport=httpx.MockTransport(answer)) as client:
        if aside:
            thread = Thread(target=client.guarantee, args=("run",))
            thread.start()
            thread.join()
        else:
            client.guarantee("run")
    return stream.getvalue()


def test_a_terminal_sees_what_is_waited_for_and_the_line_is_cleared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = said(monkeypatch, terminal=True, takes=60.0)
    assert "waits for http://ledger.example (GET /v1/runs/run/guarantee), 0 s" in shown
    assert shown.endswith("\r\x1b[K")


def test_nothing_is_said_of_what_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpledger_client.progress.QUIET_SECONDS", 60.0)
    assert said(monkeypatch, terminal=True, takes=0.0) == ""


@pytest.mark.parametrize(("terminal", "aside"), [(False, False), (True, True)])
def test_nothing_is_said_without_a_terminal_or_in_the_background(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, aside: bool
) -> None:
    assert said(monkeypatch, terminal, 10 * SECONDS, aside) == ""
