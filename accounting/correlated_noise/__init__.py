"""Noise that is correlated over the steps of a pass: matrix factorisation, DP-FTRL, BandMF, BLT."""

from accounting.correlated_noise import amplified, sensitivity
from accounting.correlated_noise.amplified import column_norm_of
from accounting.correlated_noise.sensitivity import Participation, Sensitivity, sensitivity_of
from accounting.correlated_noise.strategies import (
    BandedRows,
    BufferedToeplitz,
    Identity,
    Strategy,
    Toeplitz,
    Tree,
)

THEOREMS = (*sensitivity.THEOREMS, *amplified.THEOREMS)

__all__ = [
    "THEOREMS", "BandedRows", "BufferedToeplitz", "Identity", "Participation", "Sensitivity",
    "Strategy", "Toeplitz", "Tree", "column_norm_of", "sensitivity_of",
]  # fmt: skip
