"""Train with JAX-Privacy to the epsilon of the dataset's budget; every step of it runs.

    python -m examples.calibrated.with_jax_privacy

The loop is that of examples/jax_logistic; the plan calibrates its noise by itself.
"""

import dpledger_client
import numpy as np
from dpledger_client.integrations.jax_privacy import Ledger, with_secret_key
from jax_privacy.batch_selection import PartitionType
from jax_privacy.experimental.execution_plan import BandMFExecutionPlanConfig

from examples.jax_logistic.train import RECORDS, SAMPLING_PROBABILITY, Trainer, accountant, digits

EPSILON, DELTA, STEPS = 3.0, 1e-5, 200

client = dpledger_client.Client()
client.create_dataset(
    "pixels", dataset_size=RECORDS, neighboring_relation="add_or_remove_one",
    privacy_unit="one digit", budget={"epsilon": EPSILON, "delta": DELTA},
)  # fmt: skip
plan = BandMFExecutionPlanConfig(
    iterations=STEPS, strategy=np.ones(1), epsilon=EPSILON, delta=DELTA,
    noise_multiplier=None, normalize_by=RECORDS * SAMPLING_PROBABILITY,
    sampling_prob=SAMPLING_PROBABILITY, partition_type=PartitionType.INDEPENDENT,
    accountant=accountant(),
).plan  # fmt: skip
plan = with_secret_key(plan)
rows, labels = digits()
trainer = Trainer(plan, rows[:RECORDS], labels[:RECORDS])
with client.start_run("logistic-1", "pixels") as run:
    for indices in Ledger(run, plan, dataset_budget="this plan").batches(RECORDS):
        trainer.step(indices)
    print(f"{run.next_step} steps, epsilon {run.guarantee()['epsilon']:.4f}")
