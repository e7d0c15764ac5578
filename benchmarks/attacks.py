"""The most expensive requests that could be found, each held against what one request may cost.

    python benchmarks/attacks.py            every attack, the ten dearest as a table
    python benchmarks/attacks.py NAME       those whose names have this in them

Each request goes to a service that has just started, on a database of its own, so that nothing is
remembered; its processor time and memory are those of the service's process. What took long is
measured twice more, and the median told: machines are shared.
"""

import argparse
import logging
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # or idle threads' waiting would be counted

import uvicorn
from sqlalchemy import make_url

from benchmarks.attack_requests import Attack, Step, attacks
from benchmarks.servers import ServerError, ask, free_port, start_token_file
from service.app import create_app
from service.settings import Settings
from service.storage import migrations
from service.storage.engine import connect
from service.transparency.signing import Signer
from service.web.server import Server, connection_limits, settle, share_arenas

SECONDS_MAX: Final = 2.0  # of processor time
LONG: Final = 1.5  # seconds, from which on one measurement is not trusted
MEMORY_MAX: Final = 256.0  # MiB above what the service held before
SHOWN: Final = 10
TRIES: Final = 500  # of what is recorded beforehand, where it is still being accounted
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a request took."""

    attack: Attack
    status: int
    seconds: float
    memory: float  # MiB

    @property
    def over(self) -> bool:
        """Whether it took more than it may."""
        return self.seconds > SECONDS_MAX or self.memory > MEMORY_MAX

    def __str__(self) -> str:
        """A line of the table."""
        mark = "  OVER" if self.over else ""
        size = len(str(self.attack.body or "")) / 1024
        return (
            f"{self.seconds:6.2f} s {self.memory:6.0f} MiB  {self.status}  {size:6.0f} kB  "
            f"{self.attack.name}{mark}"
        )


class Ground:
    """Databases in which something was recorded, made once for all attacks that need the same."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[str, Path | ServerError] = {}

    def database(self, before: Sequence[Step]) -> Path:
        """A copy of a database where this was done."""
        key = repr(before)
        if key not in self._made:
            self._made[key] = self._made_or_refused(before)
        made = self._made[key]
        if isinstance(made, ServerError):
            raise made
        copy = self._folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(made, copy)
        return copy / "dpledger.db"

    def _made_or_refused(self, before: Sequence[Step]) -> Path | ServerError:
        try:
            return self._make(before)
        except ServerError as error:  # another attack that needs the same need not try again
            return error

    def _make(self, before: Sequence[Step]) -> Path:
        place = self._folder / f"ground{len(self._made)}"
        place.mkdir()
        url = f"sqlite:///{place / 'dpledger.db'}"
        engine = connect(url)
        migrations.upgrade(engine)
        engine.dispose()
        with _service(url) as (port, _):
            for path, body in before:
                _do(port, path, body)
        return place


def _do(port: int, path: str, body: object) -> None:
    for _ in range(TRIES):
        status, answer = ask(port, "POST", path, body)
        if status in (200, 201):
            return
        if status != 503:  # else it comes further each time
            break
    raise ServerError(f"POST {path} answered {status}: {answer}")


@contextmanager
def _service(url: str) -> Iterator[tuple[int, int]]:
    """A service in a process of its own, which has worked out nothing: its port and its process."""
    port = free_port()
    process = multiprocessing.get_context("fork").Process(target=_serve, args=(url, port))
    process.start()
    try:
        _wait(port)
        yield port, process.pid or 0
    finally:
        process.terminate()
        process.join()


def _serve(url: str, port: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    logging.disable(logging.CRITICAL)
    share_arenas()
    token_file = start_token_file(Path(make_url(url).database or "").parent)
    settings = Settings(database_url=url, port=port, start_token_file=token_file)
    key = settings.signing_key_path
    if key is not None and not key.exists():
        Signer.create(key)
    config = uvicorn.Config(
        create_app(settings), port=port, log_config=None, **connection_limits(settings)
    )
    settle()
    Server(config).run()


def _wait(port: int) -> None:
    for _ in range(2000):
        try:
            if ask(port, "GET", "/v1/datasets")[0] == 200:  # and what is only done once is done
                return
        except OSError:
            time.sleep(0.02)
    raise ServerError("The service did not start.")


def measure(attack: Attack, ground: Ground) -> Cost:
    """What a request costs a service that has just started: the median where that is long."""
    found = [_once(attack, ground)]
    if found[0].seconds > LONG:
        found += [_once(attack, ground) for _ in range(2)]
    return sorted(found, key=lambda cost: cost.seconds)[len(found) // 2]


def _once(attack: Attack, ground: Ground) -> Cost:
    with _service(f"sqlite:///{ground.database(attack.before)}") as (port, process):
        Path(f"/proc/{process}/clear_refs").write_text("5", encoding="utf-8")  # forget the peak
        seconds, memory = _processor_seconds(process), _memory(process, "VmRSS")
        status, _ = ask(port, attack.method, attack.path, attack.body)
        return Cost(
            attack=attack,
            status=status,
            seconds=_processor_seconds(process) - seconds,
            memory=_memory(process, "VmHWM") - memory,
        )


def _processor_seconds(process: int) -> float:
    text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    fields = text.rpartition(")")[2].split()  # the name, in parentheses, may hold spaces
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _memory(process: int, name: str) -> float:
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    (line,) = [line for line in status.splitlines() if line.startswith(name)]
    return int(line.split()[1]) / 1024


def main() -> None:
    """Measure the attacks and print the dearest."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("name", nargs="?", default="", help="only attacks with this in their name")
    given = parser.parse_args()
    found: list[Cost] = []
    with tempfile.TemporaryDirectory() as name:
        ground = Ground(Path(name))
        for attack in (one for one in attacks() if given.name in one.name):
            try:
                found.append(measure(attack, ground))
            except ServerError as error:
                print(f"{attack.name}: {error}", flush=True)
                continue
            if found[-1].over:
                print(found[-1], flush=True)
    print(f"\n{len(found)} attacks; a request may take {SECONDS_MAX:g} s of processor time and "
          f"{MEMORY_MAX:g} MiB.")  # fmt: skip
    for cost in sorted(found, key=lambda one: one.seconds, reverse=True)[:SHOWN]:
        print(cost)
    print("and by memory:")
    for cost in sorted(found, key=lambda one: one.memory, reverse=True)[:3]:
        print(cost)
    sys.exit(any(cost.over for cost in found))


if __name__ == "__main__":
    main()
