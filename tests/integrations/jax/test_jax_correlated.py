"""Real plans of correlated noise (BandMF, BLT), trained: one pass each, up to its certificate."""

import dataclasses
import os
import secrets
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import dp_accounting
import httpx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from dpledger_client import Client, UnsupportedEvent
from dpledger_client.integrations.jax_privacy import (
    Ledger,
    UnsupportedPlan,
    plan_events,
    with_secret_key,
)
from jax_privacy import noise_addition
from jax_privacy.batch_selection import (
    BallsInBinsSampling,
    BMinSepSampling,
    CyclicPoissonSampling,
    FixedBatchSampling,
    PartitionType,
)
from jax_privacy.experimental.execution_plan import BandMFExecutionPlanConfig, DPExecutionPlan
from jax_privacy.matrix_factorization import buffered_toeplitz, streaming_matrix, toeplitz
from sklearn.datasets import load_breast_cancer

pytestmark = pytest.mark.filterwarnings("ignore:optax.global_norm is deprecated:DeprecationWarning")
ROOT = Path(__file__).parents[3]
COMMAND = os.environ.get("DPLEDGER_COMMAND", str(ROOT / ".venv" / "bin" / "dpledger"))
STEPS, NOISE, DELTA, WIDTH = 12, 4.0, 1e-5, 1e-4
BANDS = (1.0, 0.5, 0.25)
UNIT = tuple(one / sum(x * x for x in BANDS) ** 0.5 for one in BANDS)
FEATURES, LABELS = load_breast_cancer(return_X_y=True)
FEATURES = jnp.asarray(FEATURES / FEATURES.max(axis=0), dtype=jnp.float32)
LABELS = jnp.asarray(LABELS, dtype=jnp.float32)
RECORDS = len(LABELS)
INDEPENDENT, EQUAL = PartitionType.INDEPENDENT, PartitionType.EQUAL_SPLIT
TURNS = CyclicPoissonSampling(0.3, STEPS, None, 3, INDEPENDENT)
Dataset = Callable[..., str]


def accountant(relation: str = "add_or_remove_one") -> Any:
    return dp_accounting.pld.PLDAccountant(dp_accounting.NeighboringRelation[relation.upper()])


def band_mf(relation: str = "add_or_remove_one", **changed: Any) -> DPExecutionPlan:
    """As the library configures it, with a key of the operating system."""
    settings: dict[str, Any] = {
        "iterations": STEPS, "strategy": np.array(BANDS), "epsilon": None, "delta": None,
        "noise_multiplier": NOISE, "sampling_prob": 0.3, "accountant": accountant(relation),
        "partition_type": INDEPENDENT if relation == "add_or_remove_one" else EQUAL,
    }  # fmt: skip
    return with_secret_key(BandMFExecutionPlanConfig(**settings | changed).plan)


def by_matrix(matrix: Any, selection: Any = TURNS, **given: Any) -> DPExecutionPlan:
    """A plan that is put together by hand; its event says nothing."""
    privatizer = noise_addition.matrix_factorization_privatizer(matrix, stddev=NOISE, **given)
    made = dataclasses.replace(
        band_mf(),
        noise_addition_transform=privatizer,
        batch_selection_strategy=selection,
        dp_event=dp_accounting.UnsupportedDpEvent(),
    )
    return made if given else with_secret_key(made)


def buffered() -> Any:
    return buffered_toeplitz.BufferedToeplitz.build([0.9, 0.5], [0.3, 0.15], dtype=jnp.float32)


