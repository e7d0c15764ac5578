"""Several trainers, one run: each step's noisy sum is all that anybody learns.

    .venv/bin/python -m examples.secure_sum.train [--quick] [--trainers N] [--colluders K]

Document 004, Section 5.4, with noise. The coordinator has no records. It counts a step in the
ledger, then lets the trainers take it, and learns the sum as they do.
"""

import argparse
import math
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import combinations
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Final

import numpy as np
from dpledger_client import Client, event, gaussian, poisson

from examples.connection import add_arguments, connected, rounded_up
from examples.secure_sum.protocol import ProtocolError, receive
from examples.secure_sum.ring import Words
from examples.secure_sum.trainer import STEP, Floats, Plan, shard, updated, work

RELATION: Final = "add_or_remove_one"
DELTA: Final = 1e-5
STOP_SECONDS: Final = 5.0  # for a trainer to see that the coordinator has gone

SUMMARY: Final = """{trainers} trainers with {records} records each
{steps} steps, each in the ledger once
accuracy {accuracy:.1%}, on records of no trainer
epsilon  {inside:.4f} against any {colluders} of the trainers (upper, delta {delta:g})
         {outside:.4f} against everybody else, to whom no share of the noise is known"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Of a run."""

    name: str
    weights: Floats
    guarantee: dict[str, Any]


@contextmanager
def started(plan: Plan) -> Iterator[list[Connection]]:
    """The trainers' processes, linked in pairs; the coordinator's line to each."""
    context = get_context("spawn")
    links: list[dict[int, Connection]] = [{} for _ in range(plan.trainers)]
    for one, other in combinations(range(plan.trainers), 2):
        links[one][other], links[other][one] = context.Pipe()
    controls, processes = [], []
    try:
        for number in range(plan.trainers):
            here, there = context.Pipe()
            controls.append(here)
            process = context.Process(
                target=work, args=(number, plan, links[number], there), daemon=True
            )
            process.start()
            processes.append(process)
            # Only the trainer keeps its ends, so that the others notice when it is gone.
            for end in (there, *links[number].values()):
                end.close()
        yield controls
    finally:
        for line in controls:
            line.close()  # which tells the trainers to stop
        for process in processes:
            process.join(STOP_SECONDS)
            process.kill()


def opened(controls: Sequence[Connection], plan: Plan) -> Words:
    """One step's sum, as every trainer learned it.

    Raises:
        ProtocolError: a trainer is gone, or they do not agree.
    """
    try:
        for line in controls:
            line.send_bytes(STEP)
    except OSError as error:
        raise ProtocolError("A trainer is gone.") from error
    totals = [receive(line, plan.features) for line in controls]
    if any(not np.array_equal(total, totals[0]) for total in totals):
        raise ProtocolError("The trainers do not agree on the sum.")
    return totals[0]


def coordinate(client: Client, plan: Plan) -> Outcome:
    """Train together; every step is in the ledger once, before its sum is opened."""
    name = f"together-{secrets.token_hex(4)}"  # names are global and never used again
    client.create_dataset(
        name,
        dataset_size=plan.trainers * plan.records,
        neighboring_relation=RELATION,
        privacy_unit="one record of one trainer",
    )
    weights = np.zeros(plan.features)
    # The run has one writer, the coordinator; the trainers never speak to the service.
    with (
        started(plan) as controls,
        client.start_run(
            name,
            name,
            mode="strict",
            mechanism=gaussian(noise_multiplier=plan.noise_multiplier),
            sampling=poisson(sampling_probability=plan.sampling_probability),
            delta=DELTA,
        ) as run,
    ):
        for _ in range(plan.steps):
            run.step()
            weights = updated(weights, opened(controls, plan), plan)
        return Outcome(name=name, weights=weights, guarantee=run.guarantee())


def epsilon_outside(client: Client, plan: Plan) -> float:
    """Against those who are no trainers, and so know no share of the noise; nats, upper."""
    noise_multiplier = plan.noise_share * math.sqrt(plan.trainers)
    planned = event(
        mechanism=gaussian(noise_multiplier=noise_multiplier),
        sampling=poisson(sampling_probability=plan.sampling_probability),
        steps=plan.steps,
    )
    guarantee = client.plan(neighboring_relation=RELATION, events=[planned], delta=DELTA)
    return float(guarantee["epsilon"])


def main() -> None:
    """Train together and print what came of it."""
    default = Plan()
    parser = argparse.ArgumentParser(prog="secure_sum", description=__doc__.splitlines()[0])
    add_arguments(parser)
    parser.add_argument("--quick", action="store_true", help="few steps, for a first look")
    parser.add_argument("--trainers", type=int, default=default.trainers, help="at least 3")
    parser.add_argument(
        "--colluders", type=int, default=default.colluders, help="at most trainers - 2"
    )
    arguments = parser.parse_args()
    try:
        plan = replace(default, trainers=arguments.trainers, colluders=arguments.colluders)
    except ValueError as error:
        parser.error(str(error))
    if arguments.quick:
        plan = replace(plan, steps=20)
    with connected(arguments) as client:
        outcome = coordinate(client, plan)
        outside = epsilon_outside(client, plan)
    if outcome.guarantee["steps"] != plan.steps:
        raise RuntimeError(f"{plan.steps} steps ran, {outcome.guarantee['steps']} are recorded.")
    others = shard(plan, plan.trainers)  # the first that no trainer has
    print(
        SUMMARY.format(
            trainers=plan.trainers,
            records=plan.records,
            steps=plan.steps,
            accuracy=float(np.mean(others @ outcome.weights > 0)),
            inside=rounded_up(outcome.guarantee["epsilon"]),
            outside=rounded_up(outside),
            colluders=plan.colluders,
            delta=DELTA,
        )
    )


if __name__ == "__main__":
    main()
