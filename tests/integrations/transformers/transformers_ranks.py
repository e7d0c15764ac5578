"""One process of a job: trains, and writes down what it saw. Run by torchrun from the tests."""

import json
import os
import sys
from pathlib import Path

import torch
import transformers_loops
from dpledger_client import BudgetExhausted, Client
from dpledger_client.integrations.transformers import LedgerCallback, broadcast


def main(run: str, dataset: str, folder: Path) -> None:
    rank = int(os.environ["RANK"])
    made = transformers_loops.trainer(folder, together=True, per_device_train_batch_size=4)
    with Client() as client, client.start_run(run, dataset, broadcast=broadcast) as opened:
        made.add_callback(LedgerCallback(opened))
        refused = False
        try:
            made.train()
        except BudgetExhausted:
            refused = True
        numbers = {"steps": opened.next_step, "refused": refused, "taken": made.state.global_step}
        (folder / f"{rank}.json").write_text(json.dumps(numbers))
        torch.save(transformers_loops.weights(made), folder / f"{rank}.pt")
    torch.distributed.destroy_process_group()
    # Gloo joins its thread while it holds the interpreter's lock, which that thread may wait for:
    # a process that frees the model's process group here hangs at times.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
