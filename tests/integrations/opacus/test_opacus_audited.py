"""The example of an audit, run as a user runs it."""

import re
import subprocess
from pathlib import Path

from dpledger_client import Client
from opacus_loops import SEEDED

ROOT = Path(__file__).parents[3]
LINE = re.compile(r"(\w+) +epsilon <= ([\d.]+), audit (\d+) of 200: epsilon >= ([\d.]+) .*")


def test_the_example_finds_more_where_noise_is_missing(
    client: Client, service_url: str, spool: Path
) -> None:
    done = subprocess.run(
        [*SEEDED, "examples.audited.train", "--quick", "--url", service_url],
        capture_output=True, text=True, timeout=300, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    told = {one[1]: one for one in map(LINE.fullmatch, done.stdout.splitlines()) if one}
    assert set(told) == {"none", "noise", "sampling"}
    assert {float(one[2]) for one in told.values()} == {2.049}
    # 154 against 187, each with a deviation of 5.
    assert int(told["noise"][3]) > int(told["none"][3])
    assert float(told["noise"][4]) > float(told["none"][4]) > 0
    for honest in ("none", "sampling"):  # epsilon .8 or so: what is shuffled shows no more
        assert "no contradiction" in told[honest][0]
    runs = [one for one in client.runs() if one["name"].startswith("audited-")]
    assert len(runs) == 3
    assert all(one["outside_guarantee"] == [] for one in runs)
