"""Checkpoints that Opacus wrote without a ledger, and the runs that their steps were imported as.

`dpledger-client import` makes a run of a checkpoint, whose branch `main` is that history and gets
no more steps: who goes on with the run writes to a branch of its own. So a checkpoint is known to
the ledger if its history is the beginning of such a branch.
"""

from collections.abc import Mapping
from typing import Any, Final

from dpledger_client.importers import opacus
from dpledger_client.importers.bounded_reader import rows
from dpledger_client.training.checkpoints import state_at
from dpledger_client.training.run import Run

IMPORTED: Final = "imported-from"  # the label of a run that `dpledger-client import` made
_IMPORT: Final = "dpledger-client import opacus FILE --run NAME --dataset DATASET"


def state_of(history: Any, run: Run) -> dict[str, Any]:
    """The state of an imported run after the steps of an accountant's history.

    Args:
        history: rows of a noise multiplier, a sample rate and a number of steps; without any
            there is nothing to import.
        run: open; it went on with what was imported.

    Raises:
        ValueError: the history is malformed, or the run was not imported, or from another history.
        DPLedgerError: the service refused to tell, or is away.
    """
    events = opacus.events(rows("history", history))
    if events:
        _require_imported(events, run)
    steps = sum(event["steps"] for event in events)
    return state_at(run.name, run.dataset, next_step=steps)


def _require_imported(events: list[dict[str, Any]], run: Run) -> None:
    if IMPORTED not in run._transport.get(f"/v1/runs/{run.name}")["labels"]:
        raise ValueError(
            "This checkpoint was written without a ledger, and its steps were not imported as run "
            f"{run.name}. Import them as a new run ({_IMPORT}), and go on with that one "
            '(start_run(NAME, DATASET, resume="must")).'
        )
    recorded = run._transport.get(f"/v1/runs/{run.name}/ledger")["events"]
    _require_beginning(events, recorded, run.name)


def _require_beginning(
    events: list[dict[str, Any]], recorded: list[dict[str, Any]], run: str
) -> None:
    """The steps of a history are the first ones that were imported.

    Raises:
        ValueError: they are not; the message names the first that differs.
    """
    imported = ((one["first_step"] + one["steps"], one) for one in recorded)  # without a gap
    known: Mapping[str, Any] | None = None
    step = end = 0
    for event in events:
        last = step + event["steps"]
        while step < last:
            if step == end:
                end, known = next(imported, (end, None))
            if known is None or not _agree(event, known):
                raise ValueError(
                    "This checkpoint was written without a ledger, and its steps from step "
                    f"{step} on are not those that were imported as run {run}. Import this "
                    f"checkpoint as a run of another name: {_IMPORT}."
                )
            step = min(last, end)


def _agree(event: Mapping[str, Any], known: Mapping[str, Any]) -> bool:
    """Whether a step may have been imported from such a row.

    Opacus writes the same rate for every sampling; a run that was imported as something else than
    Poisson rests on the word of the user who imported it.
    """
    if event["mechanism"] != known["mechanism"]:
        return False
    sampling = known["sampling"]
    return bool(sampling["kind"] != "poisson" or sampling == event["sampling"])
