"""Correlated noise, private selection, units and audits beside public libraries, in one run.

    OPENBLAS_NUM_THREADS=1 PYTHONPATH=. .integrations/jax/bin/python benchmarks/capabilities.py

from the root of the repository, with --turns 5 as a default. `make test-with-jax` makes that
environment, which has dp_accounting and jax_privacy; in an environment without them the peers'
columns say so.

Both take turns in this process, after a first call. Times are processor time of all threads, the
least of the turns, which other work on the machine disturbs least. Each turn has slightly other
numbers, so that an answer of ours is worked out anew, while JAX keeps what it compiled. What takes
more than 5 s is asked once. Peers' values are those of their default settings: an upper bound at an
interval of 1e-4 (PLD), or at the library's own orders (RDP). `over` is our value over the peer's,
less one; `x` is the peer's time over ours.
"""

import argparse
import math
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from benchmarks.bars import Bar, at_most, print_bars
from benchmarks.capability_lines import (
    Call,
    Line,
    audits,
    passes,
    peers,
    selections,
    sensitivities,
    units,
)
from benchmarks.conditions import conditions

SLOW_SECONDS: Final = 5.0  # a peer this slow is asked once
CHANGE: Final = 1e-7  # relative, from one turn to the next
SENSITIVITY_OVER: Final = 1e-9  # relative; peers add up in double precision
EPSILON_OVER: Final = 1e-6  # absolute, over a peer's PLD
AUDIT_OFF: Final = 1e-6  # absolute; the peer's root is known so well
PACKAGES: Final = ("dp-accounting", "jax-privacy", "jax")


@dataclass(frozen=True)
class Timed:
    """A value and the shortest time of its turns."""

    value: float
    seconds: float


def timed(calls: list[Call], turns: int) -> list[Timed]:
    """The calls in turn, each turn with another factor; values are those of the first call.

    The time of the first call counts only where it is so slow that it is not made again.
    """
    found: list[Timed] = []
    for call in calls:
        start = time.process_time()
        value = call(1.0)
        seconds = time.process_time() - start
        found.append(Timed(value, seconds if seconds > SLOW_SECONDS else math.inf))
    asked = [place for place, one in enumerate(found) if math.isinf(one.seconds)]
    for turn in range(1, turns + 1):
        for place in asked:
            start = time.process_time()
            calls[place](1.0 + turn * CHANGE)
            seconds = min(found[place].seconds, time.process_time() - start)
            found[place] = replace(found[place], seconds=seconds)
    return found


def table(title: str, lines: list[Line], turns: int) -> dict[str, list[Timed]]:
    """Measure the lines, and print them."""
    print(
        f"\n{title}\n{'':<52}{'ours':>14}{'peer':>14}{'over':>10}{'ms':>9}{'peer ms':>10}{'x':>8}"
    )
    found = {}
    for line in lines:
        both = timed([call for call in (line.ours, line.theirs) if call is not None], turns)
        found[line.name] = both
        shown = f"{line.name:<52}{both[0].value:>14.8g}"
        if line.theirs is None:
            print(f"{shown}{'not there':>14}{'':>10}{1e3 * both[0].seconds:>9.2f}")
            continue
        mine, peer = both
        over, ratio = mine.value / peer.value - 1, peer.seconds / mine.seconds
        print(
            f"{shown}{peer.value:>14.8g}{over:>10.1e}{1e3 * mine.seconds:>9.2f}"
            f"{1e3 * peer.seconds:>10.2f}{ratio:>8.1f}"
        )
    return found


def bars_of(lines: list[Line], found: dict[str, list[Timed]]) -> list[Bar]:
    """The times that must be kept."""
    return [
        at_most(f"{line.name}, seconds", found[line.name][0].seconds, line.most, "{:.3f}")
        for line in lines
        if line.most is not None
    ]


def worst(found: dict[str, list[Timed]], *, relative: bool, both: bool = False) -> float | None:
    """How far ours is above the peer's at most; with `both`, how far off."""
    pairs = [(one[0].value, one[1].value) for one in found.values() if len(one) > 1]
    gaps = [(ours - peer) / (peer if relative else 1.0) for ours, peer in pairs]
    return max((abs(gap) if both else gap for gap in gaps), default=None)


def main() -> None:
    """Measure under conditions that are printed."""
    parser = argparse.ArgumentParser(description="four capabilities beside public libraries")
    parser.add_argument("--turns", type=int, default=5)
    turns = parser.parse_args().turns
    with conditions(*PACKAGES):
        measure_all(turns)


def measure_all(turns: int) -> None:
    """Print the tables and the bars."""
    library = peers()
    made = {
        "Squared sensitivity of correlated noise": sensitivities(library),
        "Epsilon of a pass of correlated noise": passes(library),
        "Epsilon of a private selection (peer: RDP)": selections(library),
        "Epsilon for a person with several records": units(library),
        "Epsilon that an audit leaves at least": audits(library),
    }
    found = [table(title, lines, turns) for title, lines in made.items()]
    squares, released, chosen, people, audited = found
    bars = [
        bar for lines, one in zip(made.values(), found, strict=True) for bar in bars_of(lines, one)
    ]
    printed = {name: one for name, one in audited.items() if name.endswith("as printed")}
    of_pld = {name: one for name, one in released.items() if "RDP" not in name}
    rule = partial(worst, relative=True)
    bars += [
        at_most("squared sensitivity off a peer's, relative", rule(squares, both=True),
                SENSITIVITY_OVER, "{:.1e}"),
        at_most("epsilon of a pass over a peer's PLD", worst(of_pld, relative=False),
                EPSILON_OVER, "{:.1e}"),
        at_most("epsilon of a selection over the peer's", worst(chosen, relative=False),
                0.0, "{:.1e}"),
        at_most("epsilon of a person over the peer's", worst(people, relative=False),
                EPSILON_OVER, "{:.1e}"),
        at_most("audits as printed, off the peer's", worst(printed, relative=False, both=True),
                AUDIT_OFF, "{:.1e}"),
    ]  # fmt: skip
    print_bars(bars)


if __name__ == "__main__":
    main()
