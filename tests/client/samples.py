"""A run and its steps, in few words."""

import json
import math
from pathlib import Path
from typing import Any

import dpledger_client as dp
from dpledger_client import Client, Run

from tests.client.fake_service import unreachable

QUIET = dp.gaussian(noise_multiplier=2.0)
LOUD = dp.gaussian(noise_multiplier=1.0)
SAMPLING = dp.poisson(sampling_probability=0.01)
MAIN = ("run", "main")
FAIL = [unreachable] * 4  # a client of three retries gives up


def start(client: Client, **options: Any) -> Run:
    """A run that sends in the background only what it must."""
    quiet = {"flush_seconds": math.inf, "flush_steps": 10**9, "wait_seconds": 0.0}
    return client.start_run(options.pop("name", "run"), "letters", **{**quiet, **options})


def observe(client: Client, **options: Any) -> Run:
    """A run that only records."""
    return start(client, mode="observe", **options)


def step(run: Run, noise: dict[str, Any] = QUIET, **options: Any) -> None:
    run.step(mechanism=noise, sampling=SAMPLING, **options)


def lines(run: Run | Path) -> list[Any]:
    """What a spool says, line by line."""
    path = run if isinstance(run, Path) else Path(str(run.spool))
    return [json.loads(line) for line in path.read_text().splitlines()]
