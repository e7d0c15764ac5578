"""The real client against the real service, on both databases."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from dpledger_client import (
    BudgetExhausted,
    Client,
    RunExists,
    SpoolError,
    UnsupportedEvent,
    cyclic,
    event,
    gaussian,
    matrix_gaussian,
    min_separation,
    poisson,
    shuffle,
)
from dpledger_client.recording.branch_writer import MODES
from dpledger_client.recording.write_ahead_file import read

from tests.conftest import AS_ADMIN
from tests.service.samples import BUDGET

NOISE = gaussian(noise_multiplier=8.0)
FULL = {"kind": "full"}


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    return tmp_path / "spool"


@pytest.fixture
def client(address: str, spool: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setenv("DPLEDGER_SPOOL", str(spool))
    with Client(address) as client:
        yield client


def create(client: Client, **given: Any) -> None:
    client.create_dataset(
        "data",
        **{
            "dataset_size": 60000,
            "neighboring_relation": "add_or_remove_one",
            "privacy_unit": "example",
            **given,
        },
    )


@pytest.mark.parametrize("mode", MODES)
def test_a_training_loop_is_in_the_ledger(client: Client, mode: Any) -> None:
    create(client, budget={"epsilon": 50.0, "delta": 1e-5})
    with client.start_run(
        "run", "data", mode=mode, mechanism=gaussian(noise_multiplier=1.1),
        sampling=poisson(expected_batch_size=256), delta=1e-5, flush_steps=7,
    ) as run:  # fmt: skip
        for _ in range(50):
            run.step()
        guarantee = run.guarantee()
        assert guarantee["steps"] == 50
        assert run.epsilon == guarantee["epsilon"] > guarantee["epsilon_lower"] > 0
        state = client.run("run")
        assert (state["steps"], state["state"]) == (50, "active")
    assert client.run("run")["state"] == "finished"
    events = client.ledger("run")["events"]
    assert [(event["first_step"], event["steps"]) for event in events] == [(0, 50)]
    assert events[0]["mechanism"] == gaussian(noise_multiplier=1.1)
    assert events[0]["sampling"] == poisson(sampling_probability=256 / 60000)
    assert client.dataset("data")["reserved"] == 0


def test_what_a_run_costs_does_not_depend_on_how_it_was_told(client: Client) -> None:
    create(client, neighboring_relation="replace_special", budget={"epsilon": 50.0, "delta": 1e-5})
    before, costs = 0.0, []
    for mode in MODES:
        with client.start_run(
            f"run-{mode}", "data", mode=mode, lease_steps=9, flush_steps=7
        ) as run:
            for step in range(60):
                sampling = shuffle(batch_size=6000, steps_per_pass=10) if step // 15 % 2 else FULL
                run.step(mechanism=NOISE, sampling=sampling)
            costs.append(run.guarantee()["epsilon"])
        assert client.run(f"run-{mode}")["steps"] == 60
        spent = client.dataset("data")["spent"]
        assert spent > before
        before = spent
    assert costs[0] == costs[1] == costs[2]


@pytest.mark.parametrize("mode", ["leased", "strict"])
def test_what_does_not_fit_raises_before_the_step_is_taken(client: Client, mode: Any) -> None:
    create(client, budget=BUDGET)
    taken = 0
    run = client.start_run("run", "data", mode=mode, mechanism=NOISE, sampling=FULL)

    def train() -> None:
        nonlocal taken
        while True:
            run.step()
            taken += 1

    with pytest.raises(BudgetExhausted) as refused:
        train()
    assert refused.value.admissible_steps == 0
    assert [scope["scope"] for scope in refused.value.failing_scopes] == ["dataset:data"]
    assert run.next_step == taken > 0
    run.step(mechanism=gaussian(noise_multiplier=1e4))  # a cheaper one fits: the run is usable
    run.finish()
    assert client.run("run")["steps"] == taken + 1
    dataset = client.dataset("data")
    assert dataset["spent"] <= BUDGET["epsilon"]
    assert (dataset["reserved"], dataset["budget"]["overdrawn"]) == (0, False)


@pytest.mark.parametrize("mode", ["leased", "strict"])
def test_after_a_refused_step_of_another_kind_the_old_kind_is_asked_for_anew(
    client: Client, mode: Any
) -> None:
    create(client, budget=BUDGET)
    run = client.start_run("run", "data", mode=mode, mechanism=NOISE, sampling=FULL)
    run.step()
    with pytest.raises(BudgetExhausted):
        run.step(mechanism=gaussian(noise_multiplier=0.01))
    with client.start_run("other", "data", mode="leased", lease_steps=1) as other:

        def use_up() -> None:
            while True:
                other.step(mechanism=NOISE, sampling=FULL)

        with pytest.raises(BudgetExhausted):
            use_up()  # with what the first run had to give back
    with pytest.raises(BudgetExhausted):
        run.step()
    run.finish()
    assert client.dataset("data")["budget"]["overdrawn"] is False


def test_an_observed_run_is_never_refused_and_the_overdraft_is_told(client: Client) -> None:
    create(client, budget=BUDGET)
    with client.start_run("run", "data", mode="observe", mechanism=NOISE, sampling=FULL) as run:
        run.step(steps=100_000)
        run.flush()
        assert run.verdict == "overdraft"
    assert client.run("run")["steps"] == 100_000
    assert client.dataset("data")["budget"]["overdrawn"] is True


@pytest.mark.parametrize("mode", ["leased", "strict"])
def test_a_step_that_no_theorem_bounds_is_refused(client: Client, mode: Any) -> None:
    create(client, budget=BUDGET)
    with client.start_run("run", "data", mode=mode, sampling=FULL) as run:
        with pytest.raises(UnsupportedEvent):
            run.step(mechanism={"kind": "none"})
        run.step(mechanism=NOISE)
    assert client.run("run")["steps"] == 1


def test_what_is_left_of_a_lease_returns_when_training_ends(client: Client) -> None:
    create(client, budget=BUDGET)
    run = client.start_run("run", "data", mechanism=NOISE, sampling=FULL, lease_steps=3)
    run.step()
    assert client.dataset("data")["reserved"] > 0
    run.finish("aborted")
    dataset = client.dataset("data")
    assert (dataset["reserved"], dataset["spent"] > 0) == (0, True)
    assert client.run("run")["state"] == "aborted"


def test_another_machine_goes_on_from_a_checkpoint_on_a_branch(
    client: Client, tmp_path: Path
) -> None:
    create(client)
    run = client.start_run("run", "data", delta=1e-5, mechanism=NOISE, sampling=FULL)
    run.step(steps=5)
    state = run.state_dict()
    run.step(steps=5)
    with pytest.raises(RunExists):
        client.start_run("run", "data", delta=1e-5)
    again = client.start_run(
        "run", "data", state=state, mechanism=NOISE, sampling=FULL, spool=tmp_path / "elsewhere"
    )
    assert again.next_step == 5
    again.step(steps=10)
    for one in (run, again):
        one.finish()
    found = client.run("run")
    assert [(one["from_step"], one["next_step"]) for one in found["branches"]] == [(0, 10), (5, 15)]
    assert [one["name"] for one in found["branches"]] == ["main", again.branch]
    assert found["steps"] == 20


def test_a_rewound_run_keeps_what_it_spent(client: Client) -> None:
    create(client)
    with client.start_run("run", "data", delta=1e-5, mechanism=NOISE, sampling=FULL) as run:
        run.step(steps=5)
        state = run.state_dict()
        run.step(steps=7)
        run.load_state_dict(state)
        assert run.next_step == 5
        run.step(steps=7)
        assert run.guarantee()["steps"] == 19
    assert client.run("run")["steps"] == 19


def test_threads_that_share_a_run_lose_no_step(client: Client) -> None:
    create(client)
    with client.start_run(
        "run", "data", delta=1e-5, mechanism=NOISE, sampling=FULL, flush_steps=11
    ) as run:

        def train() -> None:
            for _ in range(60):
                run.step()

        threads = [threading.Thread(target=train) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert client.run("run")["steps"] == 480


def test_a_spool_is_closed_once_the_service_has_it_all(client: Client, spool: Path) -> None:
    create(client)
    run = client.start_run("run", "data", mechanism=NOISE, sampling=FULL)
    run.step(steps=3)
    (path,) = spool.glob("*.spool")
    ((told, error),) = client.sync(spool)  # type: ignore[misc]
    assert (told, type(error)) == (path, SpoolError)
    assert "its trainer still runs" in str(error)
    run.finish()
    contents = read(path)
    assert (contents.next_step, contents.end, contents.closed) == (3, "finished", True)
    assert list(client.sync(spool)) == []


def test_a_run_at_its_end_has_its_certified_epsilon_where_a_delta_is_known(client: Client) -> None:
    create(client)
    sampling = poisson(expected_batch_size=256)
    run = client.start_run("run", "data", mechanism=NOISE, sampling=sampling, delta=1e-5)
    run.step(steps=40)
    ended = run.finish()
    assert ended is not None
    assert ended["guarantee"] == run.guarantee()
    assert ended["guarantee"]["epsilon"] > ended["guarantee"]["epsilon_lower"] > 0
    run = client.start_run("other", "data", mechanism=NOISE, sampling=sampling)
    run.step(steps=40)
    ended = run.finish()
    assert ended is not None
    assert (ended["state"], ended["guarantee"]) == ("finished", None)


def test_a_run_that_hides_its_iterates_is_told_what_that_was_worth(client: Client) -> None:
    create(
        client,
        dataset_size=1000,
        neighboring_relation="replace_one",
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
    plan = [event(mechanism=NOISE, sampling=sampling, steps=30)]
    run = client.start_run(
        "run", "data", delta=1e-5, release="last_iterate", assumptions=assumptions, plan=plan
    )
    for _ in range(30):
        run.step(mechanism=NOISE, sampling=sampling)
    shown = run.guarantee()["epsilon"]
    ended = run.finish()
    assert ended is not None
    hidden = ended["guarantee"]
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
    several = client.plan(
        neighboring_relation="replace_one", dataset_size=1000, events=plan, delta=1e-5,
        accept=["published", "derived"], rows_per_unit=3,
    )  # fmt: skip
    assert several["unit"]["epsilon"] > several["epsilon"]


@pytest.mark.parametrize("before", [0, 5])
@pytest.mark.parametrize("mode", ["strict", "leased"])
def test_a_pass_of_correlated_noise_is_in_the_ledger(
    client: Client, mode: Any, before: int
) -> None:
    create(client, accept=["published", "derived", "declared"])
    digest = client.keep_strategy({"kind": "toeplitz", "coefficients": [1.0, 0.5, 0.375, 0.3125]})
    mechanism = matrix_gaussian(noise_multiplier=4.0, strategy=digest)
    sampling = min_separation(steps_per_pass=16, min_separation=4, placement="by_record")
    with client.start_run(
        "run", "data", mode=mode, mechanism=mechanism, sampling=sampling, delta=1e-6
    ) as run:
        for step in range(16):
            if step == before:  # a pass of leases that do not know where it began
                run.step(mechanism=gaussian(noise_multiplier=1e6), sampling=FULL)
            run.step()
        charged = run.guarantee()["epsilon"]
        with pytest.raises(UnsupportedEvent):
            run.step()
    release = gaussian(noise_multiplier=4.0 / 5.953125**0.5)
    planned = client.plan(
        neighboring_relation="add_or_remove_one", delta=1e-6,
        events=[event(mechanism=release, sampling=FULL, steps=1)],
    )  # fmt: skip
    assert charged == pytest.approx(planned["epsilon"], abs=1e-6)


def test_a_run_that_takes_all_that_fits_alarms_only_where_a_step_is_refused(
    client: Client, address: str
) -> None:
    create(client, budget=BUDGET)
    run = client.start_run("run", "data", mode="leased", mechanism=NOISE, sampling=FULL)
    with pytest.raises(BudgetExhausted) as refused:
        run.admit(10**9)
    fits = refused.value.admissible_steps
    assert refusals(address) == ["refusal"]
    run.finish()
    healthy = client.start_run("healthy", "data", mode="leased", mechanism=NOISE, sampling=FULL)
    for _ in range(fits):  # reservations grow until what is left is less than the next one
        healthy.step()
    assert refusals(address) == ["refusal"]
    with pytest.raises(BudgetExhausted):
        healthy.step()
    assert refusals(address) == ["refusal"] * 2


def refusals(address: str) -> list[str]:
    """The incidents of refused steps."""
    answer = httpx.get(f"{address}/v1/datasets/data/incidents", headers=AS_ADMIN)
    found = [one["kind"] for one in answer.json()["incidents"]]
    return [kind for kind in found if kind == "refusal"]


@pytest.mark.parametrize("mode", ["leased", "strict"])
def test_a_finished_run_stays_finished_if_no_more_steps_fit(client: Client, mode: Any) -> None:
    create(client, budget=BUDGET)
    with client.start_run("run", "data", mode=mode, mechanism=NOISE, sampling=FULL) as run:
        run.step()
    strong = gaussian(noise_multiplier=0.01)
    for kept in ("finished", "aborted"):
        with (
            client.start_run("run", "data", mode=mode, resume="allow", sampling=FULL) as again,
            pytest.raises(BudgetExhausted, match="Run run has taken 1 step"),
        ):
            again.step(mechanism=strong)
        assert client.run("run")["state"] == kept
        again = client.start_run("run", "data", mode=mode, resume="allow")
        again.finish("aborted")
    assert client.dataset("data")["reserved"] == 0
