"""Fine-tune with the Trainer of Hugging Face to the epsilon of the dataset's budget.

    python -m examples.calibrated.with_transformers

The Trainer with an optimizer of Opacus under it is that of examples/transformers_finetune.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import dpledger_client
from dpledger_client.integrations.transformers import LedgerCallback
from opacus.accountants.utils import get_noise_multiplier

from examples.transformers_finetune.train import Digits, arguments, private_trainer, tiny_bert

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
    private_trainer(
        tiny_bert(), records, arguments(Path(folder), **given),
        noise_multiplier=noise_multiplier, max_grad_norm=1.0,
        callbacks=[LedgerCallback(run, dataset_budget="this plan")],
    ).train()  # fmt: skip
    print(f"{run.next_step} steps, epsilon {run.guarantee()['epsilon']:.4f}")
