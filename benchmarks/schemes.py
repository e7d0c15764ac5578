"""One training run under every sampling: its bracket, the cold time, and a library beside it.

    PYTHONPATH=. python benchmarks/schemes.py [--runs 5] [--scheme NAME] [--picture PATH]

from the root of the repository, in an environment with the `peers` extra (and PLD_accounting, for
random allocation); without them the peer's column says so. The run: 60,000 records, batches of 256,
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

from accounting import Event, NeighboringRelation, Span, Status, count_events, events, guarantee

RECORDS: Final = 60_000
BATCH: Final = 256
LENGTH: Final = -(-RECORDS // BATCH)  # steps of a whole pass
PASSES: Final = 60
NOISE: Final = 1.1
DELTA: Final = 1e-5
RATE: Final = BATCH / RECORDS
ACCEPT: Final = frozenset({Status.PUBLISHED, Status.DECLARED, Status.DERIVED})
SLOW_SECONDS: Final = 10.0  # a peer this slow is asked once
ADD: Final = NeighboringRelation.ADD_OR_REMOVE_ONE
ONE: Final = NeighboringRelation.REPLACE_ONE

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
    sampling: events.Sampling
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


# Schemes and peers


ACCOUNTANTS: Final = {"pld": "PLDAccountant", "rdp": "RdpAccountant"}


def dp_accounting(kind: str, step: Callable[[Any], Any], note: str = "") -> Peer:
    """An accountant of dp-accounting; `step` says in its words what a step is."""

    def prepare(relation: NeighboringRelation) -> Asked:
        library: Any = importlib.import_module("dp_accounting")
        accountant = getattr(importlib.import_module(f"dp_accounting.{kind}"), ACCOUNTANTS[kind])

        def ask() -> tuple[float | None, float]:
            ledger = accountant(neighboring_relation=library.NeighboringRelation[relation.name])
            ledger.compose(step(library), PASSES * LENGTH)
            return None, float(ledger.get_epsilon(DELTA))

        return ask

    return Peer(f"dp-accounting {kind.upper()}{note}", prepare)


def poisson_pld(noise: float, note: str = "") -> Peer:
    """dp-accounting for Poisson batches."""
    return dp_accounting(
        "pld", lambda of: of.PoissonSampledDpEvent(RATE, of.GaussianDpEvent(noise)), note
    )


def truncated(cap: int) -> Scheme:
    """Poisson batches of which at most so many records are kept."""
    peer = dp_accounting(
        "pld", lambda of: of.TruncatedSubsampledGaussianDpEvent(RECORDS, RATE, cap, NOISE)
    )
    sampling = events.TruncatedPoisson(
        sampling_probability=RATE, max_batch_size=cap, dataset_size=RECORDS
    )
    peers = dict.fromkeys(NeighboringRelation, peer)
    return Scheme(f"truncated_poisson_{cap}", sampling, 1.0, peers=peers)


def shuffled(name: str, reshuffle: events.Reshuffle, length: int = LENGTH) -> Scheme:
    """Shuffled passes of so many steps."""
    sampling = events.Shuffle(
        batch_size=BATCH, steps_per_pass=length, reshuffle=reshuffle, dataset_size=RECORDS
    )
    return Scheme(name, sampling, 1.0, PASSES * length)


def allocated(name: str, sampling: events.Sampling, participations: int) -> Scheme:
    """Each record in so many steps of a pass; PLD_accounting on a coarse grid, or it takes long."""

    def prepare(_relation: NeighboringRelation) -> Asked:
        of: Any = importlib.import_module("PLD_accounting")
        times = {"num_steps": LENGTH, "num_selected": participations, "num_generations": PASSES}

        def ask() -> tuple[float | None, float]:
            params = of.PrivacyParams(sigma=NOISE, delta=DELTA, **times)
            grid = of.AllocationSchemeConfig(loss_discretization=0.1, tail_truncation=1e-6)
            upper = of.gaussian_allocation_epsilon_configurable(params=params, config=grid)
            return None, float(upper)

        return ask

    return Scheme(name, sampling, 1.5, peers={ADD: Peer("PLD_accounting", prepare)})


SCHEMES: Final = [
    Scheme(
        "fixed_size",
        events.FixedSize(batch_size=BATCH, dataset_size=RECORDS),
        1.0,
        peers={
            # As JAX-Privacy asks it about batches of constant size.
            ADD: poisson_pld(NOISE / 2, ", Poisson at sigma/2"),
            # Its noise multiplier is divided by the sensitivity, which is 2 here.
            ONE: dp_accounting(
                "rdp",
                lambda of: of.SampledWithoutReplacementDpEvent(
                    RECORDS, BATCH, of.GaussianDpEvent(NOISE / 2)
                ),
            ),
        },
    ),
    Scheme("with_replacement", events.WithReplacement(batch_size=BATCH, dataset_size=RECORDS), 1.0),
    truncated(300),
    truncated(512),
    Scheme(
        "poisson",
        events.Poisson(sampling_probability=RATE),
        peers=dict.fromkeys(NeighboringRelation, poisson_pld(NOISE)),
    ),
    shuffled("shuffle", events.Reshuffle.EACH_PASS),
    shuffled("shuffle_once", events.Reshuffle.ONCE),
    shuffled("shuffle_117_of_235", events.Reshuffle.EACH_PASS, 117),
    Scheme("cyclic", events.Cyclic(batch_size=BATCH, steps_per_pass=LENGTH)),
    allocated("balls_and_bins", events.BallsAndBins(steps_per_pass=LENGTH), 1),
    allocated(
        "random_allocation", events.RandomAllocation(steps_per_pass=LENGTH, participations=2), 2
    ),
    Scheme("non_uniform", events.NonUniform(max_weight=RATE)),
]


# One process


def our_answer(scheme: Scheme, relation: NeighboringRelation) -> Answer:
    """Ours, timed."""
    event = Event(mechanism=events.Gaussian(noise_multiplier=NOISE), sampling=scheme.sampling)
    counts = count_events([[Span(event=event, steps=scheme.steps)]])
    start = time.perf_counter()
    found = guarantee(counts, relation=relation, delta=DELTA, accept=ACCEPT)
    seconds = time.perf_counter() - start
    if found.headline is None:
        return Answer(seconds, failure="no bound")
    best = found.headline
    return Answer(seconds, found.epsilon_lower, found.epsilon, best.bound, best.status)


def peer_answer(scheme: Scheme, relation: NeighboringRelation) -> Answer:
    """A peer's, timed."""
    try:
        ask = scheme.peers[relation].prepare(relation)
    except ImportError:
        return Answer(failure="not installed")
    start = time.perf_counter()
    lower, epsilon = ask()
    return Answer(time.perf_counter() - start, lower, epsilon)


