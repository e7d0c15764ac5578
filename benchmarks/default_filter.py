"""How many steps a new budget admits, over the steps that the PLD accountant admits.

    PYTHONPATH=. python benchmarks/default_filter.py [--search]

from the root of the repository. One line for each of twelve ordinary trainings: a budget that
names only epsilon and delta, the order that it counts at, and the best order for that training
alone. "not reached": no order admits BAR of the PLD's steps. --search measures every share of the
full-batch order over the table of TABLE_* and prints on how many of its trainings the budget admits
BAR of the PLD's steps, or no step. A training counts if the PLD admits from 10 to a million steps.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from accounting.calibration import Parameter, UnreachableError, calibrate
from accounting.event_counts import EventCounts
from accounting.events import Event, Gaussian, NeighboringRelation, Poisson
from accounting.filters import RenyiFilter, default_order, order_for

RELATION: Final = NeighboringRelation.ADD_OR_REMOVE_ONE
BAR: Final = 0.6  # of the PLD's steps
STEPS: Final = (10, 10**6)
TABLE_EPSILONS: Final = (0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0)
TABLE_DELTAS: Final = (1e-5, 1e-6, 1e-8)
TABLE_RATES: Final = (1e-4, 3e-4, 1e-3, 0.004, 0.01, 0.02, 0.05)
TABLE_NOISES: Final = (0.5, 0.6, 0.7, 0.8, 1.0, 1.1, 1.4, 2.0, 3.0, 4.0, 6.0, 8.0)
SHARES: Final = (0.6, 0.64, 0.66, 0.68, 0.7, 0.72, 0.75, 0.8, 0.9, 1.0)


@dataclass(frozen=True, slots=True)
class Training:
    """A budget, and equal Poisson-sampled Gaussian steps that are asked of it."""

    epsilon: float
    delta: float
    rate: float
    noise: float

    @property
    def event(self) -> Event:
        """One step."""
        return Event(
            mechanism=Gaussian(noise_multiplier=self.noise),
            sampling=Poisson(sampling_probability=self.rate),
        )

    def admitted(self, order: float) -> int:
        """How many steps the budget admits at an order."""
        held = RenyiFilter(order=order, epsilon=self.epsilon, delta=self.delta)
        return held.admissible(held.zero(), held.cost(self.event, relation=RELATION))

    def default(self) -> float:
        """The order of the budget, if none is named."""
        return default_order(epsilon=self.epsilon, delta=self.delta)

    def best(self) -> float | None:
        """The order that holds the most of these steps."""
        return order_for(
            EventCounts(steps={self.event: 1}),
            relation=RELATION, epsilon=self.epsilon, delta=self.delta,
        )  # fmt: skip

    def pld_steps(self) -> int:
        """The most steps that the PLD accountant admits, decided before the first."""
        try:
            found = calibrate(
                lambda steps: EventCounts(steps={self.event: int(steps)}),
                parameter=Parameter.STEPS, epsilon=self.epsilon, delta=self.delta,
                relation=RELATION, accountant="pld",
            )  # fmt: skip
        except UnreachableError:
            return 0
        return int(found.value)


TWELVE: Final = (
    Training(0.5, 1e-5, 0.01, 2.0),
    Training(1.0, 1e-5, 0.004, 1.1),
    Training(1.0, 1e-5, 0.01, 1.4258),
    Training(2.0, 1e-5, 0.001, 0.6299),
    Training(2.0, 1e-5, 0.001, 0.8),
    Training(2.0, 1e-6, 0.02, 1.5),
    Training(3.0, 1e-5, 0.05, 1.6260),
    Training(3.0, 1e-6, 0.004, 0.8),
    Training(3.0, 1e-5, 0.0001, 0.5),
    Training(4.0, 1e-5, 0.05, 8.0),
    Training(6.0, 1e-6, 0.001, 0.6),
    Training(8.0, 1e-5, 0.01, 0.7532),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a budget admits of a training."""

    training: Training
    order: float
    pld: int
    steps: int
    best_order: float | None
    best_steps: int

    @property
    def share(self) -> float:
        """Of the PLD's steps."""
        return self.steps / self.pld

    @property
    def reachable(self) -> bool:
        """Whether some order admits BAR of the PLD's steps."""
        return self.best_steps >= BAR * self.pld


def measure(training: Training) -> Measured:
    """Count the steps of one training."""
    order, best = training.default(), training.best()
    return Measured(
        training=training,
        order=order,
        pld=training.pld_steps(),
        steps=training.admitted(order),
        best_order=best,
        best_steps=0 if best is None else training.admitted(best),
    )


def table() -> Iterator[tuple[Training, int]]:
    """The trainings of the table, with the PLD's steps."""
    for epsilon in TABLE_EPSILONS:
        for delta in TABLE_DELTAS:
            for rate in TABLE_RATES:
                for noise in TABLE_NOISES:
                    one = Training(epsilon, delta, rate, noise)
                    if STEPS[0] <= (steps := one.pld_steps()) <= STEPS[1]:
                        yield one, steps


def print_search() -> None:
    """A line for each share of the full-batch order."""
    trainings = list(table())
    best = [one.admitted(order) if (order := one.best()) else 0 for one, _ in trainings]
    enough = sum(most >= BAR * pld for most, (_, pld) in zip(best, trainings, strict=True))
    none = sum(most == 0 for most in best)
    print(f"\n{len(trainings)} trainings. At the best order of each: {enough} reach {BAR:.0%} of")
    print(f"the PLD's steps, {none} get no step.")
    print(f"{'share':>6} {'reach':>7} {'no step':>8} {'worst, where some order reaches':>33}")
    for share in SHARES:
        found = []
        for (one, pld), most in zip(trainings, best, strict=True):
            order = default_order(epsilon=one.epsilon, delta=one.delta, share=share)
            found.append((one.admitted(order) / pld, most >= BAR * pld))
        reached = sum(got >= BAR for got, _ in found)
        nothing = sum(got == 0 for got, _ in found)
        worst = sorted(got for got, can in found if can)
        print(
            f"{share:>6} {reached:>7} {nothing:>8} {worst[0]:>16.3f};"
            f" 5 % are below {worst[len(worst) // 20]:.3f}"
        )


def main() -> None:
    """The twelve, and the search if asked."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--search", action="store_true")
    print(
        f"{'epsilon':>7} {'delta':>6} {'rate':>7} {'noise':>7} {'PLD':>8} {'order':>6}"
        f" {'steps':>7} {'share':>6} {'best':>6} {'steps':>7} {'share':>6}"
    )
    for row in map(measure, TWELVE):
        one = row.training
        print(
            f"{one.epsilon:>7g} {one.delta:>6g} {one.rate:>7g} {one.noise:>7g} {row.pld:>8}"
            f" {row.order:>6g} {row.steps:>7} {row.share:>6.3f} {row.best_order or 0:>6g}"
            f" {row.best_steps:>7} {row.best_steps / row.pld:>6.3f}"
            f"{'' if row.reachable else '  not reached'}"
        )
    if asked.parse_args().search:
        print_search()


if __name__ == "__main__":
    main()