def train(plan: DPExecutionPlan, batches: Iterator[np.ndarray[Any, Any]]) -> int:
    """Logistic regression; how many steps it took."""

    def loss(weights: jax.Array, features: jax.Array, labels: jax.Array) -> jax.Array:
        return optax.sigmoid_binary_cross_entropy(features @ weights, labels).mean()

    gradient = jax.jit(plan.clipped_grad(loss, batch_argnums=(1, 2)))
    weights = jnp.zeros(FEATURES.shape[1])
    state, steps = plan.noise_addition_transform.init(weights), 0
    for indices in batches:
        rows = np.full(max(128, -(-len(indices) // 64) * 64), -1)
        rows[: len(indices)] = indices
        total = gradient(weights, FEATURES[rows], LABELS[rows], is_padding_example=rows < 0)
        noisy, state = plan.noise_addition_transform.update(total, state)
        weights, steps = weights - 0.05 * noisy, steps + 1
    assert np.isfinite(np.asarray(weights)).all()
    return steps


def theirs(event: Any, relation: str = "add_or_remove_one") -> float:
    return float(accountant(relation).compose(event).get_epsilon(DELTA))


def one_release(squared: Any) -> float:
    """Epsilon of a Gaussian release at the distance that JAX-Privacy computes."""
    return theirs(dp_accounting.GaussianDpEvent(NOISE / float(squared) ** 0.5))


def by_the_plan(plan: DPExecutionPlan, relation: str) -> float:
    return theirs(plan.dp_event, relation)


def by_buffers(_: DPExecutionPlan, __: str) -> float:
    coefficients = buffered().toeplitz_coefs(STEPS)
    return one_release(toeplitz.minsep_sensitivity_squared(coefficients, 4, 3, n=STEPS))


def by_columns(_: DPExecutionPlan, __: str) -> float:
    return one_release(4 * sum(x * x for x in BANDS) - 0.25**2)  # the last one is cut off


CASES: dict[str, tuple[Any, str, Any, str, str]] = {
    "bands": (band_mf, "add_or_remove_one", by_the_plan, "cyclic_poisson", "by_record"),
    "slots": (lambda: band_mf("replace_special"), "replace_special", by_the_plan,
              "cyclic_poisson", "by_slot"),
    "normalized": (lambda: band_mf(strategy=np.array(UNIT), column_normalize=True),
                   "add_or_remove_one", by_the_plan, "cyclic_poisson", "by_record"),
    "buffers": (lambda: by_matrix(buffered().inverse_as_streaming_matrix(),
                                  BallsInBinsSampling(STEPS, 4)),
                "add_or_remove_one", by_buffers, "min_separation", "by_record"),
    "all": (lambda: by_matrix(toeplitz.inverse_as_streaming_matrix(np.array(BANDS)),
                              CyclicPoissonSampling(1.0, STEPS - 1, None, 3, INDEPENDENT)),
            "add_or_remove_one", by_columns, "min_separation", "by_record"),
}  # fmt: skip


@pytest.mark.parametrize("mode", ["strict", "leased"])
@pytest.mark.parametrize("case", CASES)
def test_a_pass_is_certified_with_the_epsilon_of_the_library(
    client: Client, dataset: Dataset, spool: Path, tmp_path: Path, case: str, mode: Any
) -> None:
    make, relation, expected, kind, placement = CASES[case]
    plan, name = make(), f"run-{secrets.token_hex(4)}"
    data = dataset(dataset_size=RECORDS, relation=relation, accept=["published", "derived"])
    with client.start_run(name, data, mode=mode, delta=DELTA) as run:
        ledger = Ledger(run, plan, relation=relation)
        total = ledger.steps_left
        assert train(plan, ledger.batches(RECORDS)) == total
    [event] = client.ledger(name)["events"]
    assert (event["steps"], event["mechanism"]["kind"]) == (total, "matrix_gaussian")
    sampling = event["sampling"]
    assert (sampling["kind"], sampling["placement"]) == (kind, placement)
    assert sampling["steps_per_pass"] == total
    found, of_them = client.guarantee(name, delta=DELTA), expected(plan, relation)
    assert of_them - WIDTH <= found["epsilon"] <= of_them + WIDTH
    verified(client, name, tmp_path)


def verified(client: Client, run: str, folder: Path) -> None:
    """The certificate, computed again by the command line."""
    url = f"{os.environ['DPLEDGER_URL']}/v1/runs/{run}/certificate"
    key = {"Authorization": f"Bearer {os.environ['DPLEDGER_API_KEY']}"}
    answer = httpx.get(url, params={"delta": DELTA, "format": "json"}, headers=key, timeout=60)
    assert answer.status_code == 200, answer.text
    file = folder / "certificate.json"
    file.write_bytes(answer.content)
    words = [COMMAND, "verify", str(file)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    file.write_bytes(answer.content.replace(b'"noise_multiplier":', b'"noise_multiplier":1', 1))
    assert subprocess.run(words, capture_output=True, check=False).returncode == 1


@pytest.mark.parametrize(
    ("matrix", "n"),
    [
        (toeplitz.inverse_as_streaming_matrix(np.array(BANDS)), STEPS),
        (toeplitz.inverse_as_streaming_matrix(np.array(UNIT), STEPS), STEPS),
        (buffered().inverse_as_streaming_matrix(), STEPS),
    ],
    ids=["bands", "normalized", "buffers"],
)
def test_the_strategy_that_is_kept_is_the_inverse_of_the_matrix_that_runs(
    matrix: Any, n: int
) -> None:
    kept = strategies(by_matrix(matrix, BallsInBinsSampling(n, 4)))
    if kept["kind"] == "blt":
        columns = kept["buffer_decay"], kept["output_scale"]
        tail = [sum(s * d**i for d, s in zip(*columns, strict=True)) for i in range(n - 1)]
        coefficients = [1.0, *tail]
    else:
        coefficients = [*kept["coefficients"], *[0.0] * (n - 3)]
    told = np.array([[coefficients[i - j] if i >= j else 0.0 for j in range(n)] for i in range(n)])
    if kept.get("column_normalized"):
        told /= np.linalg.norm(told, axis=0)
    runs = np.linalg.inv(np.asarray(matrix.materialize(n), dtype=float))
    assert np.allclose(told, runs, atol=2e-6)


def strategies(plan: DPExecutionPlan) -> dict[str, Any]:
    """What a plan asks the service to keep."""
    kept: list[dict[str, Any]] = []

    def keep(one: Mapping[str, Any]) -> str:
        kept.append(dict(one))
        return "sha256:0"

    plan_events(plan, keep_strategy=keep)
    [found] = kept
    return found


def events(plan: DPExecutionPlan, relation: str | None = None) -> dict[str, Any]:
    [event] = plan_events(plan, relation=relation, keep_strategy=lambda _: "sha256:0")
    return event


@pytest.mark.parametrize(
    ("selection", "relation", "told"),
    [
        (TURNS, None, ("cyclic_poisson", 3, "by_record")),
        (TURNS, "replace_one", ("min_separation", 3, "by_record")),
        (CyclicPoissonSampling(0.3, STEPS, None, 2, INDEPENDENT), None,
         ("min_separation", 2, "by_record")),  # fewer groups than bands
        (CyclicPoissonSampling(0.3, STEPS), None, ("min_separation", 1, "by_record")),
        (CyclicPoissonSampling(0.3, STEPS, None, 4), "replace_one",
         ("cyclic_poisson", 4, "by_slot")),
        (CyclicPoissonSampling(1.0, STEPS, None, 4), "replace_special",
         ("min_separation", 4, "by_slot")),
        (CyclicPoissonSampling(0.3, STEPS, None, 20, INDEPENDENT), None,
         ("min_separation", STEPS, "by_record")),
        (BallsInBinsSampling(STEPS, 5), "replace_one", ("min_separation", 5, "by_record")),
        (BMinSepSampling(0.1, STEPS, 4), None, ("min_separation", 4, "by_record")),
        (FixedBatchSampling(50, STEPS), "replace_special", ("min_separation", 1, "by_slot")),
    ],
)  # fmt: skip
def test_who_joins_a_step_is_told_as_it_is(
    selection: Any, relation: str | None, told: tuple[str, int, str]
) -> None:
    matrix = toeplitz.inverse_as_streaming_matrix(np.array(BANDS))
    sampling = events(by_matrix(matrix, selection), relation)["sampling"]
    apart = "cycle_length" if sampling["kind"] == "cyclic_poisson" else "min_separation"
    assert (sampling["kind"], sampling[apart], sampling["placement"]) == told
    assert sampling["steps_per_pass"] == STEPS
    assert not sampling["noise_restarts_each_pass"]


def test_noise_is_that_of_the_raw_draws_and_the_event_counts_where_it_says_less() -> None:
    column = float(np.linalg.norm(np.array(BANDS)))
    made = band_mf(l2_clip_norm=0.3, rescale_to_unit_norm=False)
    noise = events(made)["mechanism"]["noise_multiplier"]
    assert noise == pytest.approx(NOISE * column, rel=1e-6)
    less = dataclasses.replace(made, dp_event=band_mf(noise_multiplier=1.0).dp_event)
    assert events(less)["mechanism"]["noise_multiplier"] == pytest.approx(column, rel=1e-6)
    # Columns that are longer than their strategy says make the noise less.
    tail = np.cumsum(np.square([*UNIT, *[0.0] * (STEPS - 3)]))[::-1]
    matrix = toeplitz.inverse_as_streaming_matrix(np.array(UNIT))
    long = matrix.scale_rows_and_columns(row_scale=jnp.asarray(0.9995 * np.sqrt(tail)))
    found = events(by_matrix(long))["mechanism"]["noise_multiplier"]
    assert found == pytest.approx(0.9995 * NOISE, rel=1e-6)


def scaled_wrongly() -> Any:
    """The columns of another length of pass."""
    return toeplitz.inverse_as_streaming_matrix(np.array(UNIT), STEPS + 1)


def scaled_otherwise() -> Any:
    matrix = toeplitz.inverse_as_streaming_matrix(np.array(UNIT))
    return matrix.scale_rows_and_columns(row_scale=jnp.full(STEPS, 0.5))


TOEPLITZ = toeplitz.inverse_as_streaming_matrix(np.array(BANDS))


@pytest.mark.parametrize(
    ("matrix", "selection", "reason"),
    [
        (np.eye(STEPS), TURNS, "equal only if"),
        (streaming_matrix.prefix_sum(), TURNS, "equal only if"),
        (buffered().as_streaming_matrix(), TURNS, "equal only if"),  # C in the place of C^-1
        (TOEPLITZ * 0.5, TURNS, "equal only if"),
        (scaled_wrongly(), TURNS, "scaled by other numbers"),
        (scaled_otherwise(), TURNS, "scaled by other numbers"),
        (toeplitz.inverse_as_streaming_matrix(np.array([-1.0, 0.5])), TURNS, "above 0"),
        (toeplitz.inverse_as_streaming_matrix(np.array([1.0, np.nan])), TURNS, "not finite"),
        (TOEPLITZ, CyclicPoissonSampling(0.3, STEPS, None, 3), "EQUAL_SPLIT"),
        (TOEPLITZ, CyclicPoissonSampling(0.3, STEPS, 60, 3, INDEPENDENT), "Truncated"),
        (TOEPLITZ, BMinSepSampling(0.1, STEPS, 3, truncated_batch_size=9), "Truncated"),
        (TOEPLITZ, CyclicPoissonSampling(0.0, STEPS, None, 3, INDEPENDENT), "sampling_prob"),
        (TOEPLITZ, FixedBatchSampling(50, STEPS), "need a replace relation"),
        (TOEPLITZ, FixedBatchSampling(50, STEPS, replace=True), "twice"),
    ],
)
def test_what_cannot_be_told_safely_is_refused(matrix: Any, selection: Any, reason: str) -> None:
    with pytest.raises(UnsupportedPlan, match=reason):
        events(by_matrix(matrix, selection))


@pytest.mark.parametrize("seed", [None, 7, 2**40 + 7, jax.random.key(3)])
def test_noise_of_a_small_seed_is_refused(seed: Any) -> None:
    made = by_matrix(TOEPLITZ, prng_key=seed)
    with pytest.raises(UnsupportedPlan, match="with_secret_key"):
        events(made)
    assert events(with_secret_key(made))["steps"] == STEPS


def test_a_strategy_needs_a_place_to_be_kept() -> None:
    with pytest.raises(UnsupportedPlan, match="needs keep_strategy"):
        plan_events(band_mf())


def test_noise_of_one_key_is_not_begun_twice(client: Client, dataset: Dataset, spool: Path) -> None:
    data = dataset(dataset_size=RECORDS, accept=["published", "derived"])
    plan = band_mf()
    with client.start_run(f"{data}-1", data, mode="strict", delta=DELTA) as run:
        first, second = Ledger(run, plan), Ledger(run, plan)
        assert len(list(first.batches(RECORDS))) == STEPS
        with pytest.raises(UnsupportedPlan, match="begun before"):
            next(second.batches(RECORDS))
        with pytest.raises(UnsupportedPlan, match="begun before"):
            Ledger(run, plan)
        # Another plan is another pass, which this run has no room for.
        with pytest.raises(UnsupportedEvent):
            next(Ledger(run, with_secret_key(plan)).batches(RECORDS))
    with client.start_run(f"{data}-2", data, mode="strict", delta=DELTA) as run:
        assert len(list(Ledger(run, with_secret_key(plan)).batches(RECORDS))) == STEPS