def once(who: str, name: str, relation: str) -> None:
    """What a process that is measured does: answer and say so."""
    (scheme,) = (scheme for scheme in SCHEMES if scheme.name == name)
    answer = our_answer if who == "us" else peer_answer
    print(json.dumps(asdict(answer(scheme, NeighboringRelation(relation)))))


def in_process(who: str, scheme: Scheme, relation: NeighboringRelation, limit: float) -> Answer:
    """The answer of a fresh process."""
    command = [sys.executable, __file__, "--once", who, scheme.name, relation]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return Answer(limit, failure=f"over {limit:g} s")
    if done.returncode:
        return Answer(failure=(done.stderr.strip().splitlines() or ["failed"])[-1])
    return Answer(**json.loads(done.stdout.splitlines()[-1]))


# The table


def measured(
    scheme: Scheme, relation: NeighboringRelation, runs: int, limit: float
) -> tuple[list[Answer], list[Answer]]:
    """Ours and the peer's, in turn."""
    ours: list[Answer] = []
    theirs: list[Answer] = []
    for _ in range(runs):
        ours.append(in_process("us", scheme, relation, limit))
        slow = theirs and (theirs[-1].failure or theirs[-1].seconds > SLOW_SECONDS)
        if relation in scheme.peers and not slow:
            theirs.append(in_process("peer", scheme, relation, limit))
    return ours, theirs


