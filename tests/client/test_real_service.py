"""The real client against the real service, on both databases."""

import threading

import pytest
from dpledger_client import BudgetExhausted, Client, RunExists, cyclic, event, gaussian, poisson

from tests.service.samples import BUDGET

NOISE = gaussian(noise_multiplier=8.0)
EVERYONE = {"kind": "full"}


@pytest.fixture
def client(address: str) -> Client:
    return Client(address)


def create(client: Client, **given: object) -> None:
    client.create_dataset(
        "data",
        dataset_size=60000,
        neighboring_relation="add_or_remove_one",
        privacy_unit="example",
        **given,  # type: ignore[arg-type]
    )


def test_a_training_loop_is_in_the_ledger(client: Client) -> None:
    create(client)
    with client, client.start_run("run", "data", delta=1e-5, flush_steps=7) as run:
        for _ in range(50):
            run.step(
                mechanism=gaussian(noise_multiplier=1.1), sampling=poisson(expected_batch_size=256)
            )
        assert run.guarantee()["steps"] == 50
        state = client.run("run")
        assert (state["steps"], state["state"]) == (50, "active")
        run.finish()
        assert client.run("run")["state"] == "finished"
        events = client.ledger("run")["events"]
        assert [(event["first_step"], event["steps"]) for event in events] == [(0, 50)]


def test_a_refused_charge_raises_before_the_step_is_taken(client: Client) -> None:
    create(client, budget=BUDGET)
    taken = 0
    with client:
        run = client.start_run("run", "data", mode="charge")

        def train() -> None:
            nonlocal taken
            while True:
                run.step(mechanism=NOISE, sampling=EVERYONE)
                taken += 1

        with pytest.raises(BudgetExhausted) as refused:
            train()
        assert refused.value.admissible_steps == 0
        assert run.next_step == taken
        assert client.run("run")["steps"] == taken > 0
        assert client.dataset("data")["spent"] <= BUDGET["epsilon"]


def test_a_second_process_must_open_a_branch(client: Client) -> None:
    create(client)
    with client:
        with client.start_run("run", "data", delta=1e-5) as run:
            run.step(mechanism=NOISE, sampling=EVERYONE, steps=10)
        with pytest.raises(RunExists):
            client.start_run("run", "data", delta=1e-5)
        with client.resume_run("run", branch="again", from_step=5) as branch:
            branch.step(mechanism=NOISE, sampling=EVERYONE, steps=10)
        assert client.run("run")["steps"] == 20


def test_threads_that_share_a_run_lose_no_step(client: Client) -> None:
    create(client)
    with client:
        with client.start_run("run", "data", delta=1e-5, flush_steps=11) as run:

            def train() -> None:
                for _ in range(60):
                    run.step(mechanism=NOISE, sampling=EVERYONE)

            threads = [threading.Thread(target=train) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert client.run("run")["steps"] == 480


def test_a_run_that_hides_its_iterates_is_told_what_that_was_worth(client: Client) -> None:
    client.create_dataset(
        "data",
        dataset_size=1000,
        neighboring_relation="replace_one",
        privacy_unit="example",
        accept=["published", "conditional"],
    )
    sampling = cyclic(batch_size=100, steps_per_pass=10)
    assumptions = {
        "data_order": "cyclic",
        "loss_smoothness": 1.0,
        "loss_convexity": 0.0,
        "learning_rate": 0.5,
        "max_grad_norm": 1.0,
        "gradient_divisor": 100.0,
        "projection_diameter": None,
        "clipping_can_be_active": True,
        "generalized_linear_model": True,
        "initialization_data_independent": True,
    }
    with client:
        plan = [event(mechanism=NOISE, sampling=sampling, steps=30)]
        run = client.start_run(
            "run", "data", delta=1e-5, release="last_iterate", assumptions=assumptions, plan=plan
        )
        for _ in range(30):
            run.step(mechanism=NOISE, sampling=sampling)
        shown = run.guarantee()["epsilon"]
        hidden = run.finish()["guarantee"]
        assert hidden["release"] == "last_iterate"
        assert hidden["epsilon"] < shown
        run.release(9)
        assert hidden["epsilon"] < run.guarantee()["epsilon"] < shown
        run.release()
        planned = client.plan(
            neighboring_relation="replace_one", dataset_size=1000, events=plan, delta=1e-5,
            accept=["published", "conditional"], release="last_iterate", assumptions=assumptions,
        )  # fmt: skip
        assert planned["epsilon"] == hidden["epsilon"]
