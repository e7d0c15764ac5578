"""The example of a sweep with Optuna: one charge, one trial shown, one certificate."""

import json
import logging
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import optuna
import pytest
from dpledger_client import Client
from dpledger_client.sweeps import trials
from optuna.samplers import RandomSampler

from examples.selection import train

ROOT = Path(__file__).parents[3]
EPSILON = re.compile(r"^(.+?) {2,}(\d+\.\d{4})$", re.M)


@pytest.fixture
def number(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of trials, which a test may set; time passes only where it is waited for."""
    chosen, present = [3], [time.time()]

    def sleep(seconds: float) -> None:
        present[0] += seconds

    clock = SimpleNamespace(time=lambda: present[0], sleep=sleep)
    monkeypatch.setattr(trials, "draw_trials", lambda law: chosen[0])
    monkeypatch.setattr(trials, "time", clock)
    monkeypatch.setattr(train, "time", clock)
    return chosen


def test_the_example_ends_in_a_certificate_that_is_verified_offline(
    client: Client, service: Any, spool: Path, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.selection.train", "--quick", "--url", service.url],
        capture_output=True, text=True, timeout=240, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    epsilons = {what: float(epsilon) for what, epsilon in EPSILON.findall(done.stdout)}
    one, sweep = epsilons["one trial alone"], epsilons["the sweep, as one selection"]
    assert one < sweep < epsilons["30 trials, each recorded"] < 30 * one
    assert epsilons["epsilon in the ledger"] == sweep

    (name,) = re.findall(r"^the best trial of the run (\S+)$", done.stdout, re.M)
    run = client.ledger(name)
    (event,) = run["events"]
    assert (event["first_step"], event["steps"]) == (0, 1)
    assert event["mechanism"]["repetitions"] == train.TRIALS
    assert event["mechanism"]["base"]["steps"] == train.QUICK_STEPS

    answer = httpx.get(
        f"{service.url}/v1/runs/{name}/certificate",
        headers={"Authorization": f"Bearer {service.token}", "Accept": "application/json"},
        timeout=60,
    )
    file = tmp_path / "certificate.json"
    file.write_bytes(answer.content)
    checked = service.verified(file)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    stated = re.findall(r"delta 0\.0001, best: \[\?, ([\d.]+)\]", checked.stdout)
    assert 0 <= sweep - float(stated[0]) <= 1e-4

    said = json.loads(answer.content)
    text = answer.text.replace(f'"steps":{train.QUICK_STEPS}', '"steps":9')
    assert json.loads(text) != said  # fewer steps of a trial than were charged
    file.write_text(text)
    assert service.verified(file).returncode == 1


def test_what_is_printed_does_not_tell_how_many_trials_there_were(
    service_url: str,
    spool: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    number: list[int],
) -> None:
    # Optuna's own handler writes to the stderr of the moment at which it was imported.
    monkeypatch.setattr(logging.getLogger("optuna"), "propagate", True)
    seen = []
    for chosen in (1, 5):
        number[0] = chosen
        optuna.logging.set_verbosity(optuna.logging.INFO)  # as it is in a new process
        train.main(["--url", service_url, "--quick"])
        said, complaint = capfd.readouterr()
        assert (complaint, caplog.messages) == ("", [])
        seen.append(re.sub(r"\d+(\.\d+)?(e[+-]\d+)?|-[0-9a-f]{8}-", "#", said))
    assert seen[0] == seen[1]


def test_no_trial_can_see_another(
    client: Client, spool: Path, monkeypatch: pytest.MonkeyPatch, number: list[int]
) -> None:
    made: list[optuna.Study] = []
    create = optuna.create_study

    def kept(**given: Any) -> optuna.Study:
        made.append(create(**given))
        return made[-1]

    monkeypatch.setattr(optuna, "create_study", kept)
    outcome = train.run_experiment(client, steps=2)
    assert len(made) == number[0]
    drawn = []
    for study in made:
        (only,) = study.trials
        assert type(study.sampler) is RandomSampler
        assert only.distributions == train.SPACE
        drawn.append(only.params)
    assert len({tuple(one.values()) for one in drawn}) == len(drawn)
    assert outcome.best.output[0] in drawn
