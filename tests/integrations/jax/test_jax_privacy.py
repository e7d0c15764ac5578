"""Real JAX-Privacy plans, trained: each step is in the ledger, and the weights are the same."""

import dataclasses
import json
import os
import secrets
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from dpledger_client import BudgetExhausted, Client, Run
from dpledger_client.integrations.jax_privacy import (
    Ledger,
    UnsupportedPlan,
    plan_events,
    with_secret_key,
)
from jax_privacy import batch_selection, noise_addition
from jax_privacy.batch_selection import (
    BallsInBinsSampling,
    BMinSepSampling,
    CyclicPoissonSampling,
    FixedBatchSampling,
    PartitionType,
    UserSelectionStrategy,
)
from jax_privacy.experimental.execution_plan import BandMFExecutionPlanConfig, DPExecutionPlan
from jax_privacy.matrix_factorization import streaming_matrix
from sklearn.datasets import load_breast_cancer

# JAX-Privacy asks optax for norms by a name that optax is about to drop.
pytestmark = pytest.mark.filterwarnings("ignore:optax.global_norm is deprecated:DeprecationWarning")
STEPS = 12
NOISE = 1.5
WIDTH = 1e-4
COINS = 3  # tests repeat what they draw; training must not
FEATURES, LABELS = load_breast_cancer(return_X_y=True)
FEATURES = jnp.asarray(FEATURES / FEATURES.max(axis=0), dtype=jnp.float32)
LABELS = jnp.asarray(LABELS, dtype=jnp.float32)
RECORDS = len(LABELS)
Dataset = Callable[..., str]
Batches = Iterable[np.ndarray[Any, Any]]
INDEPENDENT = PartitionType.INDEPENDENT


def plan(selection: Any = None, **changed: Any) -> DPExecutionPlan:
    """DP-SGD as the library configures it, with another batch selection if one is given."""
    settings: dict[str, Any] = {
        "iterations": STEPS,
        "strategy": np.ones(1),
        "epsilon": None,
        "delta": None,
        "noise_multiplier": NOISE,
        "sampling_prob": 0.1,
    }
    made = with_secret_key(BandMFExecutionPlanConfig(**{**settings, **changed}).plan)
    if selection is None:
        return made
    return dataclasses.replace(made, batch_selection_strategy=selection)


def loss(weights: jax.Array, features: jax.Array, labels: jax.Array) -> jax.Array:
    return optax.sigmoid_binary_cross_entropy(features @ weights, labels).mean()


