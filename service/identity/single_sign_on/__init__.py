"""Callers whom an identity provider names: people who sign in, and pods with own tokens."""
