"""One training run under every way to draw its batches: bracket, cold time, and a library beside it.

    PYTHONPATH=. python benchmarks/schemes.py [--runs 5] [--scheme NAME] [--picture PATH]

from the root of the repository, in an environment with the `peers` extra (and PLD_accounting, for
random allocation); without them the peers' columns say so. The run: 60,000 records, batches of 256,
60 passes, noise multiplier 1.1, delta 1e-5. It has 60 * 235 = 14,100 steps, also where steps are
drawn one by one; passes that stop early have 60 * 117 = 7,020.

Every time is that of one call in a process of its own, after its imports and with nothing
remembered: of guarantee for us, of the whole answer for a peer. Both take turns, and medians are
printed; `best` is the shortest, which other work on the machine disturbs least. A peer that is slow
is asked once, and is ended at the limit.
"""

import argparse
import importlib
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import Any, Final

from accounting import Event, NeighboringRelation, Span, Status, balance_of, guarantee
from accounting.events import (
    BallsAndBins,
    Cyclic,
    FixedSize,
    Gaussian,
    NonUniform,
    Poisson,
    RandomAllocation,
    Reshuffle,
    Sampling,
    Shuffle,
    TruncatedPoisson,
    WithReplacement,
)

RECORDS: Final = 60_000
BATCH: Final = 256
LENGTH: Final = -(-RECORDS // BATCH)  # steps of a whole pass
PASSES: Final = 60
NOISE: Final = 1.1
DELTA: Final = 1e-5
RATE: Final = BATCH / RECORDS
ACCEPT: Final = frozenset({Status.PUBLISHED, Status.DECLARED, Status.DERIVED})
LIMIT_SECONDS: Final = 120.0
SLOW_SECONDS: Final = 10.0  # a peer this slow is asked once

ADD: Final = NeighboringRelation.ADD_OR_REMOVE_ONE
ONE: Final = NeighboringRelation.REPLACE_ONE
SPECIAL: Final = NeighboringRelation.REPLACE_SPECIAL

# What is timed, once everything is imported: (epsilon_lower, epsilon).
Asked = Callable[[], tuple[float | None, float]]


@dataclass(frozen=True)
class Peer:
    """A public library that answers for the same batches."""

    title: str
    prepare: Callable[[NeighboringRelation], Asked]


@dataclass(frozen=True)
class Scheme:
    """A way to draw batches, and what is expected of us."""

    name: str
    sampling: Sampling
    bar: float | None = None  # seconds, cold
    steps: int = PASSES * LENGTH
    peers: dict[NeighboringRelation, Peer] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """What one process found, or why it found nothing."""

    seconds: float = 0.0
    lower: float | None = None
    epsilon: float | None = None
    bound: str = ""
    status: str = ""
    failure: str = ""


@dataclass(frozen=True)
class Row:
    """A scheme under a relation: the answers of every turn."""

    scheme: Scheme
    relation: NeighboringRelation
    ours: list[Answer]
    theirs: list[Answer]


# Peers


def dp_accounting(accountant: str, event: Callable[[Any], Any]) -> Callable[..., Asked]:
    """dp-accounting's epsilon of 14,100 such steps by its "pld" or "rdp" accountant."""

    def prepare(relation: NeighboringRelation) -> Asked:
        events: Any = importlib.import_module("dp_accounting")
        module: Any = importlib.import_module(f"dp_accounting.{accountant}")
        kind = {"pld": "PLDAccountant", "rdp": "RdpAccountant"}[accountant]
        theirs = events.NeighboringRelation[relation.name]

        def ask() -> tuple[float | None, float]:
            ledger = getattr(module, kind)(neighboring_relation=theirs)
            ledger.compose(event(events), PASSES * LENGTH)
            return None, float(ledger.get_epsilon(DELTA))

        return ask

    return prepare


def poisson_pld(noise: float) -> Callable[..., Asked]:
    """dp-accounting's PLD accountant for Poisson sampling."""
    return dp_accounting(
        "pld", lambda events: events.PoissonSampledDpEvent(RATE, events.GaussianDpEvent(noise))
    )


def without_replacement_rdp() -> Callable[..., Asked]:
    """dp-accounting's Renyi accountant; its noise multiplier divides by the sensitivity, here 2."""
    return dp_accounting(
        "rdp",
        lambda events: events.SampledWithoutReplacementDpEvent(
            RECORDS, BATCH, events.GaussianDpEvent(NOISE / 2)
        ),
    )


def truncated_pld(cap: int) -> Callable[..., Asked]:
    """dp-accounting's PLD accountant for Poisson sampling with a cap."""
    return dp_accounting(
        "pld",
        lambda events: events.TruncatedSubsampledGaussianDpEvent(RECORDS, RATE, cap, NOISE),
    )


def allocation_pld(participations: int) -> Callable[..., Asked]:
    """PLD_accounting's two bounds for random allocation, at its default accuracy."""

    def prepare(_relation: NeighboringRelation) -> Asked:
        library: Any = importlib.import_module("PLD_accounting")

        def ask() -> tuple[float | None, float]:
            upper, lower = library.gaussian_allocation_epsilon_range(
                delta=DELTA,
                sigma=NOISE,
                num_steps=LENGTH,
                num_selected=participations,
                num_epochs=PASSES,
            )
            return float(lower), float(upper)

        return ask

    return prepare


# Schemes


def truncated(cap: int) -> Scheme:
    """Poisson batches of which at most so many records are kept."""
    sampling = TruncatedPoisson(sampling_probability=RATE, max_batch_size=cap, dataset_size=RECORDS)
    peer = Peer("dp-accounting PLD", truncated_pld(cap))
    peers = dict.fromkeys(NeighboringRelation, peer)
    return Scheme(f"truncated_poisson_{cap}", sampling, 1.0, peers=peers)


def shuffled(name: str, *, fresh: bool, length: int = LENGTH) -> Scheme:
    """Shuffled passes of so many steps."""
    sampling = Shuffle(
        batch_size=BATCH,
        steps_per_pass=length,
        reshuffle=Reshuffle.EACH_PASS if fresh else Reshuffle.ONCE,
        dataset_size=RECORDS,
    )
    return Scheme(name, sampling, 1.0, PASSES * length)


def allocated(name: str, sampling: Sampling, participations: int) -> Scheme:
    """Each record in so many steps of a pass."""
    peer = Peer("PLD_accounting", allocation_pld(participations))
    return Scheme(name, sampling, 1.5, peers={ADD: peer})


SCHEMES: Final = [
    Scheme(
        "fixed_size",
        FixedSize(batch_size=BATCH, dataset_size=RECORDS),
        1.0,
        peers={
            # As JAX-Privacy asks it for batches of constant size.
            ADD: Peer("dp-accounting PLD, Poisson at sigma/2", poisson_pld(NOISE / 2)),
            ONE: Peer("dp-accounting RDP", without_replacement_rdp()),
        },
    ),
    Scheme("with_replacement", WithReplacement(batch_size=BATCH, dataset_size=RECORDS), 1.0),
    truncated(300),
    truncated(512),
    Scheme(
        "poisson",
        Poisson(sampling_probability=RATE),
        peers=dict.fromkeys(NeighboringRelation, Peer("dp-accounting PLD", poisson_pld(NOISE))),
    ),
    shuffled("shuffle", fresh=True),
    shuffled("shuffle_once", fresh=False),
    shuffled("shuffle_117_of_235", fresh=True, length=117),
    Scheme("cyclic", Cyclic(batch_size=BATCH, steps_per_pass=LENGTH)),
    allocated("balls_and_bins", BallsAndBins(steps_per_pass=LENGTH), 1),
    allocated("random_allocation_2", RandomAllocation(steps_per_pass=LENGTH, participations=2), 2),
    Scheme("non_uniform", NonUniform(max_weight=RATE)),
]


# One process


def answer(scheme: Scheme, relation: NeighboringRelation) -> Answer:
    """Ours, timed."""
    event = Event(mechanism=Gaussian(noise_multiplier=NOISE), sampling=scheme.sampling)
    balance = balance_of([[Span(event=event, steps=scheme.steps)]])
    start = time.perf_counter()
    found = guarantee(balance, relation=relation, delta=DELTA, accept=ACCEPT)
    seconds = time.perf_counter() - start
    if found.headline is None:
        return Answer(seconds=seconds, failure="no bound")
    best = found.headline
    return Answer(seconds, found.epsilon_lower, found.epsilon, best.bound, best.status)


def peer_answer(peer: Peer, relation: NeighboringRelation) -> Answer:
    """A peer's, timed."""
    try:
        ask = peer.prepare(relation)
    except ImportError:
        return Answer(failure="not installed")
    start = time.perf_counter()
    lower, epsilon = ask()
    return Answer(time.perf_counter() - start, lower, epsilon)


def in_process(who: str, scheme: Scheme, relation: NeighboringRelation, limit: float) -> Answer:
    """The answer of a fresh process."""
    command = [sys.executable, __file__, "--once", who, scheme.name, relation]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return Answer(seconds=limit, failure=f"over {limit:g} s")
    if done.returncode:
        return Answer(failure=(done.stderr.strip().splitlines() or ["failed"])[-1])
    return Answer(**json.loads(done.stdout.splitlines()[-1]))


def once(who: str, name: str, relation: str) -> None:
    """What such a process does: answer and say so."""
    (scheme,) = (scheme for scheme in SCHEMES if scheme.name == name)
    asked = NeighboringRelation(relation)
    found = answer(scheme, asked) if who == "us" else peer_answer(scheme.peers[asked], asked)
    print(json.dumps(asdict(found)))


# The table


def measured(scheme: Scheme, relation: NeighboringRelation, runs: int, limit: float) -> Row:
    """Both libraries in turn."""
    ours: list[Answer] = []
    theirs: list[Answer] = []
    for _ in range(runs):
        ours.append(in_process("us", scheme, relation, limit))
        slow = theirs and (theirs[-1].failure or theirs[-1].seconds > SLOW_SECONDS)
        if relation in scheme.peers and not slow:
            theirs.append(in_process("peer", scheme, relation, limit))
    return Row(scheme, relation, ours, theirs)


def seconds_of(answers: Sequence[Answer]) -> float:
    """The median."""
    return statistics.median(found.seconds for found in answers)


def verdict(row: Row) -> str:
    """Whether the bar was met."""
    bar = row.scheme.bar
    if bar is None:
        return ""
    met = not row.ours[0].failure and seconds_of(row.ours) <= bar
    return f"{bar:g} s {'ok' if met else 'NOT MET'}"


def peer_text(row: Row) -> str:
    """The peer's epsilon and time."""
    if not row.theirs:
        return "none"
    title, found = row.scheme.peers[row.relation].title, row.theirs[0]
    if found.failure:
        return f"{title}: {found.failure}"
    lower = "" if found.lower is None else f"{found.lower:.5f} to "
    slower = seconds_of(row.theirs) / max(seconds_of(row.ours), 1e-9)
    return f"{title}: {lower}{found.epsilon:.5f}, {seconds_of(row.theirs):.2f} s, {slower:.1f}x"


def line(row: Row) -> str:
    """One line of the table."""
    text = f"{row.scheme.name:<21} {row.relation:<17}"
    found = row.ours[0]
    if found.failure or found.epsilon is None:
        return f"{text} {found.failure}"
    lower = "none" if found.lower is None else f"{found.lower:.5f}"
    best = min(each.seconds for each in row.ours)
    text += f" {lower:>10} {found.epsilon:>10.5f} {found.bound:<35} {found.status:<9}"
    return f"{text} {seconds_of(row.ours):>6.3f} {best:>6.3f} {verdict(row):<11} {peer_text(row)}"


# The picture

ROW: Final = 30  # pixels
TOP: Final = 96
LEFT: Final = 190
RIGHT: Final = 640
WIDTH: Final = 860
TICKS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
STYLE: Final = """
  .card { fill: #ffffff; stroke: #d0d7de } text { fill: #1f2328; font: 13px sans-serif }
  .title { font-weight: bold; font-size: 16px } .small { fill: #59636e; font-size: 12px }
  .grid { stroke: #e3e7eb } .claim { stroke: #c93c37; stroke-dasharray: 5 4; stroke-width: 1.5 }
  .warn { fill: #b3261e } .published { fill: #1f6feb } .derived { fill: #8250df }
  .open { stroke: #8c959f; stroke-dasharray: 2 4; stroke-width: 2 }
  @media (prefers-color-scheme: dark) {
    .card { fill: #161b22; stroke: #30363d } text { fill: #e6edf3 } .small { fill: #9da7b1 }
    .grid { stroke: #2b3138 } .warn { fill: #ff7b72 } .claim { stroke: #ff7b72 }
    .published { fill: #58a6ff } .derived { fill: #bc8cff }
  }"""


def text_at(x: float, y: float, words: str, style: str = "", anchor: str = "start") -> str:
    """A line of text."""
    return (
        f'<text x="{x:g}" y="{y:g}" class="{style}" text-anchor="{anchor}">{escape(words)}</text>'
    )


def outward(lower: float | None, epsilon: float) -> str:
    """Both ends in four digits, rounded away from each other."""

    def digits(value: float, side: Callable[[float], int]) -> str:
        unit = 10.0 ** (math.floor(math.log10(value)) - 3)
        return f"{side(value / unit) * unit:.4g}"

    below = "" if lower is None else f"{digits(lower, math.floor)} to "
    return f"{below or 'at most '}{digits(epsilon, math.ceil)}"


def place(value: float, ends: tuple[float, float]) -> float:
    """Where a value lies across, on a logarithmic scale."""
    low, high = map(math.log, ends)
    return LEFT + (RIGHT - LEFT) * (math.log(value) - low) / (high - low)


def mark(found: Answer, y: float, ends: tuple[float, float]) -> str:
    """A bar from the lower end to the upper; a dot where they meet."""
    upper = place(found.epsilon or 1.0, ends)
    lower = LEFT if found.lower is None else place(found.lower, ends)
    if found.lower is None:
        line = f'<path d="M{LEFT} {y:g}H{upper:.1f}" class="open"/>'
        return f'{line}<circle cx="{upper:.1f}" cy="{y:g}" r="5" class="{found.status}"/>'
    middle, half = (lower + upper) / 2, max(5.0, (upper - lower) / 2)
    size = f'x="{middle - half:.1f}" y="{y - 5:g}" width="{2 * half:.1f}" height="10" rx="5"'
    return f'<rect {size} class="{found.status}"/>'


def frame(bottom: float, ends: tuple[float, float], claim: float | None) -> list[str]:
    """The card, its heading, the grid, and what Poisson accounting would say."""
    parts = [
        f'<rect x=".5" y=".5" width="{WIDTH - 1}" height="{bottom + 61:g}" rx="8" class="card"/>',
        text_at(20, 30, "Epsilon of one training run, by how its batches were drawn", "title"),
        text_at(20, 50, "60,000 records, batches of 256, 60 passes, noise multiplier 1.1,"
                " delta 1e-5; replace_special", "small"),
    ]  # fmt: skip
    for tick in (tick for tick in TICKS if ends[0] <= tick <= ends[1]):
        x = place(tick, ends)
        parts.append(f'<path d="M{x:.1f} {TOP - 14}V{bottom:g}" class="grid"/>')
        parts.append(text_at(x, bottom + 18, str(tick), "small", "middle"))
    if claim is not None:
        x = place(claim, ends)
        parts.append(f'<path d="M{x:.1f} {TOP - 14}V{bottom:g}" class="claim"/>')
        words = "what Poisson accounting would say of each"
        parts.append(text_at(x - 4, TOP - 20, words, "small warn"))
    for x, status, words in (
        (LEFT, "published", "published theorem"),
        (LEFT + 170, "derived", "proved in docs/theory, not reviewed"),
    ):
        parts.append(f'<circle cx="{x}" cy="{bottom + 40:g}" r="5" class="{status}"/>')
        parts.append(text_at(x + 11, bottom + 44, words, "small"))
    return parts


def picture(found: dict[str, Answer]) -> str:
    """The brackets of every scheme that has one, the least upper end first."""
    known = {name: each for name, each in found.items() if each.epsilon is not None}
    rows = sorted(known.items(), key=lambda item: (item[1].epsilon or 0, item[0]))
    values = [end for _, each in rows for end in (each.lower, each.epsilon) if end]
    ends = (min(values) / 1.3, max(values) * 1.2)
    bottom = TOP + ROW * len(rows)
    claim = found["poisson"].epsilon if "poisson" in found else None
    parts = frame(bottom, ends, claim)
    for index, (name, each) in enumerate(rows):
        y = TOP + ROW * index + 8
        parts.append(text_at(LEFT - 14, y + 4, name, anchor="end"))
        parts.append(mark(each, y, ends))
        parts.append(text_at(RIGHT + 14, y + 4, outward(each.lower, each.epsilon or 0)))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 62:g}">'
    return "\n".join([head, f"<style>{STYLE}\n</style>", *parts, "</svg>", ""])


