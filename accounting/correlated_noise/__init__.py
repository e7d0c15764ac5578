"""Noise that is correlated over the steps of a pass: matrix factorisation, DP-FTRL, BandMF, BLT."""

from accounting.correlated_noise import sensitivity
from accounting.correlated_noise.sensitivity import Participation, Sensitivity, sensitivity_of
from accounting.correlated_noise.strategies import (
    BandedRows,
    BufferedToeplitz,
    Identity,
    Strategy,
    Toeplitz,
    Tree,
)

THEOREMS = sensitivity.THEOREMS

__all__ = [
    "THEOREMS", "BandedRows", "BufferedToeplitz", "Identity", "Participation", "Sensitivity",
    "Strategy", "Toeplitz", "Tree", "sensitivity_of",
]  # fmt: skip
