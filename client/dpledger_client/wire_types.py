"""Words that the interface knows, for completion and type checks."""

from typing import Literal

NeighboringRelation = Literal["add_or_remove_one", "replace_one", "replace_special"]
TheoremStatus = Literal["published", "derived", "declared", "conditional"]
Filter = Literal[
    "fixed_order_renyi", "union_of_orders", "gaussian_dp", "approximate_dp", "envelope"
]
RowsPerParent = Literal["at_most_one", "exactly_one"]
Release = Literal["every_step", "every_pass", "last_iterate"]
SolveFor = Literal["noise_multiplier", "steps", "sampling_probability"]
