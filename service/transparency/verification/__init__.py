"""Verification of a whole ledger."""
