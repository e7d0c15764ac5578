"""Private logistic regression on handwritten digits, with JAX-Privacy.

    python -m examples.jax_logistic.train --url http://127.0.0.1:8000 [--quick]

The digits are scikit-learn's. Training ends with its plan or with its budget, whichever is first.
"""

import argparse
import math
import secrets
import warnings
from collections.abc import Sequence
from typing import Any, Final

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import optax
from dpledger_client import BudgetExhausted, Client
from dpledger_client.integrations.jax_privacy import Ledger, with_secret_key
from jax_privacy.batch_selection import PartitionType, pad_to_multiple_of
from jax_privacy.experimental.execution_plan import BandMFExecutionPlanConfig, DPExecutionPlan
from sklearn.datasets import load_digits

from examples.connection import add_arguments, connected, rounded_up

RECORDS: Final = 1500  # to train on; the other 297 are held back
SAMPLING_PROBABILITY: Final = 0.1
NOISE_MULTIPLIER: Final = 2.0
LEARNING_RATE: Final = 2.0
DELTA: Final = 1e-5
BUDGET: Final = 4.0
STEPS: Final = 400
QUICK_STEPS: Final = 40
PADDED: Final = 64  # batches are padded to a multiple of this, so that few shapes are compiled

SUMMARY: Final = """{steps} steps, each in the ledger before its noise was drawn{ended}
accuracy {accuracy:.1%} on {tested} other digits
epsilon  {lower:.4f} to {upper:.4f} at delta {delta:g}: no dataset loses more, and some lose as much
         {theirs:.4f} by the accountant of the plan, of a budget of {budget:g}"""


def digits() -> tuple[jax.Array, jax.Array]:
    """Rows of 64 pixels and a constant, from 0 to 1, and which digit each is."""
    images, labels = load_digits(return_X_y=True)
    rows = np.column_stack([images / 16, np.ones(len(images))])
    return jnp.asarray(rows, dtype=jnp.float32), jnp.asarray(labels)


def dp_sgd(steps: int) -> DPExecutionPlan:
    """DP-SGD with Poisson sampling, as JAX-Privacy configures it, with a new noise key."""
    plan = BandMFExecutionPlanConfig(
        iterations=steps,
        strategy=np.ones(1),
        epsilon=None,
        delta=None,
        noise_multiplier=NOISE_MULTIPLIER,
        normalize_by=RECORDS * SAMPLING_PROBABILITY,
        sampling_prob=SAMPLING_PROBABILITY,
        partition_type=PartitionType.INDEPENDENT,
        accountant=accountant(),
    ).plan
    return with_secret_key(plan)


def accountant() -> Any:
    """Of the plan: it calibrates noise, which is given here, and says epsilon."""
    return dp_accounting.pld.PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)


def loss(weights: jax.Array, rows: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean cross-entropy, nats."""
    logits = rows @ weights
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


class Trainer:
    """The weights, and how they take a step."""

    def __init__(self, plan: DPExecutionPlan, rows: jax.Array, labels: jax.Array) -> None:
        self._rows, self._labels = rows, labels
        self._gradient = jax.jit(plan.clipped_grad(loss, batch_argnums=(1, 2)))
        self._privatizer = plan.noise_addition_transform
        self.weights = jnp.zeros((rows.shape[1], 10))
        self._noise = self._privatizer.init(self.weights)

    def step(self, indices: np.ndarray[Any, Any]) -> None:
        """Clip, add up, add noise, move; of a batch of nobody as well."""
        padded = pad_to_multiple_of(np.append(indices, -1), PADDED)
        total = self._gradient(
            self.weights, self._rows[padded], self._labels[padded], is_padding_example=padded < 0
        )
        noisy, self._noise = self._privatizer.update(total, self._noise)
        self.weights = self.weights - LEARNING_RATE * noisy

    def accuracy(self, rows: jax.Array, labels: jax.Array) -> float:
        """The share that is told right."""
        return float(((rows @ self.weights).argmax(axis=1) == labels).mean())


def train(client: Client, *, steps: int) -> dict[str, Any]:
    """Train until the plan or the budget ends; what came of it."""
    rows, labels = digits()
    name = f"digits-{secrets.token_hex(4)}"  # names are global and never used again
    client.create_dataset(
        name,
        dataset_size=RECORDS,
        neighboring_relation="add_or_remove_one",
        privacy_unit="one digit",
        budget={"epsilon": BUDGET, "delta": DELTA},
    )
    plan = dp_sgd(steps)
    trainer = Trainer(plan, rows[:RECORDS], labels[:RECORDS])
    ended = ""
    with client.start_run(name, name) as run:
        ledger = Ledger(run, plan)
        try:
            for indices in ledger.batches(RECORDS):
                trainer.step(indices)
        except BudgetExhausted:
            ended = ", until the budget was used up"
        guarantee = run.guarantee()
        return {
            "steps": run.next_step,
            "ended": ended,
            "accuracy": trainer.accuracy(rows[RECORDS:], labels[RECORDS:]),
            "tested": len(labels) - RECORDS,
            "lower": guarantee["epsilon_lower"],
            "upper": guarantee["epsilon"],
            "theirs": by_plan(run.next_step),
        }


def by_plan(steps: int) -> float:
    """What the plan's accountant says of so many steps."""
    return float(accountant().compose(dp_sgd(steps).dp_event).get_epsilon(DELTA))


def main(given: Sequence[str] | None = None) -> None:
    """Train, and print what it cost."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_arguments(parser)
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    arguments = parser.parse_args(given)
    warnings.filterwarnings("ignore", message="optax.global_norm is deprecated")
    with connected(arguments) as client:
        told = train(client, steps=QUICK_STEPS if arguments.quick else STEPS)
    told["upper"] = rounded_up(told["upper"])
    told["lower"] = math.floor(told["lower"] * 1e4) / 1e4
    print(SUMMARY.format(**told, delta=DELTA, budget=BUDGET))


if __name__ == "__main__":
    main()
