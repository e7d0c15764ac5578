"""How wide each answer is: every scheme under every relation, at two noises.

    PYTHONPATH=. python benchmarks/widths.py [--noise 1.1 4] [--scheme NAME ...]

from the root of the repository. The run is that of schemes.py: 60,000 records, batches of 256, 60
passes, delta 1e-5, published, declared and derived bounds accepted. Width is the upper end less the
lower, over the upper. Times are of one call each in one process, caches of other answers included.
"""

import argparse
import time
from typing import Final

from accounting import Event, NeighboringRelation, Span, count_events, events, guarantee
from benchmarks.schemes import ACCEPT, DELTA, SCHEMES, Scheme

NOISES: Final = (1.1, 4.0)


def line(scheme: Scheme, noise: float, relation: NeighboringRelation) -> str:
    """One line of the table."""
    event = Event(mechanism=events.Gaussian(noise_multiplier=noise), sampling=scheme.sampling)
    counts = count_events([[Span(event=event, steps=scheme.steps)]])
    start = time.perf_counter()
    found = guarantee(counts, relation=relation, delta=DELTA, accept=ACCEPT)
    took = time.perf_counter() - start
    name = f"{scheme.name:<21} {noise:>5g} {relation.value:<17}"
    if found.epsilon is None or found.headline is None:
        return f"{name} no bound"
    lower = found.epsilon_lower
    ends = f"{'none' if lower is None else f'{lower:.5f}':>10} {found.epsilon:>10.5f}"
    width = 1.0 if lower is None else 1 - lower / found.epsilon
    return f"{name} {ends} {width:>9.2e} {took:>7.3f} {found.headline.bound}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--noise", type=float, nargs="+", default=NOISES)
    parser.add_argument("--scheme", nargs="+", default=[scheme.name for scheme in SCHEMES])
    asked = parser.parse_args()
    print(
        f"{'sampling':<21} {'noise':>5} {'relation':<17} {'lower':>10} {'epsilon':>10} {'width':>9}"
        f" {'s':>7} bound"
    )
    for scheme in SCHEMES:
        if scheme.name in asked.scheme:
            for noise in asked.noise:
                for relation in NeighboringRelation:
                    print(line(scheme, noise, relation), flush=True)


if __name__ == "__main__":
    main()
