"""The example: what its Trainer adds to the weights, and what it prints."""

import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from dpledger_client import Client
from dpledger_client.integrations.dp_trainer import DPTrainer
from transformers import TrainerCallback

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "examples" / "transformers_finetune" / "train.py"

# Opacus' hooks see tokens, which have no gradient.
pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")


def clipped(model: Any, batch: dict[str, torch.Tensor], index: int) -> list[torch.Tensor]:
    """The gradient of one record alone, no longer than 1."""
    one = {name: values[index : index + 1] for name, values in batch.items()}
    labels = one.pop("labels")
    loss = torch.nn.functional.cross_entropy(model(**one)["logits"], labels)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    norm = torch.sqrt(sum(each.square().sum() for each in gradients))
    return [each * torch.clamp(1 / norm, max=1.0) for each in gradients]


def test_a_step_is_the_sum_of_clipped_gradients_of_single_records(
    tmp_path: Path, client: Client, dataset: Callable[..., str], spool: Path
) -> None:
    example = runpy.run_path(str(SCRIPT))
    found: list[list[torch.Tensor]] = []

    class Keeps(TrainerCallback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            model = example["tiny_bert"]()
            model.load_state_dict(made.model._module.state_dict())
            size = len(batches[-1]["labels"])
            single = [clipped(model, batches[-1], index) for index in range(size)]
            expected = [sum(parts) / 20 for parts in zip(*single, strict=True)]
            found.append([each for each in expected if isinstance(each, torch.Tensor)])

        def on_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            for ours, theirs in zip(found[-1], made.model.parameters(), strict=True):
                assert torch.allclose(ours, theirs.grad, atol=1e-6)

    args = example["arguments"](tmp_path, per_device_train_batch_size=20, max_steps=10)
    run = client.start_run(None, dataset(dataset_size=40), delta=1e-5)
    made: Any = DPTrainer(
        run=run, model=example["tiny_bert"](), args=args,
        train_dataset=example["Digits"](slice(40)), noise_multiplier=1e-9, clipping_norm=1.0,
        callbacks=[Keeps()],
    )  # fmt: skip
    batches: list[dict[str, torch.Tensor]] = []
    step = made.training_step

    def kept(model: Any, inputs: Any, *given: Any) -> Any:
        batches.append(dict(inputs))
        return step(model, inputs, *given)

    made.training_step = kept
    made.train()
    run.finish()
    assert len(found) == 10
    # A fixed size is not Poisson; ten sizes are equal by chance once in 400 million times.
    assert len({len(batch["labels"]) for batch in batches}) > 1


def test_the_example_runs_and_every_step_is_in_the_ledger(
    client: Any, service_url: str, spool: Path
) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--url", service_url, "--quick"],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert re.search(r"^3 steps, each in the ledger before it was taken$", done.stdout, re.M)
    (run,) = [each for each in client.runs() if each["name"].startswith("digits-")]
    assert (run["steps"], run["state"]) == (3, "finished")
    (event,) = client.ledger(run["name"])["events"]
    assert event["sampling"] == {"kind": "poisson", "sampling_probability": 0.1}
    epsilon = float(re.findall(r"^epsilon +([0-9.]+)", done.stdout, re.M)[0])
    assert 0 <= epsilon - client.guarantee(run["name"])["epsilon"] <= 1e-4
