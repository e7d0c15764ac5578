"""Passes over the data in a secret order, or in which each record's steps are its own."""

from accounting.shuffling import allocation, clones, full, partial, randomizers, responses, toy

THEOREMS = (
    *partial.THEOREMS,
    *full.THEOREMS,
    *clones.THEOREMS,
    *randomizers.THEOREMS,
    *responses.THEOREMS,
    *allocation.THEOREMS,
    *toy.THEOREMS,
)
