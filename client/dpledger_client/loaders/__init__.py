"""Which sampling a batch loader really is, by its classes and settings alone; and a loader.

To inspect, nothing is imported or drawn. A class is known by its module and its name, and a class
that changes how a known one draws is not known any more.
"""

from dpledger_client.loaders.inspection import Finding, inspect, require_shares
from dpledger_client.loaders.secret_orders import ShuffledBatches, shuffled

__all__ = ["Finding", "ShuffledBatches", "inspect", "require_shares", "shuffled"]
