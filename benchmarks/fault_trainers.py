"""Trainers that remember each step that was acknowledged, and readers that check what is answered.

A trainer sends one step after another to a run of its own, and the same step again until it is
acknowledged. So a run must hold every acknowledged step, and at most the one that was under way.
"""

import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from benchmarks.servers import START_TOKEN, ServerError, ask, create, mark
from service.cli.calculations import account_document
from service.schemas.ledger_document import LedgerDocument

RELATION: Final = "add_or_remove_one"
SIZE: Final = 60000
DELTA: Final = 1e-5
MECHANISM: Final = {"kind": "gaussian", "noise_multiplier": 1.1}
SAMPLING: Final = {"kind": "poisson", "sampling_probability": 0.01}
PAUSE_SECONDS: Final = 0.05  # before a step is sent again
WRONG: Final = ("lost", "doubled", "wrong epsilon")
_HEADERS: Final = {
    "Content-Type": "application/json",
    "Authorization": f"Bearer {START_TOKEN}",
}
_RAN: Final = (http.client.OK, http.client.CREATED)
_NO_ANSWER: Final = (OSError, http.client.HTTPException)


def step(number: int, steps: int = 1) -> dict[str, Any]:
    """A step of every run."""
    return {"first_step": number, "steps": steps, "mechanism": MECHANISM, "sampling": SAMPLING}


@lru_cache(maxsize=100_000)
def epsilon(steps: int) -> float:
    """What so many steps guarantee, recomputed here."""
    document = LedgerDocument.model_validate(
        {
            "format": "dpledger/1", "neighboring_relation": RELATION, "dataset_size": SIZE,
            "events": [step(0, steps)] if steps else [],
        }
    )  # fmt: skip
    found = account_document(document, delta=DELTA, accountant="rdp").epsilon
    if found is None:
        raise ServerError("The steps of the trainers have no bound.")
    return found


def open_dataset(port: int, name: str, key: str = START_TOKEN) -> None:
    """A dataset that trainers may share."""
    body = {
        "name": name, "dataset_size": SIZE, "neighboring_relation": RELATION,
        "privacy_unit": "example",
    }  # fmt: skip
    create(port, "/v1/datasets", body, key=key)


@dataclass(slots=True)
class Trainer:
    """One run's trainer, a thread."""

    ports: Sequence[int]  # of the workers, tried in turn where one does not answer
    dataset: str
    timeout_seconds: float = 10.0
    pause_seconds: float = 0.0  # between steps
    mode: str = "record"  # or "charge", until the budget is spent
    run: str = field(default_factory=lambda: mark("run"))
    acknowledged: int = 0
    under_way: int = 0  # the step that was sent last
    acknowledged_at: list[float] = field(default_factory=list)
    answers: Counter[int | str] = field(default_factory=Counter)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def open(self) -> None:
        """Register the run."""
        body = {"name": self.run, "writer": f"writer-of-{self.run}", "dataset": self.dataset}
        create(self.ports[0], "/v1/runs", body)

    def start(self) -> None:
        """Begin to send."""
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Send nothing more."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        turn = 0
        while not self._stopping.is_set():
            if self._send(self.ports[turn % len(self.ports)]):
                self._stopping.wait(self.pause_seconds)
            else:
                turn += 1
                self._stopping.wait(PAUSE_SECONDS)

    def _send(self, port: int) -> bool:
        self.under_way = self.acknowledged + 1
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=self.timeout_seconds)
        try:
            body = json.dumps({"mode": self.mode, "events": [step(self.acknowledged)]})
            path = f"/v1/runs/{self.run}/events"
            connection.request("POST", path, body, _HEADERS)
            status = connection.getresponse().status
        except _NO_ANSWER:
            self.answers["none"] += 1
            return False
        finally:
            connection.close()
        self.answers[status] += 1
        if status == http.client.CONFLICT and self.mode == "charge":
            self._stopping.set()  # the budget is spent
        if status not in _RAN:
            return False
        self.acknowledged += 1
        self.acknowledged_at.append(time.monotonic())
        return True

    def first_after(self, moment: float) -> float | None:
        """When a step was first acknowledged after a moment."""
        return next((at for at in self.acknowledged_at if at > moment), None)


@dataclass(slots=True)
class Reader:
    """Asks for the guarantee of a trainer's run all the time, and checks every answer."""

    trainer: Trainer
    pause_seconds: float = 0.05
    answered: int = 0
    faults: list[str] = field(default_factory=list)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to ask."""
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask no more."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        turn = 0
        while not self._stopping.wait(self.pause_seconds):
            before, turn = self.trainer.acknowledged, turn + 1
            try:
                port = self.trainer.ports[turn % len(self.trainer.ports)]
                status, answer = ask(port, "GET", guarantee_path(self.trainer.run))
            except _NO_ANSWER:
                continue
            if status == http.client.OK:
                self.answered += 1
                self.faults += faults_of(answer, least=before)


def guarantee_path(run: str) -> str:
    """Where the guarantee of a run is asked for."""
    return f"/v1/runs/{run}/guarantee?delta={DELTA}&accountant=rdp"


def faults_of(answer: dict[str, Any], *, least: int) -> list[str]:
    """What is wrong with a guarantee, which counts at least so many steps."""
    steps, found = answer["steps"], answer["epsilon"]
    if steps < least:
        return [f"wrong epsilon: of {steps} steps where {least} were acknowledged"]
    if found != epsilon(steps):
        return [f"wrong epsilon: {found} of {steps} steps, which is {epsilon(steps)}"]
    return []


def check(port: int, trainers: Sequence[Trainer]) -> list[str]:
    """What the ledger has lost, doubled or got wrong, now that nobody sends."""
    faults = []
    for one in trainers:
        status, answer = ask(port, "GET", guarantee_path(one.run))
        if status != http.client.OK:
            raise ServerError(f"The guarantee of {one.run} answered {status}: {answer}")
        steps = answer["steps"]
        if steps < one.acknowledged:
            faults.append(f"lost: {one.run} has {steps} of {one.acknowledged} steps")
        if steps > one.under_way:
            faults.append(f"doubled: {one.run} has {steps} steps, {one.under_way} were sent")
        faults += faults_of(answer, least=min(steps, one.acknowledged))
    return faults
