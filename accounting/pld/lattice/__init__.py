"""Composition on a lattice of privacy losses, by Fourier transforms."""
