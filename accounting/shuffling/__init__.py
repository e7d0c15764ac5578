"""Loaders that draw a random order of the records."""
