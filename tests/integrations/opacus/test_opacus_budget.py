"""A step that does not fit: no noise is drawn for it, and no weight changes."""

import math
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from dpledger_client import BudgetExhausted, Client, gaussian, loaders, poisson
from dpledger_client.integrations.opacus import LedgerAccountant, attach
from opacus.accountants import PRVAccountant, RDPAccountant
from opacus.schedulers import ExponentialNoise
from opacus_loops import RECORDS, WARNINGS, Job, equal, prepared, step, train, weights

pytestmark = [
    *(pytest.mark.filterwarnings(warning) for warning in WARNINGS),
    # Opacus' table of orders ends before the best one for few steps.
    pytest.mark.filterwarnings("ignore:Optimal order is the"),
]
EPSILON, DELTA = 2.0, 1e-5
Dataset = Callable[..., str]


def name() -> str:
    return f"run-{secrets.token_hex(4)}"


def until_refused(job: Job) -> tuple[int, list[torch.Tensor], torch.Tensor]:
    """Train until the budget is used up; the steps, and weights and generator before the last."""
    steps = 0
    while True:
        for images, labels in job.loader:
            job.optimizer.zero_grad()
            job.criterion(job.model(images), labels).backward()
            before, generator = weights(job), torch.get_rng_state()
            try:
                job.optimizer.step()
            except BudgetExhausted:
                return steps, before, generator
            steps += 1
            assert steps < 60


@pytest.mark.parametrize("mode", ["strict", "leased"])
@pytest.mark.parametrize("way", ["before", "after", "ghost"])
def test_a_refused_step_changes_nothing(
    client: Client,
    dataset: Dataset,
    spool: Path,
    mode: Literal["strict", "leased"],
    way: str,
) -> None:
    with client.start_run(name(), limited(dataset), mode=mode) as run:
        options: dict[str, Any] = {"grad_sample_mode": "ghost"} if way == "ghost" else {}
        if way == "after":
            job = prepared(noise=2.0)
            attach(job.engine, run, optimizer=job.optimizer, data_loader=job.loader)
        else:
            job = prepared(accountant=LedgerAccountant(run), noise=2.0, **options)
        steps, before, generator = until_refused(job)
        assert steps == run.next_step == fitting(client, dataset)
        assert equal(before, weights(job))
        assert torch.equal(generator, torch.get_rng_state())  # no noise was drawn
        momentum = job.optimizer.original_optimizer.state_dict()["state"][0]["momentum_buffer"]
        with pytest.raises(BudgetExhausted):
            train(job)
        assert equal(before, weights(job))
        now = job.optimizer.original_optimizer.state_dict()["state"][0]["momentum_buffer"]
        assert torch.equal(momentum, now)
    assert client.guarantee(run.name, delta=DELTA)["epsilon"] <= EPSILON
    assert sum(event["steps"] for event in client.ledger(run.name)["events"]) == steps


def limited(dataset: Dataset) -> str:
    return dataset(dataset_size=RECORDS, budget={"epsilon": EPSILON, "delta": DELTA})


def fitting(client: Client, dataset: Dataset) -> int:
    """How many of the steps the budget has room for, by asking without any training."""
    with client.start_run(
        name(),
        limited(dataset),
        mode="strict",
        mechanism=gaussian(noise_multiplier=2.0),
        sampling=poisson(sampling_probability=0.1),
    ) as run:
        while True:
            try:
                run.step()
            except BudgetExhausted:
                assert 1 < run.next_step < 60
                return run.next_step


# Epsilon


def history_of(
    client: Client, dataset: Dataset, *, gamma: float, noise: float, passes: int
) -> tuple[dict[str, Any], list[tuple[float, float, int]]]:
    """What the ledger says of a run, and the history that Opacus would have had."""
    with client.start_run(name(), dataset(dataset_size=RECORDS), delta=DELTA) as run:
        accountant = LedgerAccountant(run)
        job = prepared(accountant=accountant, noise=noise)
        scheduler = ExponentialNoise(job.optimizer, gamma=gamma)
        for _ in range(passes):
            train(job)
            scheduler.step()
        found = run.guarantee()
        assert job.engine.get_epsilon(DELTA) == found["epsilon"]
    return found, accountant.history


@pytest.mark.parametrize(
    ("noise", "gamma", "passes"), [(1.0, 1.0, 3), (0.7, 1.0, 1), (2.0, 0.8, 4)]
)
def test_epsilon_is_never_below_what_opacus_certifies_nor_above_what_it_reports(
    client: Client, dataset: Dataset, spool: Path, noise: float, gamma: float, passes: int
) -> None:
    found, history = history_of(client, dataset, gamma=gamma, noise=noise, passes=passes)
    assert sum(steps for _, _, steps in history) == 10 * passes
    upper, lower = found["epsilon"], found["epsilon_lower"]
    width = upper - lower
    assert 0 <= width < 0.02
    prv, rdp = PRVAccountant(), RDPAccountant()
    prv.history = rdp.history = history
    grid = prv._get_dprv(eps_error=0.01, delta_error=DELTA / 1000)
    certified, _, reported = grid.compute_epsilon(DELTA, DELTA / 1000, 0.01)
    assert upper >= certified  # its lower end of the true value
    assert upper <= prv.get_epsilon(DELTA) + width
    assert upper <= rdp.get_epsilon(DELTA) + width
    assert reported - certified < 0.05


def test_of_a_shuffled_loader_opacus_says_less_than_is_true(
    client: Client, dataset: Dataset, spool: Path
) -> None:
    of = dataset(
        dataset_size=RECORDS,
        relation="replace_special",
        accept=["published", "declared", "derived"],
    )
    with client.start_run(name(), of, delta=DELTA) as run:
        job = prepared(accountant=LedgerAccountant(run), poisson_sampling=False)
        alone = prepared(poisson_sampling=False)
        train(job, passes=2)
        train(alone, passes=2)
        found = run.guarantee()
    assert alone.engine.get_epsilon(DELTA) < found["epsilon_lower"]
    assert math.isfinite(found["epsilon"])


def test_what_is_not_bounded_is_infinite(client: Client, dataset: Dataset, spool: Path) -> None:
    of = dataset(dataset_size=RECORDS)
    with client.start_run(name(), of, delta=DELTA, mode="observe") as run:
        job = prepared(accountant=LedgerAccountant(run), noise=0.0)
        step(job, *next(iter(job.loader)))
        assert job.engine.get_epsilon(DELTA) == math.inf
        finding = loaders.inspect(job.loader, declared=None, dataset_size=RECORDS)
        assert finding.status == "detected"


def test_to_ask_for_epsilon_while_the_service_is_away_ends_no_training(tmp_path: Path) -> None:
    nobody = "http://127.0.0.1:9"  # a port that no service has
    with Client(nobody, retries=0) as client:
        run = client.start_run("run", "data", mode="observe", spool=tmp_path)
        assert LedgerAccountant(run).get_epsilon(1e-5) == math.inf
        run.finish("aborted")
