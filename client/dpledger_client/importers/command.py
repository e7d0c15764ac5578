"""The command `dpledger-client import`: what other tools kept, as a document or as a run."""

import argparse
import hashlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from dpledger_client.client import Client
from dpledger_client.importers import csv, dp_event, flower, ledger_document, opacus, samplings
from dpledger_client.importers.bounded_reader import BadFile
from dpledger_client.recording.event_buffer import STEPS_MAX
from dpledger_client.training.run import Run

AS_POISSON: Final = (
    "Rates are read as those of Poisson sampling. A shuffled loader leaves the same numbers and "
    "costs more: for it say --sampling shuffle:BATCH_SIZE,steps_per_pass=STEPS."
)
AS_TOLD: Final = "The sampling was declared by the person who imported it, not by the file."
AS_WRITTEN: Final = "The sampling is that of the file, which was not checked."
Sampling = dict[str, Any] | None


class Imported(NamedTuple):
    """What a file says.

    Attributes:
        events: without first_step.
        relation: the neighbouring relation.
        dataset_size: records; None where the file and the caller say none.
    """

    events: list[dict[str, Any]]
    relation: str | None
    dataset_size: int | None


class _Given(NamedTuple):
    path: Path
    sampling: Sampling
    relation: str | None
    dataset_size: int | None


def add_command(commands: Any) -> None:
    """Add `import` to the commands of an argument parser."""
    parser = commands.add_parser(
        "import",
        help="read what another tool kept of a training run",
        description="Read what another tool kept of a training run, at its word, and print it as a "
        "ledger document, write it to --out, or record it as --run.",
    )
    parser.add_argument("kind", choices=tuple(KINDS), help="what the file is")
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument(
        "--relation",
        choices=ledger_document.RELATIONS,
        help="the neighbouring relation of the dataset",
    )
    parser.add_argument("--dataset-size", type=int, metavar="N", help="records of the dataset")
    parser.add_argument(
        "--sampling", metavar="KIND[:FIELDS]",
        help="how records were sampled, if not as the file says: poisson, fixed_size:256, unknown, "
        "shuffle:256,steps_per_pass=235, cyclic:256,steps_per_pass=234, ... The steps of a pass "
        "are ceil(N / 256) with the last, smaller batch, floor(N / 256) without it (drop_last).",
    )  # fmt: skip
    target = parser.add_mutually_exclusive_group()
    target.add_argument("--out", type=Path, metavar="DOC", help="write the document to this file")
    target.add_argument("--run", metavar="NAME", help="record it as a new run of --dataset")
    parser.add_argument("--dataset", metavar="NAME", help="the dataset of --run")
    parser.add_argument("--url", help="of the service of --run; by default DPLEDGER_URL")
    parser.set_defaults(command=run_command)


def run_command(given: argparse.Namespace) -> int:
    """Import as the arguments of `add_command` say; the exit status, 0.

    Raises:
        ValueError: the file or an argument is not what it should be; nothing was written.
        DPLedgerError: the service refused, or is away.
        OSError: the document cannot be written.
    """
    if (given.run is None) != (given.dataset is None):
        raise ValueError("--run and --dataset go together.")
    if given.dataset_size is not None and not 1 <= given.dataset_size <= samplings.RECORDS_MAX:
        raise ValueError(f"--dataset-size must lie in [1, {samplings.RECORDS_MAX}].")
    if given.run is not None:
        return _record(given)
    found = _read(given, given.relation, given.dataset_size)
    if found.relation is None:
        raise ValueError("The file does not say the neighbouring relation: give --relation.")
    made = ledger_document.document(
        found.events,
        neighboring_relation=found.relation,
        dataset_size=found.dataset_size,
        labels=_labels(given),
    )
    if given.out is None:
        sys.stdout.write(ledger_document.text_of(made))
    else:
        ledger_document.write(given.out, made)
    return 0


def _record(given: argparse.Namespace) -> int:
    with Client(given.url) as client:
        dataset = client.dataset(given.dataset)
        relation, size = dataset["neighboring_relation"], dataset["dataset_size"]
        _agree("relation", given.relation, relation, of="dataset")
        _agree("dataset_size", given.dataset_size, size, of="dataset")
        found = _read(given, relation, size)
        # A fact is recorded whatever the budget: what happened, happened.
        run = client.start_run(
            given.run, given.dataset, mode="observe", labels=_labels(given), dataset_size=size
        )
        with run:
            for one in ledger_document.merged(found.events):
                _step(run, one)
        steps = f"{run.next_step} steps, {run.unsent_steps} of them still to be sent"
        sys.stdout.write(f"{run.name}: {steps}\n")
    return 0


def _step(run: Run, one: Mapping[str, Any]) -> None:
    left = one["steps"]
    while left:
        steps = min(left, STEPS_MAX)
        run.step(mechanism=one["mechanism"], sampling=one["sampling"], steps=steps)
        left -= steps


def _read(given: argparse.Namespace, relation: str | None, size: int | None) -> Imported:
    sampling = (
        None if given.sampling is None else samplings.parse(given.sampling, dataset_size=size)
    )
    try:
        found = KINDS[given.kind](_Given(given.file, sampling, relation, size))
    except BadFile as error:
        raise BadFile(f"{given.file}: {error}") from None
    sys.stderr.write(f"dpledger-client: {given.file}: {_caveat(given)}\n")
    return found


def _caveat(given: argparse.Namespace) -> str:
    if given.sampling not in (None, samplings.POISSON):
        return AS_TOLD
    return AS_POISSON if given.kind in ("opacus", "csv") else AS_WRITTEN


def _labels(given: argparse.Namespace) -> dict[str, str]:
    with given.file.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {
        "imported-from": f"{given.kind}, on the word of the file",
        "imported-sha256": digest,
        "imported-sampling": _caveat(given),
    }


def _agree(name: str, said: object, known: object, *, of: str) -> None:
    if said is not None and said != known:
        raise ValueError(f"The {name} is {known} for the {of}, not {said}.")


def _csv(given: _Given) -> Imported:
    events = csv.read(given.path, sampling=given.sampling)
    return Imported(events, given.relation, given.dataset_size)


def _opacus(given: _Given) -> Imported:
    events = opacus.read(given.path, sampling=given.sampling)
    return Imported(events, given.relation, given.dataset_size)


def _flower(given: _Given) -> Imported:
    state = flower.read_state(given.path, sampling=given.sampling)
    _agree("dataset_size", given.dataset_size, state.dataset_size, of="file's clients")
    # Noise and sampling are the same under every relation; the file's is the one Flower used.
    return Imported(state.events, given.relation or state.neighboring_relation, state.dataset_size)


def _dp_event(given: _Given) -> Imported:
    if given.sampling is not None:
        raise ValueError("--sampling is not for dp-event: the tree says how records were sampled.")
    events = dp_event.read(given.path, dataset_size=given.dataset_size, relation=given.relation)
    return Imported(events, given.relation, given.dataset_size)


KINDS: Final[Mapping[str, Callable[[_Given], Imported]]] = {
    "opacus": _opacus,
    "flower": _flower,
    "dp-event": _dp_event,
    "csv": _csv,
}
