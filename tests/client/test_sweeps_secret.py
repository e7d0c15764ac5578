"""Nothing that a service or a wire has tells how many trials a sweep had."""

import logging
import re
import secrets
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from dpledger_client import Client, gaussian, negative_binomial_trials, poisson
from dpledger_client.recording.checkpoint_pins import LogHead
from dpledger_client.sweeps import trials

from service.storage import migrations
from service.storage.engine import connect
from tests.client.failures.site import Site
from tests.conftest import AS_ADMIN
from tests.service.dumps import dump

ROOT = Path(__file__).parents[2]
DATASET: dict[str, Any] = {
    "dataset_size": 60000, "neighboring_relation": "add_or_remove_one", "privacy_unit": "example",
    "budget": {"epsilon": 8.0, "delta": 1e-5, "orders": [7.3]},
    "accept": ["published", "declared", "derived"],
}  # fmt: skip
SWEEP: dict[str, Any] = {
    "repetitions": negative_binomial_trials(shape=1.0, halting_probability=0.1),
    "mechanism": gaussian(noise_multiplier=1.0),
    "sampling": poisson(sampling_probability=0.01),
    "steps": 1000,
    "candidates": [0.1, 0.3],
    "trial_count_secret": True,
}
# Times, and what is drawn anew for each ledger: names of writers, keys, hashes of what has times.
_TIME = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(\+00:00|Z)?|datetime\.datetime\([^)]*\)"
    r"|(?<=>)\d\d:\d\d(:\d\d)?(?=<)"  # at a chart's axis: two ledgers begin at other times
)
# A chart over time: the moment of the end is fixed by report_at, and not what is compared here.
_DRAWING = re.compile(r'\b(d|x|x1|x2|cx|points|width)="[^"]*"')
_DRAWN = re.compile(r"[0-9A-Za-z_+/=-]{16,}")
# Of the process: what it took, not what was asked of it.
_MEASURED = re.compile(r"^(# .*|.*(_seconds|_bytes|process_|python_|_pages|_age|_ratio).*)$", re.M)


# What is drawn has a digit, or is hexadecimal and has none by chance; other words stay.
_NO_WORD = re.compile(r"[0-9]|^[a-f]+$")


def alike(text: str) -> str:
    """The text without what differs between any two ledgers."""
    return _DRAWN.sub(
        lambda found: "DRAWN" if _NO_WORD.search(found[0]) else found[0],
        _TIME.sub("TIME", _DRAWING.sub("DRAWING", text)),
    )


