"""The schema's history, applied by `dpledger migrate`."""