def train(plan: DPExecutionPlan, batches: Batches) -> Iterator[np.ndarray[Any, Any]]:
    """Logistic regression; the weights after each step."""
    gradient = jax.jit(plan.clipped_grad(loss, batch_argnums=(1, 2)))
    weights = jnp.zeros(FEATURES.shape[1])
    state = plan.noise_addition_transform.init(weights)
    for indices in batches:
        rows = np.full(max(64, -(-len(indices) // 64) * 64), -1)  # few shapes to compile for
        rows[: len(indices)] = indices
        total = gradient(weights, FEATURES[rows], LABELS[rows], is_padding_example=rows < 0)
        noisy, state = plan.noise_addition_transform.update(total, state)
        weights = weights - 0.05 * noisy
        yield np.asarray(weights)


def plain(plan: DPExecutionPlan) -> list[np.ndarray[Any, Any]]:
    """The same without a ledger."""
    return list(train(plan, plan.batch_selection_strategy.batch_iterator(RECORDS, COINS)))


@pytest.fixture
def start(client: Client, dataset: Dataset, spool: Path) -> Callable[..., Run]:
    def start_run(relation: str = "add_or_remove_one", **options: Any) -> Run:
        budget, mode = options.get("budget"), options.get("mode", "leased")
        name = dataset(
            dataset_size=RECORDS,
            relation=relation,
            budget=budget,
            accept=["published", "derived"],
        )
        run = f"run-{secrets.token_hex(4)}"
        return client.start_run(run, name, mode=mode, delta=1e-5, lease_steps=5)

    return start_run


@pytest.mark.parametrize(
    ("strategy", "relation", "sampling"),
    [
        (
            CyclicPoissonSampling(0.1, STEPS),
            "add_or_remove_one",
            {"kind": "poisson", "sampling_probability": 0.1},
        ),
        (
            CyclicPoissonSampling(0.001, STEPS),  # most batches are empty, and are steps too
            "replace_special",
            {"kind": "poisson", "sampling_probability": 0.001},
        ),
        (
            CyclicPoissonSampling(0.1, STEPS, truncated_batch_size=60),
            "replace_special",
            {"kind": "truncated_poisson", "sampling_probability": 0.1, "max_batch_size": 60},
        ),
        (
            CyclicPoissonSampling(0.3, STEPS, cycle_length=4),
            "replace_one",
            {"kind": "poisson", "sampling_probability": 0.3},
        ),
        (
            CyclicPoissonSampling(0.3, STEPS, cycle_length=4, partition_type=INDEPENDENT),
            "add_or_remove_one",
            {"kind": "poisson", "sampling_probability": 0.3},
        ),
        (
            CyclicPoissonSampling(1.0, STEPS, cycle_length=4),
            "replace_special",
            {"kind": "cyclic", "batch_size": RECORDS // 4, "steps_per_pass": 4},
        ),
        (
            FixedBatchSampling(50, STEPS),
            "replace_one",
            {"kind": "fixed_size", "batch_size": 50},
        ),
        (
            FixedBatchSampling(50, STEPS, replace=True),
            "replace_one",
            {"kind": "with_replacement", "batch_size": 50},
        ),
        (
            BallsInBinsSampling(STEPS, STEPS),
            "add_or_remove_one",
            {"kind": "balls_and_bins", "steps_per_pass": STEPS},
        ),
        (
            BallsInBinsSampling(STEPS, 5),
            "replace_special",
            {"kind": "cyclic", "batch_size": RECORDS // 5, "steps_per_pass": 5},
        ),
        (BallsInBinsSampling(STEPS, 5), "add_or_remove_one", {"kind": "full"}),
    ],
)
def test_each_step_is_in_the_ledger_and_the_weights_are_the_same(
    client: Client,
    start: Callable[..., Run],
    strategy: batch_selection.BatchSelectionStrategy,
    relation: str,
    sampling: dict[str, Any],
) -> None:
    selected = plan(strategy)
    with start(relation) as run:
        ledger = Ledger(run, selected, relation=relation)
        weights = list(train(selected, ledger.batches(RECORDS, COINS)))
    assert len(weights) == STEPS
    assert np.array_equal(np.stack(weights), np.stack(plain(selected)))
    [event] = client.ledger(run.name)["events"]
    assert event == {
        "first_step": 0,
        "steps": STEPS,
        "mechanism": {"kind": "gaussian", "noise_multiplier": NOISE},
        "sampling": sampling,
    }
    assert client.guarantee(run.name)["epsilon"] is not None


@pytest.mark.parametrize("mode", ["leased", "strict"])
def test_training_ends_before_the_step_that_the_budget_refuses(
    client: Client, start: Callable[..., Run], mode: str
) -> None:
    selected = plan()
    taken: list[np.ndarray[Any, Any]] = []

    def go_on(run: Run) -> Ledger:
        ledger = Ledger(run, selected)
        steps = train(selected, ledger.batches(RECORDS, COINS))
        with pytest.raises(BudgetExhausted):
            deque(map(taken.append, steps))
        return ledger

    with start(mode=mode, budget={"epsilon": 1.3, "delta": 1e-5}) as run:
        left = go_on(run).steps_left
        before = len(taken)
        assert go_on(run).steps_left == STEPS  # asked again, refused again
    assert 0 < before == len(taken) == STEPS - left < STEPS
    assert client.run(run.name)["steps"] == before
    assert client.dataset(run.dataset)["spent"] <= 1.3
    assert np.array_equal(np.stack(taken), np.stack(plain(selected)[:before]))


def test_epsilon_is_at_most_what_the_plan_s_own_accountant_says(
    client: Client, start: Callable[..., Run]
) -> None:
    for relation in ("add_or_remove_one", "replace_special"):
        accountant = dp_accounting.pld.PLDAccountant(
            dp_accounting.NeighboringRelation[relation.upper()]
        )
        made = plan(accountant=accountant, partition_type=INDEPENDENT)
        with start(relation) as run:
            list(train(made, Ledger(run, made).batches(RECORDS, COINS)))
            found = run.guarantee(delta=1e-5)
        theirs = accountant.compose(made.dp_event).get_epsilon(1e-5)
        assert found["epsilon_lower"] <= found["epsilon"] <= theirs + WIDTH
        assert theirs - WIDTH <= found["epsilon"]


def train_and_die(name: str, data: str, path: str) -> None:
    """What another process does: five steps, a checkpoint, two steps, and gone."""
    run = Client(os.environ["DPLEDGER_URL"]).start_run(name, data, delta=1e-5)
    batches = Ledger(run, plan()).batches(RECORDS, COINS)
    deque(islice(batches, 5))
    Path(path).write_text(json.dumps(run.state_dict()))
    deque(islice(batches, 2))
    os._exit(9)


def test_a_run_that_resumes_goes_on_on_a_branch_and_no_step_is_lost(
    client: Client, dataset: Dataset, spool: Path, tmp_path: Path
) -> None:
    data, path = dataset(dataset_size=RECORDS), tmp_path / "checkpoint.json"
    words = f"import test_jax_privacy as t; t.train_and_die('resumed', {data!r}, {str(path)!r})"
    died = subprocess.run([sys.executable, "-c", words], cwd=Path(__file__).parent, check=False)
    assert died.returncode == 9
    state = json.loads(path.read_text())
    assert state["next_step"] == 5
    with client.start_run("resumed", data, state=state) as run:
        rest = plan(CyclicPoissonSampling(0.1, STEPS - 5))
        assert len(list(Ledger(run, rest).batches(RECORDS, COINS + 1))) == STEPS - 5
        assert (run.next_step, run.branch) != (STEPS, "main")
    assert client.run("resumed")["steps"] == STEPS + 2  # the two after the checkpoint are spent


def test_the_noise_that_is_drawn_counts_where_it_is_less_than_the_event_says() -> None:
    def noise(made: DPExecutionPlan) -> Any:
        [event] = plan_events(made)
        return event["mechanism"].get("noise_multiplier")

    def with_noise(stddev: float, made: DPExecutionPlan) -> DPExecutionPlan:
        privatizer = noise_addition.gaussian_privatizer(stddev=stddev)
        return with_secret_key(dataclasses.replace(made, noise_addition_transform=privatizer))

    made = plan(l2_clip_norm=0.3, rescale_to_unit_norm=False, normalize_by=7.0)
    assert noise(made) == NOISE
    assert noise(with_noise(0.3 / 7.0, made)) == pytest.approx(1.0, rel=1e-15)
    assert noise(with_noise(3.0, made)) == NOISE  # more than was asked for is not believed
    assert noise(with_noise(0.0, made)) is None
    # A strategy matrix of one band only scales, in single precision.
    assert noise(plan(strategy=np.array([0.3]))) == pytest.approx(NOISE, rel=1e-6)
    # Under replace_one the plan draws twice the noise that its event states.
    replacing = dp_accounting.pld.PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_ONE)
    doubled = plan(accountant=replacing)
    assert noise(doubled) == NOISE
    less = dataclasses.replace(doubled, dp_event=dp_accounting.UnsupportedDpEvent())
    assert noise(less) == pytest.approx(2 * NOISE, rel=1e-15)
    assert noise(dataclasses.replace(made, dp_event=dp_accounting.NonPrivateDpEvent())) is None


def foreign() -> optax.GradientTransformation:
    """Somebody else's, which has what the library's has and draws no noise."""
    stddev, noising_matrix = 9.0, streaming_matrix.identity()

    def update(total: Any, state: Any, params: Any = None) -> Any:
        return total, (state, stddev, noising_matrix)

    return optax.GradientTransformation(lambda params: (), update)


@dataclasses.dataclass(frozen=True)
class Sorted(CyclicPoissonSampling):
    """A strategy that is derived from a known one, and may do anything."""


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"batch_selection_strategy": BMinSepSampling(0.1, STEPS, 3)}, "BMinSepSampling has no"),
        (
            {"batch_selection_strategy": UserSelectionStrategy(CyclicPoissonSampling(0.1, STEPS))},
            "UserSelectionStrategy has no",
        ),
        ({"batch_selection_strategy": Sorted(0.1, STEPS)}, "Sorted has no"),
        (
            {"batch_selection_strategy": CyclicPoissonSampling(0.1, STEPS, 60, cycle_length=2)},
            "A cycle of truncated",
        ),
        (
            {"batch_selection_strategy": CyclicPoissonSampling(0.1, STEPS, cycle_length=2)},
            "EQUAL_SPLIT groups",
        ),
        ({"batch_selection_strategy": CyclicPoissonSampling(0.0, STEPS)}, "sampling_prob"),
        ({"batch_selection_strategy": CyclicPoissonSampling(float("nan"), STEPS)}, "sampling_prob"),
        ({"batch_selection_strategy": CyclicPoissonSampling(0.1, 0)}, "iterations"),
        ({"batch_selection_strategy": CyclicPoissonSampling(0.1, STEPS, 0)}, "truncated_batch"),
        ({"batch_selection_strategy": FixedBatchSampling(0, STEPS)}, "batch_size"),
        ({"batch_selection_strategy": FixedBatchSampling(RECORDS + 1, STEPS)}, "above"),
        ({"noise_addition_transform": optax.identity()}, "cannot be read"),
        ({"noise_addition_transform": foreign()}, "cannot be read"),
        ({"noise_addition_transform": optax.chain(optax.identity())}, "cannot be read"),
        (
            {
                "noise_addition_transform": noise_addition.matrix_factorization_privatizer(
                    np.eye(STEPS), stddev=9.0
                )
            },
            "correlated",
        ),
        ({"clipped_grad": lambda fun: fun}, "norm bound"),
    ],
)  # fmt: skip
def test_a_part_without_an_equal_is_refused(changed: dict[str, Any], reason: str) -> None:
    with pytest.raises(UnsupportedPlan, match=reason):
        plan_events(dataclasses.replace(plan(), **changed), dataset_size=RECORDS)


