"""A training script as people write them, to be run again after whatever ended it.

    python -m tests.client.failures.resumable URL FOLDER STEPS END [state]

It writes a line for each step that it takes, and with `state` a checkpoint every 5 steps.
"""

import json
import os
import signal
import sys
from pathlib import Path

import dpledger_client as dp


def main(url: str, folder: Path, steps: int, end: str, keeps: bool) -> None:
    kept, taken = folder / "checkpoint.json", folder / "taken"
    state = json.loads(kept.read_text()) if kept.exists() else None
    client = dp.Client(url, retries=2)
    with client.start_run(
        "run",
        "data",
        state=state,
        resume="allow",
        lease_steps=50,
        mechanism=dp.gaussian(noise_multiplier=12.0),
        sampling=dp.full(),
    ) as run:
        for number in range(1, steps + 1):
            run.step()
            with taken.open("a") as file:
                file.write("step\n")
            if keeps and number % 5 == 0:
                kept.write_text(json.dumps(run.state_dict()))
        if end == "memory":
            raise MemoryError
        if end != "finish":
            os.kill(os.getpid(), getattr(signal, end))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4], "state" in sys.argv[5:])
