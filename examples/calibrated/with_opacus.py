"""Train with Opacus to the epsilon of the dataset's budget; every step of it runs.

python examples/calibrated/with_opacus.py
"""

import dpledger_client
import torch
from dpledger_client.integrations.opacus import LedgerAccountant
from opacus import PrivacyEngine
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

EPSILON, DELTA, EPOCHS = 3.0, 1e-5, 20

data = load_digits()
rows = torch.tensor(data.images / 16, dtype=torch.float32).flatten(1)
records = TensorDataset(rows, torch.tensor(data.target))
client = dpledger_client.Client()
client.create_dataset(
    "digits", dataset_size=len(records), neighboring_relation="add_or_remove_one",
    privacy_unit="one digit", budget={"epsilon": EPSILON, "delta": DELTA},
)  # fmt: skip

model, engine = torch.nn.Linear(64, 10), PrivacyEngine()
with client.start_run("linear-1", "digits", resume="allow") as run:
    engine.accountant = LedgerAccountant(run, dataset_budget="this plan")
    model, optimizer, loader = engine.make_private_with_epsilon(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
        data_loader=DataLoader(records, batch_size=90), epochs=EPOCHS,
        target_epsilon=EPSILON, target_delta=DELTA, max_grad_norm=1.0,
    )  # fmt: skip
    for _ in range(EPOCHS):
        for images, labels in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
    print(f"{run.next_step} steps, epsilon {run.guarantee()['epsilon']:.4f}")
