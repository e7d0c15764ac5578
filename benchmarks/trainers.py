"""One process of trainers for benchmarks/race.py, which starts it, kills it and starts the next.

    python -m benchmarks.trainers CONFIG

Each trainer is a thread that owns a branch: it charges, records, reserves, records inside what it
reserved, and releases, one request at a time. It drops connections before it reads the answer and
then sends the same again. What it is about to send and what was answered goes to a file that is
only ever appended to, so that a killed process leaves a true account. Only the standard library is
imported: processes start while the race is on.
"""

import http.client
import json
import os
import sys
import threading
import time
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

BLOCK: Final = 4  # steps in a row that are equal
NOISES: Final = (1.0, 1.5, 4.0)  # of a dear step, a cheaper one, and one that counts by pass
KINDS: Final = len(NOISES)
CYCLE: Final = 10  # steps of a pass of the last kind
STEPS_MAX: Final = 3  # of an append
LOST: Final = 0.05  # of the replies are never read
FORGOTTEN: Final = 0.02  # of the reservations are left to expire
OVERRUN: Final = 0.005  # of the refusals are followed by a fact, whatever it costs
RESERVED_MIN: Final = 8  # more than are recorded before the rest is released
RESERVED_MAX: Final = 40
TTL_SECONDS: Final = 2
PATIENCE_SECONDS: Final = 30.0  # for an answer, while services are killed and started again

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What a process of trainers is told; every field is JSON."""

    ports: list[int]  # of the services, any of which will do
    key: str
    dataset: str
    dataset_size: int
    noise_multiplier: float
    trainers: list[tuple[int, str, str]]  # number, run, branch
    incarnation: int
    seed: int
    start_at: float  # seconds since the epoch
    stop_at: float
    log: str


def kind_of(branch: str, step: int) -> int:
    """Which kind of step a branch takes there: whoever sends it, and sends it again."""
    return zlib.crc32(f"{branch}/{step // BLOCK}".encode()) % KINDS


def content(kind: int, config: Config) -> Json:
    """A kind of step: dear, cheaper, and one whose cost is counted by pass."""
    noise = config.noise_multiplier * NOISES[kind]
    sampling: Json = {"kind": "full"}
    if kind == KINDS - 1:
        sampling = {
            "kind": "cyclic",
            "batch_size": config.dataset_size // CYCLE,
            "steps_per_pass": CYCLE,
        }
    return {"mechanism": {"kind": "gaussian", "noise_multiplier": noise}, "sampling": sampling}


def events_of(branch: str, first_step: int, steps: int, config: Config) -> list[Json]:
    """The steps of a branch as events."""
    found: list[Json] = []
    for step in range(first_step, first_step + steps):
        what = content(kind_of(branch, step), config)
        if found and {**found[-1], "first_step": 0, "steps": 0} == {
            **what, "first_step": 0, "steps": 0,
        }:  # fmt: skip
            found[-1]["steps"] += 1
        else:
            found.append({"first_step": step, "steps": 1, **what})
    return found


class UnansweredError(Exception):
    """No service answered for so long."""


@dataclass(slots=True)
class Trainer:
    """One thread, one branch, one connection."""

    config: Config
    number: int
    run: str
    branch: str
    log: int  # a file descriptor that appends
    random: Random
    next_step: int = 0
    refused: bool = False  # the last time it asked
    doubt_until: int = 0  # a request nobody waits for any more may still record up to here
    connection: http.client.HTTPConnection | None = field(default=None)

    def note(self, what: str, **more: Any) -> None:
        """Append a line to the account; one write, which a kill cannot cut in two."""
        line = {"what": what, "run": self.run, "branch": self.branch, **more}
        os.write(self.log, json.dumps(line).encode() + b"\n")

    def _exchange(self, method: str, path: str, body: Json | None) -> tuple[int, Json] | None:
        """An answer; None if the reply was lost, by accident or on purpose."""
        headers = {"Authorization": f"Bearer {self.config.key}", "Content-Type": "application/json"}
        try:
            if self.connection is None:
                port = self.random.choice(self.config.ports)
                self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
            self.connection.request(method, path, json.dumps(body) if body else None, headers)
            if body and self.random.random() < LOST:
                if self.random.random() < 0.5:  # at once, or when it may have been done
                    time.sleep(0.01)
                self.drop()
                return None
            answer = self.connection.getresponse()
            return answer.status, json.loads(answer.read())
        except (OSError, http.client.HTTPException):
            self.drop()
            time.sleep(0.05)
            return None

    def drop(self) -> None:
        """Close the connection."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def send(self, method: str, path: str, body: Json | None = None) -> tuple[int, Json, int]:
        """The status, the answer, and how many times it was sent.

        Raises:
            UnansweredError: nobody answered.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        sent = 0
        while time.monotonic() < deadline:
            sent += 1
            answer = self._exchange(method, path, body)
            if answer is not None and answer[0] != http.client.SERVICE_UNAVAILABLE:
                return *answer, sent
            if answer is not None:
                self.note("unavailable")
                time.sleep(0.1)
        raise UnansweredError(path)

    def _settle(self, what: str, status: int, answer: Json, **more: Any) -> bool:
        """Whether it was taken; a refusal for the budget's sake is no fault, any other is."""
        if status in (http.client.OK, http.client.CREATED):
            self.note(what, **more)
            self.refused = False
            return True
        if status == http.client.CONFLICT and answer.get("type") == "/problems/budget-exhausted":
            self.note("refused", op=what, **more)
            self.refused = True
            return False
        self.note("fault", fault=f"{what} was answered {status}", answer=answer, **more)
        return False

    def append(self, mode: str, steps: int) -> bool:
        """Charge or record the next steps; whether they were taken."""
        first = self.next_step
        span = {"first": first, "steps": steps, "mode": mode}
        self.note("sent", **span)
        events = events_of(self.branch, first, steps, self.config)
        body = {"branch": self.branch, "mode": mode, "events": events}
        status, answer, sent = self.send("POST", f"/v1/runs/{self.run}/events", body)
        if sent > 1:
            self.doubt_until = max(self.doubt_until, first + steps)
        if not self._settle("taken", status, answer, **span):
            return False
        self._count(answer, steps)
        return True

    def _count(self, answer: Json, steps: int) -> None:
        """Go on to the step after; what was sent once and alone cannot have been there before."""
        doubted, self.next_step = self.next_step < self.doubt_until, self.next_step + steps
        new, old = answer["accepted"], answer["duplicates"]
        alone = not old and answer["next_step"] == self.next_step
        if new + old != steps or answer["next_step"] < self.next_step or not (alone or doubted):
            self.note("fault", fault="miscounted", answer=answer, doubt=self.doubt_until)

    def reserve(self) -> None:
        """Reserve steps, record some, release the rest; or forget to."""
        first, steps = self.next_step, self.random.randint(RESERVED_MIN, RESERVED_MAX)
        name = f"{self.run}.{self.branch}.{first}.{self.config.incarnation}.{steps}"
        event = {**content(0, self.config), "steps": steps}
        body = {"name": name, "branch": self.branch, "event": event, "ttl_seconds": TTL_SECONDS}
        self.note("asked", name=name, steps=steps)
        status, answer, _ = self.send("POST", f"/v1/runs/{self.run}/reservations", body)
        if not self._settle("reserved", status, answer, name=name, steps=steps):
            return
        if self.random.random() < FORGOTTEN:
            self.note("forgotten", name=name)
            return
        for _ in range(self.random.randint(1, 3)):
            self.append("record", self.random.randint(1, 2))
        self.release(name)

    def release(self, name: str) -> None:
        """Give back what was not used."""
        last = self.next_step - 1
        self.note("releasing", name=name, last=last)
        path = f"/v1/reservations/{name}:release"
        status, answer, _ = self.send("POST", path, {"last_step": last})
        if status == http.client.CONFLICT and self.next_step < self.doubt_until:
            self.note("overtaken", name=name)  # by a request whose sender is gone
            return
        self._settle("released", status, answer, name=name, last=last)

    def act(self) -> None:
        """One thing a trainer does."""
        if self.refused:
            time.sleep(0.02)
            if self.random.random() < OVERRUN:
                self.append("record", 1)
        chance = self.random.random()
        if chance < 0.35 or (chance < 0.5 and self.refused):
            self.append("charge", self.random.randint(1, STEPS_MAX))
        elif chance < 0.5:
            self.append("record", 1)
        else:
            self.reserve()

    def resume(self) -> None:
        """Find out what was recorded; go on there, send some of it again, or open a branch."""
        _, run, _ = self.send("GET", f"/v1/runs/{self.run}")
        (mine,) = [branch for branch in run["branches"] if branch["name"] == self.branch]
        self.next_step, chance = mine["next_step"], self.random.random()
        self.doubt_until = self.next_step + STEPS_MAX  # the last request of the killed process
        if chance < 0.4 and self.next_step > mine["from_step"]:
            # As a trainer does that was killed before it read the last answers.
            again = self.random.randint(1, min(6, self.next_step - mine["from_step"]))
            self.next_step -= again
            self.repeat(again)
        elif chance < 0.7:
            self.fork()

    def repeat(self, steps: int) -> None:
        """Send recorded steps again; nothing may be added."""
        events = events_of(self.branch, self.next_step, steps, self.config)
        body = {"branch": self.branch, "events": events}
        status, answer, _ = self.send("POST", f"/v1/runs/{self.run}/events", body)
        if status != http.client.OK or answer.get("duplicates") != steps:
            self.note("fault", fault="a repetition was not recognised", answer=answer)
        self.note("repeated", steps=steps)
        self.next_step += steps

    def fork(self) -> None:
        """Open a branch of one's own at the next step."""
        name = f"t{self.number}-{self.config.incarnation}"
        body = {
            "name": name,
            "writer": f"writer-token-{self.random.getrandbits(64)}",
            "from_step": self.next_step,
            "order": "fresh",
        }
        status, answer, _ = self.send("POST", f"/v1/runs/{self.run}/branches", body)
        if status not in (http.client.OK, http.client.CREATED):
            self.note("fault", fault="no branch", status=status, answer=answer)
        self.branch, self.doubt_until = name, 0
        self.note("forked", at=self.next_step)

    def work(self) -> None:
        """Connect, wait for the start, and act until the end."""
        try:
            self.send("GET", f"/v1/datasets/{self.config.dataset}")
            if self.config.incarnation:
                self.resume()
            time.sleep(max(0.0, self.config.start_at - time.time()))
            while time.time() < self.config.stop_at:
                self.act()
        except Exception as error:
            self.note("fault", fault=f"a trainer ended with {error!r}")
        finally:
            self.drop()


def main() -> None:
    """Run the trainers of a configuration until its end."""
    config = Config(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    log = os.open(config.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    threads = []
    for number, run, branch in config.trainers:
        random = Random(f"{config.seed}/{number}/{config.incarnation}")
        trainer = Trainer(config, number, run, branch, log, random)
        threads.append(threading.Thread(target=trainer.work))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
