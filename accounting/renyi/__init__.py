"""Renyi differential privacy: curves by mechanism and sampling, and what they say of epsilon."""
