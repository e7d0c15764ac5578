"""Several processes behind one port on PostgreSQL: started again, ended together, none left."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from benchmarks.servers import free_port
from service.cli.main import app
from tests.conftest import AS_ADMIN, clear
from tests.service.samples import append, dataset, event, run
from tests.service.sse import until

COUNT = 3


class Service:
    """`dpledger serve --workers` as a process of its own."""

    def __init__(self, database_url: str, *options: str) -> None:
        self.port = free_port()
        words = ["serve", "--workers", str(COUNT), "--port", str(self.port), *options]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "service.cli.main", *words],
            env=os.environ | {"DPLEDGER_DATABASE_URL": database_url},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.address = f"http://127.0.0.1:{self.port}"
        self.answered: set[str] = set()  # by the beginning of what they call their requests

    def answers(self) -> bool:
        assert self.process.poll() is None, self.process.stderr
        with suppress(httpx.TransportError):
            return httpx.get(f"{self.address}/readyz").status_code == 200
        return False

    def all_answered(self) -> bool:
        """Whether each of its workers has answered."""
        with suppress(httpx.TransportError):
            found = httpx.get(f"{self.address}/healthz").headers["x-request-id"]
            self.answered.add(found[:20])
        return len(self.answered) == COUNT

    def end(self) -> None:
        """End what is left of it, at once; its workers hold what it writes to."""
        if self.process.poll() is None:
            for pid in {self.process.pid, *self.workers()}:
                os.kill(pid, signal.SIGKILL)
        self.process.communicate()

    def workers(self) -> set[int]:
        """The processes that it has started."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return {int(pid) for pid in children.read_text(encoding="ascii").split()}


def alive(pid: int) -> bool:
    with suppress(OSError):
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
        return state != "Z"
    return False


@pytest.fixture
def service(backend_urls: dict[str, str]) -> Iterator[Service]:
    clear(backend_urls["postgres"])
    service = Service(backend_urls["postgres"])
    try:
        until(lambda: service.answers() and len(service.workers()) == COUNT, seconds=120)
        yield service
    finally:
        service.end()


def test_steps_are_recorded_once_whatever_process_answers_and_dies(service: Service) -> None:
    before = service.workers()
    assert len(before) == COUNT
    with httpx.Client(base_url=service.address, headers=AS_ADMIN, timeout=60) as api:
        assert api.post("/v1/datasets", json=dataset()).status_code == 201

    def train(name: str) -> None:
        for step in range(40):
            until(partial(sent, name, step), seconds=60)

    def sent(name: str, step: int) -> bool:
        # A new connection each time, so that another process may answer.
        with (
            suppress(httpx.TransportError),
            httpx.Client(base_url=service.address, headers=AS_ADMIN, timeout=60) as api,
        ):
            if step == 0:
                api.post("/v1/runs", json=run(name))
            answer = append(api, event(step, 1), run=name)
            assert answer.status_code in (200, 201, 503), answer.text
            return answer.status_code != 503
        return False

    names = [f"run-{number}" for number in range(4)]
    with ThreadPoolExecutor() as pool:
        trained = [pool.submit(train, name) for name in names]
        os.kill(min(before), signal.SIGKILL)
        for one in trained:
            one.result()
    with httpx.Client(base_url=service.address, headers=AS_ADMIN, timeout=60) as api:
        for name in names:
            assert api.get(f"/v1/runs/{name}").json()["steps"] == 40
    until(lambda: len(service.workers()) == COUNT, seconds=60)
    assert min(before) not in service.workers()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_all_end_with_the_first_and_one_said_where_to_open_it(
    service: Service, number: signal.Signals
) -> None:
    workers = service.workers()
    if number == signal.SIGTERM:  # each has begun, and said what it says
        until(service.all_answered, seconds=120)
    service.process.send_signal(number)
    code = service.process.wait(timeout=60)
    assert code == (-number if number == signal.SIGKILL else 0)
    until(lambda: not any(map(alive, workers)), seconds=60)
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{service.address}/healthz")
    if number == signal.SIGTERM:
        said, _ = service.process.communicate()
        assert said.decode().count("Open http://") == 1


def test_all_end_in_order_when_a_terminal_interrupts_each(service: Service) -> None:
    workers = service.workers()
    os.killpg(service.process.pid, signal.SIGINT)
    _, logged = service.process.communicate(timeout=60)
    assert service.process.returncode == 0, logged
    assert b"Traceback" not in logged
    assert not any(map(alive, workers))


def test_a_process_that_cannot_start_ends_all(backend_urls: dict[str, str], tmp_path: Path) -> None:
    clear(backend_urls["postgres"])
    environment = {"DPLEDGER_SIGNING_KEY_FILE": str(tmp_path / "none")}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        service = Service(backend_urls["postgres"])
    _, said = service.process.communicate(timeout=120)
    assert service.process.returncode == 2
    assert str(tmp_path / "none") in said.decode()


def test_sqlite_is_refused_and_nothing_is_made(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"
    words = ["serve", "--workers", "2", "--port", "0", "--database", f"sqlite:///{file}"]
    found = CliRunner().invoke(app, words)
    assert found.exit_code == 2
    assert "several processes need PostgreSQL" in found.output
    assert list(tmp_path.iterdir()) == []
