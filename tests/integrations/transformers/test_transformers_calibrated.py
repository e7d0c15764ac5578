"""A training that is calibrated to the budget takes all its steps under the Trainer."""

import subprocess
import sys
from pathlib import Path

from dpledger_client import Client

ROOT = Path(__file__).parents[3]


def test_the_script_of_the_guide_takes_all_its_steps(client: Client, spool: Path) -> None:
    words = [sys.executable, "-W", "ignore", "-m", "examples.calibrated.with_transformers"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stdout.splitlines() if line.startswith("dpledger: ")]
    assert len(told) == 1
    assert "now an envelope of exactly this training. It admits all 100 steps" in told[0]
    assert "\n100 steps, epsilon 2.9" in done.stdout
    assert client.run("bert-1")["steps"] == 100
    assert client.dataset("shades")["budget"]["remaining_steps"] == 0
