"""Which sampling a batch loader really is, by its classes and settings alone.

Nothing is imported or drawn. A class is known by its module and its name, and a class that changes
how a known one draws is not known any more.
"""

from dpledger_client.loaders.inspection import Finding, inspect, require_shares

__all__ = ["Finding", "inspect", "require_shares"]