def test_a_norm_without_bound_is_refused() -> None:
    made = plan()
    unbounded = plan(l2_clip_norm=float("inf"), rescale_to_unit_norm=False)
    mixed = dataclasses.replace(made, clipped_grad=unbounded.clipped_grad)
    with pytest.raises(UnsupportedPlan, match="not positive and finite"):
        plan_events(mixed)


@pytest.mark.parametrize(
    "strategy",
    [
        FixedBatchSampling(50, STEPS),
        CyclicPoissonSampling(0.1, STEPS, truncated_batch_size=60),
        BallsInBinsSampling(STEPS, 5),
    ],
)
def test_where_sizes_count_they_must_be_the_dataset_s(
    start: Callable[..., Run], strategy: Any
) -> None:
    with pytest.raises(UnsupportedPlan, match="dataset_size"):
        plan_events(plan(strategy))
    with start("replace_one") as run:
        ledger = Ledger(run, plan(strategy))
        with pytest.raises(ValueError, match="num_examples differs from dataset_size"):
            ledger.batches(RECORDS - 1)
        assert run.next_step == 0


def test_a_plan_is_not_run_twice_by_one_ledger(start: Callable[..., Run]) -> None:
    with start() as run:
        ledger = Ledger(run, plan())
        assert len(list(ledger.batches(RECORDS, COINS))) == STEPS
        with pytest.raises(ValueError, match="Batches were already drawn"):
            ledger.batches(RECORDS, COINS)
        with pytest.raises(ValueError, match="no step left"):
            ledger.step()
        by_hand = Ledger(run, plan())
        by_hand.step(size=50)
        assert (run.next_step, by_hand.steps_left) == (STEPS + 1, STEPS - 1)


def test_a_plan_does_not_go_on_with_the_broken_pass_of_another(
    client: Client, start: Callable[..., Run]
) -> None:
    bins = plan(BallsInBinsSampling(4, 4))
    run = start()
    for _ in range(2):  # whole passes, each of bins of its own
        list(Ledger(run, bins).batches(RECORDS))
    broken = Ledger(run, bins).batches(RECORDS)
    next(broken)
    with pytest.raises(UnsupportedPlan, match="stopped within a pass"):
        Ledger(run, bins)
    checkpoint = run.state_dict()
    next(broken)
    run.load_state_dict(checkpoint)  # the branch begins with a fresh pass
    list(Ledger(run, bins).batches(RECORDS))
    run.finish()
    assert client.run(run.name)["steps"] == 8 + 2 + 4
