"""Datasets, runs, branches, corrections and reservations."""
