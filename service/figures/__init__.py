"""Figures of the source documents, redrawn from the bounds that hold, and two of our own."""
