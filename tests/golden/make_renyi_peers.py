"""Write renyi_peers.csv: epsilon by the Renyi accountants of dp-accounting and Opacus.

Run in an environment with the `peers` extra of pyproject.toml:

    python tests/golden/make_renyi_peers.py

A row is kept when both peers attain epsilon at the same order, strictly inside the grid of orders
that both have, and agree on it to 1e-8. Elsewhere one of them has cut its series for a fractional
order short, or given that order up, and is no reference. What this repository computes plays no
part in the choice.
"""

import csv
import math
import warnings
from pathlib import Path

import dp_accounting
import numpy as np
from dp_accounting.rdp import rdp_privacy_accountant
from opacus.accountants import RDPAccountant

TABLE = Path(__file__).with_name("renyi_peers.csv")
DP_ORDERS = [float(order) for order in rdp_privacy_accountant.DEFAULT_RDP_ORDERS]
OPACUS_ORDERS = [float(order) for order in RDPAccountant.DEFAULT_ALPHAS]
ROWS_FULL, ROWS_POISSON = 25, 35
ATTEMPTS = 5000
AGREEMENT = 1e-8


def dp_accounting_epsilon(sigma: float, q: float, steps: int, delta: float) -> tuple[float, float]:
    """Epsilon and the order that attains it, by dp-accounting with its default orders."""
    accountant = rdp_privacy_accountant.RdpAccountant()
    gaussian = dp_accounting.GaussianDpEvent(sigma)
    event = gaussian if q == 1 else dp_accounting.PoissonSampledDpEvent(q, gaussian)
    accountant.compose(event, steps)
    epsilon, order = accountant.get_epsilon_and_optimal_order(delta)
    return float(epsilon), float(order)


def opacus_epsilon(sigma: float, q: float, steps: int, delta: float) -> tuple[float, float]:
    """Epsilon and the order that attains it, by Opacus with its default orders."""
    accountant = RDPAccountant()
    accountant.history = [(sigma, q, steps)]
    epsilon, order = accountant.get_privacy_spent(delta=delta)
    return float(epsilon), float(order)


def row(sigma: float, q: float, steps: int, delta: float) -> list[float | int] | None:
    """One line of the table, or None where the peers are no reference."""
    ours, best = dp_accounting_epsilon(sigma, q, steps, delta)
    theirs, same = opacus_epsilon(sigma, q, steps, delta)
    common = sorted(set(DP_ORDERS) & set(OPACUS_ORDERS))
    inside = best == same and common[0] < best < common[-1]
    if not inside or not math.isclose(ours, theirs, rel_tol=AGREEMENT) or not 1e-3 < ours < 1e3:
        return None
    return [sigma, q, steps, delta, ours, theirs]


def rounded(value: float) -> float:
    """Three significant digits, so that the table can be read."""
    return float(f"{value:.3g}")


def table() -> list[list[float | int]]:
    """The configurations, drawn from a fixed seed."""
    generator = np.random.default_rng(0)
    full: list[list[float | int]] = []
    poisson: list[list[float | int]] = []
    for _ in range(ATTEMPTS):
        sampled = len(full) == ROWS_FULL
        if sampled and len(poisson) == ROWS_POISSON:
            return full + poisson
        sigma = rounded(0.4 * 125 ** generator.random())
        q = rounded(10 ** generator.uniform(-5, math.log10(0.5))) if sampled else 1.0
        steps = int(rounded(10 ** generator.uniform(0, 6)))
        delta = rounded(10 ** generator.uniform(-10, -3))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the peers warn where the best order is an end
            line = row(sigma, q, steps, delta)
        if line is not None:
            (poisson if sampled else full).append(line)
    raise RuntimeError("Too few configurations were kept.")


def main() -> None:
    """Write the table beside this file."""
    with TABLE.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        names = ("noise_multiplier", "sampling_probability", "steps", "delta")
        writer.writerow((*names, "epsilon_dp_accounting", "epsilon_opacus"))
        writer.writerows(table())


if __name__ == "__main__":
    main()