def main() -> None:
    """Print the table, and write the picture where one is asked for."""
    parser = argparse.ArgumentParser(description="every sampling at one size, beside a peer")
    parser.add_argument("--runs", type=int, default=5, help="processes of each side for a line")
    parser.add_argument("--scheme", choices=[scheme.name for scheme in SCHEMES], action="append")
    parser.add_argument("--limit", type=float, default=LIMIT_SECONDS, help="seconds a process")
    parser.add_argument("--picture", type=Path, help="an SVG of the brackets, replace_special")
    parser.add_argument("--once", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.once:
        once(*asked.once)
        return
    print(
        f"{'scheme':<21} {'relation':<17} {'lower':>10} {'epsilon':>10} {'bound':<35}"
        f" {'status':<9} {'cold':>6} {'best':>6} {'bar':<11} peer: epsilon, cold, times ours"
    )
    drawn: dict[str, Answer] = {}
    for scheme in SCHEMES:
        if asked.scheme and scheme.name not in asked.scheme:
            continue
        for relation in NeighboringRelation:
            row = measured(scheme, relation, asked.runs, asked.limit)
            print(line(row), flush=True)
            if relation is SPECIAL:
                drawn[scheme.name] = row.ours[0]
    if asked.picture:
        asked.picture.write_text(picture(drawn), encoding="utf-8")


if __name__ == "__main__":
    main()
