"""What a run has spent, beside a real MLflow run: in a database, in files, and with MLflow away."""

import logging
import math
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlflow
import pytest
from dpledger_client import Client, Run, gaussian, no_noise, poisson
from dpledger_client.integrations.mlflow import Mirror, log

pytestmark = [
    # MLflow's database is left to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    # MLflow says of its file store that it gets no new features.
    pytest.mark.filterwarnings("ignore:.*filesystem:FutureWarning"),
]

MECHANISM, SAMPLING = gaussian(noise_multiplier=1.5), poisson(sampling_probability=0.05)
BUDGET = {"epsilon": 3.0, "delta": 1e-5}


@pytest.fixture(scope="module", params=["sqlite", "file"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where an MLflow keeps its runs: in a database, or in files."""
    folder = tmp_path_factory.mktemp("tracking")
    return f"sqlite:///{folder}/mlflow.db" if request.param == "sqlite" else folder.as_uri()


@pytest.fixture
def tracking(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A client of that MLflow, in an experiment of the test's own."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(store)
    name = secrets.token_hex(6)
    mlflow.create_experiment(name, artifact_location=(tmp_path / "artifacts").as_uri())
    mlflow.set_experiment(name)
    return mlflow.MlflowClient()


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """An address for an MLflow that is not there; it answers nothing, and refuses until asked."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        mlflow.set_tracking_uri(f"http://127.0.0.1:{listener.getsockname()[1]}")
        yield listener


@pytest.fixture
def start(client: Client, dataset: Callable[..., str], spool: Path) -> Iterator[Callable[..., Run]]:
    runs = []

    def start(budget: dict[str, float] | None = BUDGET, **options: Any) -> Run:
        name = dataset(dataset_size=1000, budget=budget)
        declared = {"mechanism": MECHANISM, "sampling": SAMPLING, **options}
        runs.append(client.start_run(f"run-{secrets.token_hex(6)}", name, **declared))
        return runs[-1]

    yield start
    for run in runs:
        run.finish()


def points(tracking: Any, run_id: str, name: str) -> dict[int, float]:
    return {one.step: one.value for one in tracking.get_metric_history(run_id, f"dpledger.{name}")}


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_values_are_read_back_as_the_ledger_has_them(
    client: Client, start: Callable[..., Run], tracking: Any
) -> None:
    run = start()
    with mlflow.start_run() as training:
        for _ in range(30):
            run.step()
        log(run)
    guarantee, budget = run.guarantee(), run.budget
    assert budget is not None
    wanted = {
        "epsilon": guarantee["epsilon"],
        "epsilon_lower": guarantee["epsilon_lower"],
        "delta": 1e-5,
        "budget.epsilon": 3.0,
        "budget.spent": budget["spent"],
        "budget.reserved": budget["reserved"],
        "budget.remaining": budget["remaining"],
    }
    for name, value in wanted.items():
        assert points(tracking, training.info.run_id, name) == {30: value}, name
    told = tracking.get_run(training.info.run_id).data
    assert set(told.metrics) == {f"dpledger.{name}" for name in wanted}
    tags = {key: value for key, value in told.tags.items() if key.startswith("dpledger.")}
    assert tags == {
        "dpledger.run": run.name,
        "dpledger.dataset": run.dataset,
        "dpledger.url": run.url,
        "dpledger.sampling_status": client.run(run.name)["sampling_status"],
        "dpledger.core_version": guarantee["core_version"],
    }


def test_a_mirror_follows_the_training_and_ends_with_its_last_step(
    start: Callable[..., Run], tracking: Any
) -> None:
    run = start()
    with mlflow.start_run() as training, Mirror(run, every_steps=5):
        for steps in range(1, 18):
            run.step()
            if steps == 6:
                wait_for(lambda: 6 in points(tracking, training.info.run_id, "epsilon"))
    epsilons = points(tracking, training.info.run_id, "epsilon")
    assert {6, 17} <= set(epsilons)
    assert len(epsilons) <= 1 + 17 // 5
    ordered = [epsilons[step] for step in sorted(epsilons)]
    assert ordered == sorted(set(ordered))
    assert epsilons[17] == run.guarantee()["epsilon"]


def test_sizes_of_batches_and_what_they_tell_stay_in_the_trainer(
    start: Callable[..., Run], tracking: Any
) -> None:
    run = start()
    with mlflow.start_run() as training:
        for size in (41, 43, 47):
            run.step(size=size)
        log(run)
    told = tracking.get_run(training.info.run_id).data
    text = repr((sorted(told.tags.items()), sorted(told.metrics.items()), told.params))
    assert "size" not in text
    assert "refuted" not in text
    assert not {41.0, 43.0, 47.0} & set(told.metrics.values())


def test_an_epsilon_that_nothing_bounds_is_no_small_number(
    start: Callable[..., Run], tracking: Any
) -> None:
    run = start(mode="observe", mechanism=no_noise())
    with mlflow.start_run() as training:
        run.step()
        log(run)
    (value,) = points(tracking, training.info.run_id, "epsilon").values()
    assert value >= 1e308  # a database has no infinity; MLflow keeps its largest number
    assert points(tracking, training.info.run_id, "epsilon_lower") in ({}, {1: value})


def test_without_a_delta_there_are_tags_and_no_epsilon(
    start: Callable[..., Run], tracking: Any
) -> None:
    run = start(budget=None)
    with mlflow.start_run() as training:
        run.step()
        log(run)
    told = tracking.get_run(training.info.run_id).data
    assert told.tags["dpledger.run"] == run.name
    assert "dpledger.epsilon" not in told.metrics


@pytest.mark.usefixtures("listener")
def test_an_mlflow_that_is_away_is_warned_of_once_and_training_goes_on(
    start: Callable[..., Run], caplog: pytest.LogCaptureFixture
) -> None:
    run = start()
    with (
        caplog.at_level(logging.WARNING, "dpledger_client"),
        Mirror(run, every_steps=1, mlflow_run_id="0" * 32),
    ):
        for _ in range(3):
            run.step()
            time.sleep(0.7)  # several looks, each of them in vain
    (said,) = [one.message for one in caplog.records if one.name == "dpledger_client"]
    assert "refused" in said
    assert run.next_step == 3


def test_an_mlflow_that_never_answers_holds_the_end_no_longer_than_it_may(
    start: Callable[..., Run], listener: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    listener.listen()  # takes the connection and says nothing
    run = start()
    run.step()
    with caplog.at_level(logging.WARNING, "dpledger_client"):
        log(run, "0" * 32, wait_seconds=0.5)
    (said,) = [one.message for one in caplog.records if one.name == "dpledger_client"]
    assert "it does not answer" in said


def test_a_service_that_is_away_leaves_what_it_said_last(
    service_url: str, dataset: Callable[..., str], spool: Path, tracking: Any, service: Any
) -> None:
    impatient = Client(service_url, retries=1)
    name = dataset(dataset_size=1000, budget=BUDGET)
    run = impatient.start_run(f"{name}-run", name, mechanism=MECHANISM, sampling=SAMPLING)
    run.step(steps=4)
    run.flush()
    said = run.last_guarantee
    assert said is not None
    run.step()
    service.kill()
    try:
        with mlflow.start_run() as training:
            log(run, wait_seconds=60)
    finally:
        service.start()
    # At the steps that it knew of, not at those that were taken since.
    assert points(tracking, training.info.run_id, "epsilon") == {4: said["epsilon"]}
    run.finish()
    impatient.close()


def test_only_the_first_rank_speaks(
    client: Client, start: Callable[..., Run], tracking: Any
) -> None:
    first = start(rank=0, world_size=2)
    with mlflow.start_run() as training:
        second = client.start_run(
            first.name, first.dataset, rank=1, world_size=2, dataset_size=1000
        )
        second.step(mechanism=MECHANISM, sampling=SAMPLING)
        log(second)
        assert tracking.get_run(training.info.run_id).data.metrics == {}
        second.finish()


def test_what_cannot_be_mirrored_is_refused(start: Callable[..., Run], tracking: Any) -> None:
    run = start()
    with pytest.raises(ValueError, match="No MLflow run is active"):
        log(run)
    with pytest.raises(ValueError, match="every_steps"):
        Mirror(run, every_steps=0, mlflow_run_id="0" * 32)
    assert math.isfinite(run.next_step)
