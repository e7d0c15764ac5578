"""How long the bounds of a run that shows its last iterate alone take.

Steps differ from one another in their Lipschitz constant, noise and sensitivity; a run of equal
steps has a closed form, whatever its length.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from accounting.last_iterate.closed_forms import cyclic_mus, worst_cyclic_mu
from accounting.last_iterate.shift import best_start_mu, shift_mu

STEPS = 10**6
TURNS = 5


def run(lowest: float, highest: float, period: int) -> dict[str, Any]:
    """A million unequal steps that use the record every `period` steps."""
    random = np.random.default_rng(0)
    used = np.arange(STEPS) % period == period - 1
    return {
        "lipschitz": random.uniform(lowest, highest, STEPS),
        "sensitivities": np.where(used, random.uniform(0.5, 1.0, STEPS), 0.0),
        "noises": random.uniform(0.5, 2.0, STEPS),
    }


def seconds(call: Callable[[], object]) -> float:
    """The median of several calls."""
    times = []
    for _ in range(TURNS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    """One line for each kind of run."""
    print(f"Seconds for {STEPS} unequal steps, median of {TURNS}.")
    print(f"{'constants':>14} {'uses':>12} {'last iterate':>13} {'bounded domain':>15}")
    for low, high in ((0.9, 1.1), (0.99, 1.03), (0.5, 1.0)):
        for period in (1, 1000):
            steps = run(low, high, period)
            alone = seconds(lambda steps=steps: shift_mu(**steps))  # type: ignore[misc]
            domain = seconds(lambda steps=steps: best_start_mu(**steps, diameter=10.0))  # type: ignore[misc]
            print(f"{low:>6} to {high:>4} {period:>12} {alone:>13.2f} {domain:>15.2f}")
    print("\nSeconds for equal steps.")
    equal: dict[str, Any] = {"lipschitz": 1.0001, "sensitivity": 1.0, "noise": 5.0}
    places = seconds(lambda: cyclic_mus(**equal, steps_per_pass=STEPS, passes=1000))
    print(f"{'every place of a pass of a million steps':>45} {places:>9.4f}")
    worst = seconds(
        lambda: worst_cyclic_mu(**equal, steps=10**9, steps_per_pass=1000, diameter=10.0)
    )
    print(f"{'the worst place of a billion, bounded domain':>45} {worst:>9.4f}")


if __name__ == "__main__":
    main()
