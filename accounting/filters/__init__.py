"""What may be enforced when the next step is chosen after seeing the last.

A budget is held by one of five filters, chosen when it is set. Odometers say what was spent without
any budget, at every time at once.
"""

from accounting.filters import envelope, falling_noise, odometers, theorems
from accounting.filters.closed_form import ApproximateDpFilter, GaussianFilter
from accounting.filters.default_order import default_order, order_for, share_held
from accounting.filters.envelope import EnvelopeFilter, EnvelopeItem
from accounting.filters.falling_noise import PassRule
from accounting.filters.integer_totals import COUNT_MAX, Total, plus, times
from accounting.filters.odometers import ODOMETER_ORDERS, odometer_epsilon
from accounting.filters.renyi import FAILURE_SHARE, RenyiFilter, UnionFilter
from accounting.filters.selection import (
    KINDS,
    UNION_ORDERS,
    Filter,
    best_order,
    choose,
    filter_of,
    pass_rule,
)
from accounting.filters.theorems import renyi_filter_limit, revision_share

THEOREMS = (*theorems.THEOREMS, *envelope.THEOREMS, *falling_noise.THEOREMS, *odometers.THEOREMS)

__all__ = [
    "COUNT_MAX", "FAILURE_SHARE", "KINDS", "ODOMETER_ORDERS", "THEOREMS", "UNION_ORDERS",
    "ApproximateDpFilter", "EnvelopeFilter", "EnvelopeItem", "Filter", "GaussianFilter",
    "PassRule", "RenyiFilter", "Total", "UnionFilter",
    "best_order", "choose", "default_order", "filter_of", "odometer_epsilon", "order_for",
    "pass_rule", "plus", "renyi_filter_limit", "revision_share", "share_held", "times",
]  # fmt: skip
