"""One process of a job: trains, and writes down what it saw. Run by torchrun from the tests."""

import json
import os
import sys
from pathlib import Path

import lightning_loops
import torch
from dpledger_client import BudgetExhausted, Client
from dpledger_client.integrations.lightning import LedgerCallback, broadcast


def main(run: str, dataset: str, folder: Path) -> None:
    module = lightning_loops.Private(together=True)
    made = lightning_loops.trainer(folder, strategy="ddp", devices=2)
    place = {"rank": made.global_rank, "world_size": made.world_size}
    with Client() as client, client.start_run(run, dataset, broadcast=broadcast, **place) as opened:
        made.callbacks.append(LedgerCallback(opened))
        refused = False
        try:
            made.fit(module, lightning_loops.loader(batch_size=4))
        except BudgetExhausted:
            refused = True
        numbers = {"steps": opened.next_step, "refused": refused, "taken": made.global_step}
        (folder / f"{made.global_rank}.json").write_text(json.dumps(numbers))
        torch.save(lightning_loops.weights(module), folder / f"{made.global_rank}.pt")
    torch.distributed.destroy_process_group()
    # Gloo joins its thread while it holds the interpreter's lock, which that thread may wait for:
    # a process that frees the model's process group here hangs at times.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