def peer_text(peer: Peer, theirs: Sequence[Answer], cold: float) -> str:
    """The peer's epsilon and time."""
    found = theirs[0]
    if found.failure:
        return f"{peer.title}: {found.failure}"
    lower = "" if found.lower is None else f"{found.lower:.5f} to "
    took = statistics.median(each.seconds for each in theirs)
    return f"{peer.title}: {lower}{found.epsilon:.5f}, {took:.2f} s, {took / max(cold, 1e-9):.1f}x"


def line(scheme: Scheme, relation: NeighboringRelation, ours: Sequence[Answer]) -> str:
    """One line of the table, but for the peer."""
    text, bar = f"{scheme.name:<21} {relation:<17}", scheme.bar
    found = next((each for each in ours if each.failure), ours[0])
    if found.epsilon is None:
        return f"{text} {found.failure}"
    lower = "none" if found.lower is None else f"{found.lower:.5f}"
    seconds = [each.seconds for each in ours]
    cold, best = statistics.median(seconds), min(seconds)
    met = "" if bar is None else f"{bar:g} s {'ok' if cold <= bar else 'NOT MET'}"
    text += f" {lower:>10} {found.epsilon:>10.5f} {found.bound:<34} {found.status:<9}"
    return f"{text} {cold:>6.3f} {best:>6.3f} {met:<13}"


HEAD: Final = (
    f"{'sampling':<21} {'relation':<17} {'lower':>10} {'epsilon':>10} {'bound':<34} {'status':<9}"
    f" {'cold s':>6} {'best s':>6} {'bar':<13} peer: epsilon, cold, times ours"
)


# The picture

STEP: Final = 30  # pixels from row to row
TOP, LEFT, RIGHT, WIDTH = 100, 190, 640, 860
TICKS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
STYLE: Final = """<style>
  .card { fill: #ffffff; stroke: #d0d7de } text { fill: #1f2328; font: 13px sans-serif }
  .title { font-weight: bold; font-size: 16px } .small { fill: #59636e; font-size: 12px }
  .grid { stroke: #e3e7eb } .claim { stroke: #c93c37; stroke-dasharray: 5 4; stroke-width: 1.5 }
  .warn { fill: #b3261e } .published { fill: #1f6feb } .derived { fill: #8250df }
  .open { stroke: #8c959f; stroke-dasharray: 2 4; stroke-width: 2 }
  @media (prefers-color-scheme: dark) {
    .card { fill: #161b22; stroke: #30363d } text { fill: #e6edf3 } .small { fill: #9da7b1 }
    .grid { stroke: #2b3138 } .warn { fill: #ff7b72 } .claim { stroke: #ff7b72 }
    .published { fill: #58a6ff } .derived { fill: #bc8cff }
  }
</style>"""


def words(x: float, y: float, text: str, style: str = "", anchor: str = "start") -> str:
    """A line of text."""
    return f'<text x="{x:g}" y="{y:g}" class="{style}" text-anchor="{anchor}">{escape(text)}</text>'


def outward(found: Answer) -> str:
    """Both ends in four digits, rounded away from each other."""

    def digits(value: float, side: Callable[[float], int]) -> str:
        unit = 10.0 ** (math.floor(math.log10(value)) - 3)
        return f"{side(value / unit) * unit:#.4g}"

    below = "at most" if found.lower is None else f"{digits(found.lower, math.floor)} to"
    return f"{below} {digits(found.epsilon or 0.0, math.ceil)}"


def across(value: float, ends: tuple[float, float]) -> float:
    """Where a value lies, on a logarithmic scale."""
    return LEFT + (RIGHT - LEFT) * math.log(value / ends[0]) / math.log(ends[1] / ends[0])


def mark(found: Answer, y: float, ends: tuple[float, float]) -> str:
    """A bar from the lower end to the upper; a dot where they meet, or where there is no lower."""
    upper = across(found.epsilon or 1.0, ends)
    lower = upper if found.lower is None else across(found.lower, ends)
    middle, half = (lower + upper) / 2, max(5.0, (upper - lower) / 2)
    size = f'x="{middle - half:.1f}" y="{y - 5:g}" width="{2 * half:.1f}" height="10" rx="5"'
    dots = f'<path d="M{LEFT} {y:g}H{upper:.1f}" class="open"/>' if found.lower is None else ""
    return f'{dots}<rect {size} class="{found.status}"/>'


