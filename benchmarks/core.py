"""How long the accounting core takes, beside dp-accounting and Opacus in the same process.

    PYTHONPATH=. python benchmarks/core.py

from the root of the repository, in an environment with the `peers` extra; without it the peers'
columns say so. A curve is one Poisson-subsampled Gaussian step on each library's own default
orders. Libraries take turns, each turn has a slightly different noise, and medians are printed.
"""

import importlib
import logging
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Final

from accounting import Event, EventCounts, NeighboringRelation, guarantee
from accounting.bounds.renyi_bounds import renyi_bounds
from accounting.events import Gaussian, Poisson
from accounting.renyi.orders import ORDERS
from accounting.work_limit import ByteCache
from benchmarks.conditions import conditions

RELATION: Final = NeighboringRelation.ADD_OR_REMOVE_ONE
SETTINGS: Final = [(0.004, 1.1), (0.0001, 0.6), (0.08, 3.0), (0.5, 20.0), (0.01, 0.3)]
TURNS: Final = 15
CALLS_WARM: Final = 1000
IMPORTS: Final = 5

Curve = Callable[[float, float], object]


def event_of(q: float, sigma: float) -> Event:
    """One Poisson-subsampled Gaussian step."""
    return Event(
        mechanism=Gaussian(noise_multiplier=sigma), sampling=Poisson(sampling_probability=q)
    )


def forget() -> None:
    """Forget every answer and law that the accounting remembers."""
    found = {
        id(value): value
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] == "accounting"
        for value in vars(module).values()
    }
    for value in found.values():
        if isinstance(value, ByteCache):
            value.clear()
        elif hasattr(value, "cache_clear"):
            value.cache_clear()


def ours(q: float, sigma: float) -> object:
    """The curve from an empty cache of curves; a noise that no one asked for needs no other."""
    renyi_bounds.cache_clear()
    return renyi_bounds(event_of(q, sigma), RELATION)


def dp_accounting() -> tuple[Curve, int]:
    """dp-accounting's curve, and how many orders it has."""
    events = importlib.import_module("dp_accounting")
    module = importlib.import_module("dp_accounting.rdp.rdp_privacy_accountant")
    logging.getLogger("absl").setLevel(logging.ERROR)  # it warns of orders that it gives up

    def curve(q: float, sigma: float) -> object:
        event = events.PoissonSampledDpEvent(q, events.GaussianDpEvent(sigma))
        return module.RdpAccountant().compose(event)

    return curve, len(module.DEFAULT_RDP_ORDERS)


def opacus() -> tuple[Curve, int]:
    """Opacus's curve, and how many orders it has."""
    rdp = importlib.import_module("opacus.accountants.analysis.rdp")
    orders = importlib.import_module("opacus.accountants").RDPAccountant.DEFAULT_ALPHAS

    def curve(q: float, sigma: float) -> object:
        return rdp.compute_rdp(q=q, noise_multiplier=sigma, steps=1, orders=orders)

    return curve, len(orders)


PEERS: Final = {"dp-accounting": dp_accounting, "opacus": opacus}


def microseconds(call: Callable[[], object]) -> float:
    """How long one call takes."""
    start = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - start) / 1e3


def cold_medians(curves: dict[str, Curve], q: float, sigma: float) -> dict[str, float]:
    """Microseconds per curve of each library, in turn, the first turn not counted."""
    times: dict[str, list[float]] = {name: [] for name in curves}
    for turn in range(TURNS + 1):
        varied = sigma * (1 + 1e-4 * turn)  # so that no library can remember
        for name, curve in curves.items():
            took = microseconds(lambda curve=curve, varied=varied: curve(q, varied))  # type: ignore[misc]
            if turn:
                times[name].append(took)
    return {name: statistics.median(each) for name, each in times.items()}


def warm_median(q: float, sigma: float) -> float:
    """Microseconds per curve of ours from the cache."""
    event = event_of(q, sigma)

    def many() -> None:
        for _ in range(CALLS_WARM):
            renyi_bounds(event, RELATION)

    renyi_bounds(event, RELATION)
    return statistics.median(microseconds(many) / CALLS_WARM for _ in range(TURNS))


def print_curves() -> None:
    """One line for each setting."""
    curves: dict[str, Curve] = {"dpledger": ours}
    counts = [f"dpledger {len(ORDERS)}"]
    missing = []
    for name, load in PEERS.items():
        try:
            curves[name], orders = load()
            counts.append(f"{name} {orders}")
        except ImportError:
            missing.append(name)
    print("Microseconds per Renyi curve. Orders:", ", ".join(counts))
    peers = "".join(f" {name:>14} {'ratio':>7}" for name in PEERS)
    print(f"{'rate':>8} {'noise':>6} {'cold':>9} {'cached':>7}{peers}")
    for q, sigma in SETTINGS:
        medians = cold_medians(curves, q, sigma)
        mine = medians["dpledger"]
        line = f"{q:>8g} {sigma:>6g} {mine:>9.0f} {warm_median(q, sigma):>7.2f}"
        for name in PEERS:
            if name in missing:
                line += f" {'not installed':>14} {'':>7}"
            else:
                line += f" {medians[name]:>14.0f} {medians[name] / mine:>6.1f}x"
        print(line)


def print_guarantees() -> None:
    """The whole answer for a ledger; cold, nothing at all is remembered."""
    print("\nMicroseconds per guarantee, epsilon at delta 1e-5.")
    print(f"{'distinct events':>15} {'cold':>9} {'cached':>9}")
    for count in (1, 100):
        events = [event_of(0.004, 1 + i / 100) for i in range(count)]
        counts = EventCounts(steps=dict.fromkeys(events, 100))
        cold: list[float] = []
        warm: list[float] = []
        for _ in range(TURNS):
            forget()
            for times in (cold, warm):
                times.append(
                    microseconds(lambda: guarantee(counts, relation=RELATION, delta=1e-5))  # noqa: B023
                )
        print(f"{count:>15} {statistics.median(cold):>9.0f} {statistics.median(warm):>9.0f}")


def import_milliseconds(modules: str) -> float:
    """How long a fresh process takes to import."""
    program = (
        "import time; start = time.perf_counter(); "
        f"import {modules}; print(1e3 * (time.perf_counter() - start))"
    )
    times = [
        float(subprocess.check_output([sys.executable, "-c", program], text=True))
        for _ in range(IMPORTS)
    ]
    return statistics.median(times)


def print_imports() -> None:
    """What a process pays once."""
    print("\nMilliseconds to import in a fresh process.")
    print(f"{'accounting':>25} {import_milliseconds('accounting'):>7.0f}")
    print(f"{'numpy and scipy.special':>25} {import_milliseconds('numpy, scipy.special'):>7.0f}")


def main() -> None:
    """Print every table."""
    with conditions("dp-accounting", "opacus", "torch"):
        print_curves()
        print_guarantees()
        print_imports()


if __name__ == "__main__":
    main()
