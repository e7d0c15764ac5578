"""What appends take while one viewer's key sends as many dear questions as it can.

    python benchmarks/crowd.py [--askers 60] [--seconds 20] [--streams 0]

One trainer appends twenty times a second, first alone, then beside the askers, who sit in a
process of their own and ask anew as soon as they are answered, each time for another delta. With
--streams, so many streams of the same key are opened first.
"""

import argparse
import http.client
import multiprocessing
import os
import random
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # or idle threads' waiting would be counted

from benchmarks.servers import Server, ask, migrated, new_dataset, new_run, running, service
from service.identity.keys import Role, create_key
from service.storage.engine import connect, transaction

DIFFERENT: Final = 200  # events of the run that is asked about, each unlike the others
PAUSE_SECONDS: Final = 0.05  # between two appends
DELTAS: Final = (-9.0, -4.0)  # powers of ten
_SAMPLING: Final = {"kind": "poisson", "sampling_probability": 0.004}


def _event(step: int, noise: float, sampling: dict[str, Any]) -> dict[str, Any]:
    mechanism = {"kind": "gaussian", "noise_multiplier": noise}
    return {"first_step": step, "steps": 1, "mechanism": mechanism, "sampling": sampling}


def _dear(step: int) -> dict[str, Any]:
    return _event(step, 1.0 + step * 1e-3, {"kind": "fixed_size", "batch_size": 100 + step})


def _question(chosen: random.Random) -> tuple[str, str, Any]:
    delta = 10 ** chosen.uniform(*DELTAS)
    run = "/v1/runs/dear"
    plan = {
        "neighboring_relation": "add_or_remove_one",
        "dataset_size": 60_000,
        "delta": delta,
        "events": [_dear(step) for step in range(DIFFERENT)],
    }
    asked: list[tuple[str, str, Any]] = [
        ("GET", f"{run}/history?points=200&delta={delta!r}", None),
        ("GET", f"{run}/curve?points=200", None),
        ("GET", f"{run}/guarantee?delta={delta!r}", None),
        ("GET", f"/v1/datasets/data/guarantee?delta={delta!r}", None),
        ("GET", f"/v1/datasets/data/explain?delta={delta!r}", None),
        ("POST", "/v1/plan", plan),
    ]
    return chosen.choice(asked)


def _asker(port: int, key: str, seed: int, ends: float, codes: Counter[str]) -> None:
    chosen = random.Random(seed)
    while time.time() < ends:
        method, path, body = _question(chosen)
        try:
            status, _ = ask(port, method, path, body, key=key)
        except (OSError, http.client.HTTPException) as error:
            codes[type(error).__name__] += 1
            continue
        codes[str(status)] += 1
        if status in (429, 503):
            time.sleep(1.0)  # as Retry-After says


def _crowd(port: int, key: str, askers: int, ends: float) -> None:
    codes: Counter[str] = Counter()
    threads = [
        threading.Thread(target=_asker, args=(port, key, number, ends, codes))
        for number in range(askers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"  {askers} askers were answered {dict(sorted(codes.items()))}", flush=True)


def _appends(port: int, key: str, first: int, ends: float) -> tuple[list[float], int]:
    """How long each append took until a moment, and the step after the last one."""
    took = []
    while time.time() < ends:
        started = time.perf_counter()
        body = {"events": [_event(first, 1.1, _SAMPLING)]}
        status, answer = ask(port, "POST", "/v1/runs/run/events", body, key=key)
        took.append(time.perf_counter() - started)
        if status != http.client.CREATED:
            print(f"  an append was answered {status}: {answer}")
        else:
            first += 1
        time.sleep(PAUSE_SECONDS)
    return took, first


def _show(name: str, took: list[float], server: Server) -> None:
    ordered = sorted(took)
    p50, p99 = (ordered[int(part * (len(ordered) - 1))] * 1000 for part in (0.5, 0.99))
    print(
        f"{name:24} {len(took):4} appends  p50 {p50:6.1f} ms  p99 {p99:6.1f} ms  "
        f"max {ordered[-1] * 1000:6.1f} ms  memory {server.memory_mib():4.0f} MiB "
        f"(at most {server.memory_mib('VmHWM'):.0f})",
        flush=True,
    )


def _open_streams(port: int, key: str, count: int) -> list[socket.socket]:
    head = f"Host: localhost\r\nAuthorization: Bearer {key}\r\n\r\n"
    opened, codes = [], Counter[str]()
    for _ in range(count):
        one = socket.create_connection(("127.0.0.1", port), timeout=30)
        one.sendall(f"GET /v1/runs/run/stream HTTP/1.1\r\n{head}".encode())
        codes[one.recv(64)[9:12].decode()] += 1
        opened.append(one)
    print(f"  {count} streams were answered {dict(sorted(codes.items()))}", flush=True)
    return opened


def _key(url: str, scope: Role) -> str:
    engine = connect(url)
    try:
        with transaction(engine) as connection:
            return create_key(connection, name=f"the-{scope}", scope=scope)
    finally:
        engine.dispose()


def main() -> None:
    """Measure appends alone and in a crowd."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--askers", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--streams", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        url = f"sqlite:///{Path(name) / 'ledger.db'}"
        admin = migrated(url)
        viewer, trainer = _key(url, Role.VIEWER), _key(url, Role.TRAINER)
        server = service(url, Path(name))
        with running(server):
            _measure(server, admin, trainer, viewer, given)


def _measure(
    server: Server, admin: str, trainer: str, viewer: str, given: argparse.Namespace
) -> None:
    port = server.port
    new_dataset(port, "data", admin)
    for run in ("run", "dear"):
        new_run(port, run, "data", admin)
    for first in range(0, DIFFERENT, 50):
        events = {"events": [_dear(step) for step in range(first, first + 50)]}
        while ask(port, "POST", "/v1/runs/dear/events", events, key=trainer)[0] == 503:
            time.sleep(0.1)
    took, step = _appends(port, trainer, 0, time.time() + given.seconds / 4)
    _show("alone", took, server)
    opened = _open_streams(port, viewer, given.streams)
    ends = time.time() + given.seconds
    crowd = multiprocessing.get_context("fork").Process(
        target=_crowd, args=(port, viewer, given.askers, ends)
    )
    crowd.start()
    took, step = _appends(port, trainer, step, ends)
    _show(f"beside {given.askers} askers", took, server)
    crowd.join()
    for one in opened:
        one.close()


if __name__ == "__main__":
    main()
