"""Verification: whether a ledger is what was recorded. It trusts nothing that it reads."""