def frame(bottom: float, ends: tuple[float, float], claim: float) -> list[str]:
    """The card, its heading, grid and legend, and the line of Poisson batches."""
    run = "60,000 records, batches of 256, 60 passes, noise multiplier 1.1, delta 1e-5"
    parts = [
        f'<rect x=".5" y=".5" width="{WIDTH - 1}" height="{bottom + 61:g}" rx="8" class="card"/>',
        words(20, 30, "Epsilon of one training run, by how its batches were drawn", "title"),
        words(20, 50, f"{run}; one record against a null record", "small"),
        words(across(claim, ends) - 4, TOP - 22, "14,100 Poisson batches of 256", "small warn"),
    ]
    for tick in (tick for tick in TICKS if ends[0] <= tick <= ends[1]):
        x = across(tick, ends)
        parts.append(f'<path d="M{x:.1f} {TOP - 16}V{bottom:g}" class="grid"/>')
        parts.append(words(x, bottom + 18, str(tick), "small", "middle"))
    parts.append(f'<path d="M{across(claim, ends):.1f} {TOP - 16}V{bottom:g}" class="claim"/>')
    legend = {"published": "published theorem", "derived": "proved in docs/theory, not reviewed"}
    for x, (status, text) in zip((LEFT, LEFT + 150), legend.items(), strict=True):
        parts.append(f'<circle cx="{x}" cy="{bottom + 40:g}" r="5" class="{status}"/>')
        parts.append(words(x + 11, bottom + 44, text, "small"))
    return parts


def picture(found: dict[str, Answer]) -> str:
    """The brackets of every scheme that has one, the least upper end first."""
    known = {name: each for name, each in found.items() if each.epsilon is not None}
    rows = sorted(known.items(), key=lambda item: (item[1].epsilon or 0.0, item[0]))
    values = [end for _, each in rows for end in (each.lower, each.epsilon) if end]
    ends = (min(values) / 1.3, max(values) * 1.2)
    bottom = TOP + STEP * len(rows)
    parts = frame(bottom, ends, known["poisson"].epsilon or 1.0)
    for index, (name, each) in enumerate(rows):
        y = TOP + STEP * index + 10
        parts += [words(LEFT - 14, y + 4, name, anchor="end"), mark(each, y, ends)]
        parts.append(words(RIGHT + 14, y + 4, outward(each)))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 62:g}">'
    return "\n".join([head, STYLE, *parts, "</svg>", ""])


def asked() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="every sampling at one size, beside a peer")
    parser.add_argument("--runs", type=int, default=5, help="processes of each side for a line")
    parser.add_argument("--scheme", choices=[scheme.name for scheme in SCHEMES])
    parser.add_argument("--limit", type=float, default=180.0, help="seconds a process may take")
    parser.add_argument("--picture", type=Path, help="an SVG of all brackets, replace_special")
    parser.add_argument("--once", nargs=3, help=argparse.SUPPRESS)
    found = parser.parse_args()
    if found.picture and found.scheme:
        parser.error("the picture shows every scheme")
    return found


def main() -> None:
    """Print the table, and write the picture where one is asked for."""
    wanted = asked()
    if wanted.once:
        return once(*wanted.once)
    print(HEAD)
    drawn: dict[str, Answer] = {}
    for scheme in (each for each in SCHEMES if wanted.scheme in (None, each.name)):
        for relation in NeighboringRelation:
            ours, theirs = measured(scheme, relation, wanted.runs, wanted.limit)
            cold = statistics.median(each.seconds for each in ours)
            peer = peer_text(scheme.peers[relation], theirs, cold) if theirs else "none"
            print(line(scheme, relation, ours), peer, flush=True)
            if relation is NeighboringRelation.REPLACE_SPECIAL:
                drawn[scheme.name] = ours[0]
    if wanted.picture:
        wanted.picture.write_text(picture(drawn), encoding="utf-8")
    return None


if __name__ == "__main__":
    main()
