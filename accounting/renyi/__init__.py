"""Renyi differential privacy: curves by mechanism and sampling, and what they say of epsilon."""

from accounting.renyi import (
    allocation,
    conversion,
    declared,
    fixed_size,
    laplace,
    passes,
    poisson,
    pure,
    randomized_response,
    revealed,
    selection,
)

THEOREMS = (
    *poisson.THEOREMS,
    *fixed_size.THEOREMS,
    *passes.THEOREMS,
    *allocation.THEOREMS,
    *pure.THEOREMS,
    *laplace.THEOREMS,
    *randomized_response.THEOREMS,
    *declared.THEOREMS,
    *revealed.THEOREMS,
    *selection.THEOREMS,
    *conversion.THEOREMS,
)
