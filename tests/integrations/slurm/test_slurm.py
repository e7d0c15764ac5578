"""The scripts of examples/slurm: under Debian's Slurm, and alone, with a real ledger."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from dpledger_client import Client
from slurm import SCRIPTS, Slurm, missing, settle

Dataset = Callable[..., str]
LIMIT = {"epsilon": 2.0, "delta": 1e-6}
TRAINER = """#!{python}
import os, time
from dpledger_client import Client, gaussian, poisson
client = Client("{url}", "{key}")
reserved = os.environ["DPLEDGER_RUN"]
with client.start_run(None, "{dataset}", reserved=reserved, spool="{spool}") as run:
    run.step(mechanism=gaussian(noise_multiplier=1.0), sampling=poisson(sampling_probability=0.005))
    print("trained", flush=True)
    time.sleep({seconds})
"""
needs_slurm = pytest.mark.skipif(bool(missing()), reason=f"not installed: {missing()}")


def comment(name: str, steps: int | str = 2000, /, **changed: str) -> str:
    """What a job says of itself; a dataset's epsilon of 2 holds 2,668 such steps."""
    said = {
        "dataset": name, "epsilon": "2", "delta": "1e-6", "noise_multiplier": "1.0",
        "sampling_probability": "0.005", "steps": steps, **changed,
    }  # fmt: skip
    return " ".join(f"{key}={value}" for key, value in said.items())


def reservations(service: Any, dataset: str) -> list[int]:
    with Client(service.url, service.token) as client:
        path = f"/v1/datasets/{dataset}/reservations"
        return [one["remaining"] for one in client._transport.get(path)["reservations"]]


def state(service: Any, run: str) -> str:
    with Client(service.url, service.token) as client:
        return str(client.run(run)["state"])


@pytest.fixture
def letters(dataset: Dataset) -> str:
    return dataset(dataset_size=60_000, budget=LIMIT)


