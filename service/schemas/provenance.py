"""Which versions computed a number, and the deltas at which it is stated."""

import platform
from typing import Final

import numpy
import scipy

import accounting

DELTAS: Final = (1e-4, 1e-5, 1e-6, 1e-8)  # beside the subject's own
VERSIONS: Final = {  # what computes the numbers
    "dpledger": accounting.__version__,
    "numpy": numpy.__version__,
    "scipy": scipy.__version__,
    "python": platform.python_version(),
}
