"""A run and its steps, in few words."""

import math
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
    return client.start_run("run", "letters", **{"flush_seconds": math.inf, **options})


def step(run: Run, noise: dict[str, Any] = QUIET, **options: Any) -> None:
    run.step(mechanism=noise, sampling=SAMPLING, **options)
