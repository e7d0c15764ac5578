"""Renyi curves of black boxes whose guarantee somebody else proved."""

from accounting.events import NeighboringRelation
from accounting.guarantees import Assumption, Status, theorem
from accounting.renyi.orders import checked_orders
from accounting.renyi.pure import pure_dp_rdp
from accounting.rounding import UNIT_ROUNDOFF, Array


@theorem(
    id="declared-approximate-dp",
    source="Kairouz, Oh and Viswanath 2015, ICML, arXiv:1311.0776v4, Theorem 3.3; from Bun and "
    "Steinke 2016, TCC, arXiv:1605.02065v1, Proposition 3.3",
    status=Status.DECLARED,
    relations=tuple(NeighboringRelation),
    assumptions=(Assumption.DECLARED_GUARANTEE,),
)
def approximate_dp_rdp(*, epsilon: float, orders: Array) -> Array:
    """RDP of a step declared (epsilon, delta)-DP, where it does not fail.

    Its two laws are, up to processing, delta F + (1-delta) P and delta F' + (1-delta) Q with P and
    Q the laws of epsilon-DP randomized response: the step fails with probability delta and is
    epsilon-DP otherwise. Failures of all units add, and their sum is taken from the delta at which
    the composed curve is read, or added to the delta that is asked for.

    Args:
        epsilon: nats, >= 0.
        orders: alpha > 1, shape (k,).

    Returns:
        RDP in nats, shape (k,), of what is left when the failure is set aside. Upper, if the
        declaration is true.
    """
    return pure_dp_rdp(epsilon=epsilon, orders=orders)


@theorem(
    id="declared-zcdp",
    source="Bun and Steinke 2016, TCC, arXiv:1605.02065v1, Section 1.1 (definition)",
    status=Status.DECLARED,
    relations=tuple(NeighboringRelation),
    assumptions=(Assumption.DECLARED_GUARANTEE,),
)
def zcdp_rdp(*, rho: float, orders: Array) -> Array:
    """RDP of a step declared rho-zCDP.

    rdp(alpha) = rho alpha

    Args:
        rho: > 0.
        orders: alpha > 1, shape (k,).

    Returns:
        RDP in nats, shape (k,). Upper, if the declaration is true.
    """
    return checked_orders(orders) * (rho * (1 + 8 * UNIT_ROUNDOFF))


THEOREMS = (approximate_dp_rdp, zcdp_rdp)
