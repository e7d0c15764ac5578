"""A plan that is calibrated to the budget takes all its steps."""

import subprocess
import sys
from pathlib import Path

from dpledger_client import Client

ROOT = Path(__file__).parents[3]


def test_the_script_of_the_guide_takes_all_its_steps(client: Client, spool: Path) -> None:
    words = [sys.executable, "-W", "ignore", "-m", "examples.calibrated.with_jax_privacy"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    told, result = done.stdout.splitlines()
    assert "now an envelope of exactly this training. It admits all 200 steps" in told
    assert result.startswith(("200 steps, epsilon 2.99", "200 steps, epsilon 3.0000"))
    assert client.run("logistic-1")["steps"] == 200
    assert client.dataset("pixels")["budget"]["remaining_steps"] == 0
