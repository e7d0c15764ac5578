"""Composition by integration along a contour of the complex plane."""
