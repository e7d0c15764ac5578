"""Passes over the data in a secret order, or in which each record's steps are its own."""

from accounting.shuffling import allocation, clones, full, partial, shuffled_batches

THEOREMS = (
    *partial.THEOREMS,
    *shuffled_batches.THEOREMS,
    *full.THEOREMS,
    *clones.THEOREMS,
    *allocation.THEOREMS,
)
