"""A trainer for benchmarks/kills.py, which starts it, kills it and starts the next.

    python -m benchmarks.doomed CONFIG

It counts each step and then says in a file of its own, which is only ever appended to, that the
noise of the step was drawn: what that file says has happened, whenever the process is killed.
"""

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from dpledger_client import Client, gaussian, poisson, shuffle

DATASET_SIZE: Final = 60000
BLOCK: Final = 35  # steps in a row of one kind; more than three passes, so that one is cut short
PASS: Final = 10  # steps of a pass
QUIET: Final = {
    "mechanism": gaussian(noise_multiplier=40.0),
    "sampling": poisson(sampling_probability=0.01),
}
PASSING: Final = {
    "mechanism": gaussian(noise_multiplier=60.0),
    "sampling": shuffle(batch_size=DATASET_SIZE // PASS, steps_per_pass=PASS),
}
CHECKPOINT_CHANCE: Final = 0.02  # of a step


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What a trainer is told; every field is JSON."""

    url: str
    run: str
    dataset: str
    spool: str
    checkpoint: str  # a file; training goes on from it if it is there
    account: str
    pause_seconds: float  # the longest of a step
    seed: int

    def write(self, path: Path) -> None:
        """For the process to read."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")


def what(step: int) -> dict[str, Any]:
    """The kind of a step: whoever takes it, and takes it again."""
    return PASSING if step // BLOCK % 2 else QUIET


def keep(path: Path, state: dict[str, Any]) -> None:
    """A checkpoint: the one before, or this one, whenever the process is killed."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(state), encoding="utf-8")
    new.replace(path)


def main() -> None:
    """Train until killed."""
    config = Config(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    account = os.open(config.account, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    checkpoint, random = Path(config.checkpoint), Random(config.seed)
    state = None
    if checkpoint.exists():  # no order is used again, so what it costs is that of a run of its own
        state = json.loads(checkpoint.read_text(encoding="utf-8")) | {"order": "fresh"}
    run = Client(config.url).start_run(
        config.run, config.dataset, state=state, delta=1e-5, spool=config.spool,
        flush_steps=50, flush_seconds=0.3,
    )  # fmt: skip
    place = f"{config.run} {run.branch}"
    os.write(account, f"opened {place}\n".encode())
    while True:
        step = run.next_step
        run.step(**what(step))
        os.write(account, f"drawn {place} {step}\n".encode())
        if random.random() < CHECKPOINT_CHANCE:
            keep(checkpoint, run.state_dict())
        time.sleep(random.uniform(0, config.pause_seconds))


if __name__ == "__main__":
    main()
