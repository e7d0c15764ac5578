"""Fine-tune with the Trainer of Hugging Face to the epsilon of the dataset's budget.

    python -m examples.calibrated.with_transformers

Model and records are those of examples/transformers_finetune.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import dpledger_client
from dpledger_client.integrations.dp_trainer import DPTrainer
from opacus.accountants.utils import get_noise_multiplier

from examples.transformers_finetune.train import Digits, arguments, tiny_bert

EPSILON, DELTA, STEPS, BATCH_SIZE = 3.0, 1e-5, 100, 150

records = Digits(slice(0, 1500))
client = dpledger_client.Client()
client.create_dataset(
    "shades", dataset_size=len(records), neighboring_relation="add_or_remove_one",
    privacy_unit="one digit", budget={"epsilon": EPSILON, "delta": DELTA},
)  # fmt: skip
noise_multiplier = get_noise_multiplier(
    target_epsilon=EPSILON, target_delta=DELTA, sample_rate=BATCH_SIZE / len(records),
    steps=STEPS, accountant="prv",
)  # fmt: skip
with TemporaryDirectory() as folder, client.start_run("bert-1", "shades") as run:
    given = {"max_steps": STEPS, "learning_rate": 3e-3, "per_device_train_batch_size": BATCH_SIZE}
    DPTrainer(
        run=run, model=tiny_bert(), args=arguments(Path(folder), **given), train_dataset=records,
        noise_multiplier=noise_multiplier, clipping_norm=1.0, dataset_budget="this plan",
    ).train()  # fmt: skip
    print(f"{run.next_step} steps, epsilon {run.guarantee()['epsilon']:.4f}")