@pytest.fixture(scope="session")
def slurm(service: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    ports = sys.modules[type(service).__module__].free_port
    slurm = Slurm(tmp_path_factory.mktemp("slurm"), (ports(), ports()))
    settle(slurm.folder, service.url, f"{service.database}.token")
    try:
        try:
            slurm.start()
        except (AssertionError, OSError, subprocess.TimeoutExpired) as error:
            pytest.skip(f"the daemons do not start on this machine: {error}")
        yield slurm
    finally:
        slurm.stop()


@pytest.fixture
def trainer(service: Any, letters: str, tmp_path: Path) -> Callable[[float], Path]:
    """A job script that trains for so many seconds."""

    def write(seconds: float = 0.0) -> Path:
        path = tmp_path / "train.py"
        said = {"python": sys.executable, "url": service.url, "key": service.token}
        said["spool"] = str(tmp_path / "spool")  # of this test, and not of its user
        path.write_text(TRAINER.format(**said, dataset=letters, seconds=seconds))
        return path

    return write


@needs_slurm
def test_a_job_that_fits_runs_and_takes_what_was_reserved(
    slurm: Slurm, service: Any, letters: str, trainer: Callable[..., Path]
) -> None:
    job = slurm.submit(trainer(), comment(letters))
    slurm.reached(job, "COMPLETED")
    assert slurm.output(job) == "trained\n"
    assert state(service, f"slurm-test-{job}-0") == "finished"


@needs_slurm
def test_a_job_that_does_not_fit_never_runs(
    slurm: Slurm, service: Any, letters: str, trainer: Callable[..., Path]
) -> None:
    first = slurm.submit(trainer(60.0), comment(letters))
    slurm.until(lambda: slurm.output(first) == "trained\n")
    assert reservations(service, letters) == [1999]
    slurm.run("scancel", first)  # before the trainer ends its run
    slurm.reached(first, "CANCELLED")
    slurm.until(lambda: reservations(service, letters) == [])
    assert state(service, f"slurm-test-{first}-0") == "aborted"
    too_long = slurm.submit(trainer(), comment(letters, 9000))
    found = slurm.reached(too_long, "CANCELLED")
    assert "do not fit in the budget" in found["text"]
    assert slurm.output(too_long) is None
    unsaid = slurm.submit(trainer(), "nothing")
    assert "dataset is missing" in slurm.reached(unsaid, "CANCELLED")["text"]
    script = slurm.folder / "free.sh"
    script.write_text("#!/bin/sh\ntrue\n")
    slurm.reached(slurm.submit(script, "nothing", "--partition=open"), "COMPLETED")


@needs_slurm
def test_without_an_answer_a_job_waits(
    slurm: Slurm, service: Any, letters: str, trainer: Callable[..., Path]
) -> None:
    service.kill()
    try:
        job = slurm.submit(trainer(), comment(letters))
        slurm.until(lambda: slurm.show(job)["Restarts"] == "1")
        assert slurm.reached(job, "PENDING")["Reason"] in ("None", "BeginTime")
        assert slurm.output(job) is None
    finally:
        service.start()
    slurm.run("scancel", job)
    again = slurm.submit(trainer(), comment(letters))  # with the new key of the service
    slurm.reached(again, "COMPLETED")
    assert slurm.output(again) == "trained\n"


def prolog(folder: Path, said: str, *, job: str = "7", script: str = "prolog") -> tuple[int, str]:
    """The exit code of a script that Slurm runs, and what it told Slurm."""
    told = folder / "told"
    told.write_text("")
    for name in ("scontrol", "scancel"):
        command = folder / name
        command.write_text(f'#!/bin/sh\necho {name} "$@" >> {told}\n')
        command.chmod(0o755)
    (folder / "sleep").write_text("#!/bin/sh\n")  # until Slurm kills it
    (folder / "sleep").chmod(0o755)
    environment = {
        "PATH": f"{folder}:{os.environ['PATH']}", "DPLEDGER_SLURM": str(folder),
        "SLURM_CLUSTER_NAME": "alone", "SLURM_JOB_ID": job, "SLURM_JOB_PARTITION": "private",
        "SLURM_JOB_COMMENT": said,
    }  # fmt: skip
    done = subprocess.run(
        [SCRIPTS / f"{script}.sh"], env=environment, capture_output=True, check=False, timeout=60
    )
    return done.returncode, told.read_text()


def test_the_scripts_alone(service: Any, letters: str, tmp_path: Path) -> None:
    settle(tmp_path, service.url, f"{service.database}.token")
    assert prolog(tmp_path, comment(letters)) == (0, "")
    assert prolog(tmp_path, comment(letters)) == (0, "")  # again: the same reservation
    assert reservations(service, letters) == [2000]
    code, told = prolog(tmp_path, comment(letters), job="8")
    assert code == 1
    assert "do not fit in the budget" in told
    assert told.endswith("scancel 8\n")
    assert prolog(tmp_path, comment(letters), script="epilog") == (0, "")
    assert reservations(service, letters) == []
    code, told = prolog(tmp_path, comment(letters))
    assert (code, "has ended" in told) == (1, True)


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"dataset": 'a"b'}, "dataset"),
        ({"dataset": "$(true)"}, "dataset"),
        ({"steps": "0"}, "steps"),
        ({"steps": "1e3"}, "steps"),
        ({"epsilon": "2,"}, "epsilon"),
        ({"delta": ""}, "delta"),
        ({"noise_multiplier": "nan"}, "noise_multiplier"),
        ({"sampling_probability": "-1"}, "sampling_probability"),
    ],
)
def test_a_bad_word_of_a_comment_is_named(
    service: Any, letters: str, tmp_path: Path, changed: dict[str, str], name: str
) -> None:
    settle(tmp_path, service.url, f"{service.database}.token")
    code, told = prolog(tmp_path, comment(letters, **changed))
    assert code == 1
    assert f"dpledger: {name} " in told
    assert reservations(service, letters) == []


def test_without_an_answer_nothing_is_cancelled(letters: str, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("dpl_none")
    settle(tmp_path, "http://127.0.0.1:9", str(key))
    assert prolog(tmp_path, comment(letters)) == (1, "")


def test_the_request_is_json(tmp_path: Path) -> None:
    script = f'. {SCRIPTS}/request.sh; make_request a 1 0 "$1" && printf %s "$request"'
    words = ["sh", "-c", script, "sh", comment("letters")]
    request = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
    assert request["name"] == "slurm-a-1-0"
    assert request["plan"][0]["steps"] == 2000
