"""Endpoints, one file a noun; each opens a transaction, calls one function and answers."""