class Wire(httpx.HTTPTransport):
    """What goes over the wire."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[str] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """As any transport does."""
        body = request.read().decode()
        self.sent.append(alike(f"{request.method} {request.url.path} {body}"))
        return super().handle_request(request)


@dataclass
class Seen:
    """Everything that anybody could look at."""

    wire: list[str] = field(default_factory=list)
    tables: dict[str, str] = field(default_factory=dict)
    logs: list[str] = field(default_factory=list)
    metrics: str = ""
    pages: dict[str, str] = field(default_factory=dict)
    spools: list[str] = field(default_factory=list)


PAGES = (
    "/runs/run", "/datasets/data", "/runs", "/v1/runs/run", "/v1/runs/run/ledger", "/v1/datasets",
    "/v1/runs/run/guarantee?delta=1e-5", "/v1/datasets/data", "/v1/runs/run/history",
)  # fmt: skip


def ledger(folder: Path) -> str:
    """The address of an empty database."""
    url = f"sqlite:///{folder / 'ledger.db'}"
    engine = connect(url)
    migrations.upgrade(engine)
    engine.dispose()
    return url


def swept(
    folder: Path, number: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Seen:
    seen, wire = Seen(), Wire()
    monkeypatch.setattr(trials, "draw_trials", lambda law: number)
    # The clock says when a log head is compared, before a sweep or after it.
    monkeypatch.setattr(LogHead, "is_due", property(lambda head: False))
    # A dataset's version has 62 bits; one in 5,000 would have too few digits to be known as drawn.
    bits = secrets.randbits
    monkeypatch.setattr(secrets, "randbits", lambda count: bits(count) | 1 << (count - 1))
    spool = folder / "spool"
    monkeypatch.setenv("DPLEDGER_SPOOL", str(spool))
    url = ledger(folder)
    caplog.clear()
    with caplog.at_level(logging.DEBUG), Site(url) as site:
        with Client(site.url, transport=wire) as client:
            client.create_dataset("data", **DATASET)
            with client.start_run("run", "data", mode="strict", flush_seconds=0.01) as run:
                with run.selection(**SWEEP) as found:
                    for trial in found:
                        taken = sum(1 for _ in trial.steps())
                        trial.finish(score=trial.candidate, output=taken)
                        time.sleep(0.004)
                assert found.best is not None
        with httpx.Client(base_url=site.url, headers=AS_ADMIN) as reader:
            port = f":{site.port}"
            seen.metrics = _MEASURED.sub("", reader.get("/metrics").text)
            for path in PAGES:
                answer = reader.get(path, headers={"accept": "text/html"})
                seen.pages[path] = alike(f"{answer.status_code} {answer.text}").replace(port, "")
    engine = connect(url)
    for name, rows in dump(engine).items():
        plain = [["DRAWN" if isinstance(cell, bytes) else cell for cell in row] for row in rows]
        seen.tables[name] = alike(str(plain))
    engine.dispose()
    seen.wire = wire.sent
    seen.logs = [
        alike(one.getMessage()).replace(port, "")
        for one in caplog.records
        if one.name.startswith(("dpledger", "service"))
    ]
    for one in sorted(spool.glob("*.spool")):
        seen.spools.append(re.sub('"inode": [0-9]+', "FILE", alike(one.read_text())))
    return seen


def test_one_trial_and_fifty_leave_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found = []
    for index, number in enumerate((1, 1, 50)):  # the first works out what a selection costs
        folder = tmp_path / str(index)
        folder.mkdir()
        found.append(swept(folder, number, monkeypatch, caplog))
    _, one, fifty = found
    same("wire", "\n".join(one.wire), "\n".join(fifty.wire))
    assert len([line for line in one.wire if "selection" in line]) == 1
    for name, rows in one.tables.items():
        same(name, rows, fifty.tables[name])
    assert "selection" in one.tables["distinct_events"]
    same("logs", "\n".join(one.logs), "\n".join(fifty.logs))
    same("metrics", one.metrics, fifty.metrics)
    assert one.metrics.strip()
    for path, text in one.pages.items():
        assert text.startswith("200"), (path, text[:200])
        same(path, text, fifty.pages[path])
    same("spools", "\n".join(one.spools), "\n".join(fifty.spools))


def same(what: str, one: str, other: str) -> None:
    """Where two long texts differ first, if they do."""
    if one != other:
        place = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), -1)
        here = slice(max(0, place - 80), place + 120)
        pytest.fail(f"{what}: {one[here]!r} is not {other[here]!r}", pytrace=False)


SCRIPT = """
import os, signal, sys
import dpledger_client as dp
from tests.client.test_sweeps_secret import SWEEP
from dpledger_client.sweeps import trials

trials.draw_trials = lambda law: 3
place = int(sys.argv[2])
run = dp.Client(sys.argv[1]).start_run(sys.argv[3], "data", mode="strict")
with run.selection(**SWEEP) as found:
    for index, trial in enumerate(found):
        for step in trial.steps():
            if index == place and step == 500:
                os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("place", [0, 2])
def test_a_sweep_that_is_killed_was_charged_once_and_is_not_taken_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    monkeypatch.setenv("DPLEDGER_SPOOL", str(tmp_path / "spool"))
    with Site(ledger(tmp_path)) as site, Client(site.url) as client:
        client.create_dataset("data", **DATASET)
        for count, name in enumerate(("first", "again"), start=1):
            died = subprocess.run(
                [sys.executable, "-c", SCRIPT, site.url, str(place), name],
                cwd=ROOT, capture_output=True, text=True, timeout=240, check=False,
            )  # fmt: skip
            assert died.returncode == -signal.SIGKILL, died.stderr
            assert [event["steps"] for event in client.ledger(name)["events"]] == [1]
            spent = client.dataset_guarantee("data", delta=1e-5)
            assert spent["steps"] == count  # another sweep is another charge
        for found in client.sync(tmp_path / "spool"):
            assert not isinstance(found, tuple), found
        assert client.dataset_guarantee("data", delta=1e-5)["steps"] == 2
