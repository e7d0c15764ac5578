"""Processor time of commands in fresh processes: what a shell loop pays for each answer.

    python benchmarks/commands.py [repetitions]

Prints the least and the median of user and system seconds together. The least is what the command
needs; the median has in it what else the machine did.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

REPETITIONS: Final = 7
DOCUMENT: Final = {
    "format": "dpledger/1",
    "neighboring_relation": "add_or_remove_one",
    "events": [
        {
            "steps": 14100,
            "mechanism": {"kind": "gaussian", "noise_multiplier": 1.1},
            "sampling": {"kind": "poisson", "sampling_probability": 0.0042667},
        }
    ],
}


def seconds(command: list[str]) -> float:
    """Processor seconds, user and system, of one run; its bytecode is written beforehand."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print the table."""
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else REPETITIONS
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PYTHONPYCACHEPREFIX"] = folder
        file = Path(folder) / "ledger.json"
        file.write_text(json.dumps(DOCUMENT), encoding="utf-8")
        start = [sys.executable, "-c"]
        ours = [*start, "from service.cli.main import main; main()"]
        rows = {
            "python -c pass": [*start, "pass"],
            "import numpy, scipy.special": [*start, "import numpy, scipy.special"],
            "import accounting": [*start, "import accounting"],
            "dpledger --version": [*ours, "--version"],
            "dpledger bounds": [*ours, "bounds"],
            "dpledger epsilon": [*ours, "epsilon", str(file), "--delta", "1e-5"],
        }
        print(f"{'processor seconds':30} {'least':>6} {'median':>6}")
        for name, command in rows.items():
            seconds(command)
            taken = [seconds(command) for _ in range(repetitions)]
            print(f"{name:30} {min(taken):6.2f} {statistics.median(taken):6.2f}")


if __name__ == "__main__":
    main()
