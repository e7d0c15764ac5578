"""The grid of Renyi orders: fixed, so that curves add and answers repeat."""

from typing import Final

import numpy as np

from accounting.rounding import Array

# 1.1 to 10.9 by tenths where the best order of most training runs lies, every integer to 63, then
# doublings for very small losses. Public accountants use the same orders, so figures can be held
# against each other digit by digit.
ORDERS: Final[Array] = np.array(
    [1 + tenth / 10 for tenth in range(1, 100)] + [float(k) for k in range(11, 64)]
    + [128.0, 256.0, 512.0, 1024.0]
)  # fmt: skip
ORDERS.flags.writeable = False
ORDER_MAX: Final = 2048.0  # an integer order costs as many terms


def checked_orders(orders: Array) -> Array:
    """The orders as an array.

    Raises:
        ValueError: an order is not in (1, ORDER_MAX].
    """
    checked = np.asarray(orders, dtype=np.float64)
    if checked.ndim != 1 or not np.all((checked > 1) & (checked <= ORDER_MAX)):
        raise ValueError(f"Orders lie in (1, {ORDER_MAX:g}], shape (k,).")
    return checked
