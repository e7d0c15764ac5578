"""Signed heads, proofs and certificates that outsiders can verify."""
