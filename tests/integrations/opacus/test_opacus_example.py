"""The example, as a reader runs it."""

import re
import subprocess
import sys
from pathlib import Path

from dpledger_client import Client

ROOT = Path(__file__).parents[3]


def test_the_example_trains_and_says_what_it_cost(
    client: Client, service_url: str, spool: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.opacus_cnn.train", "--quick", "--url", service_url],
        capture_output=True, text=True, timeout=120, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    first, second = done.stdout.splitlines()[:2]
    assert "admits" in first
    assert second == "60 steps, each in the ledger before its noise was drawn"
    told = re.search(r"epsilon  ([\d.]+) at .*; some lose ([\d.]+)\n +([\d.]+) by Op", done.stdout)
    assert told is not None, done.stdout
    upper, lower, opacus = (float(number) for number in told.groups())
    assert lower <= upper <= opacus + (upper - lower)
    (run,) = [run for run in client.runs() if run["name"].startswith("digits-")]
    assert (run["steps"], run["state"]) == (60, "finished")
    assert client.guarantee(run["name"])["epsilon"] <= upper
