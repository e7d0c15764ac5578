"""The special functions that the accounting calls: SciPy's, without what else comes with them.

`import scipy.special` takes a tenth of a second and 18 MiB, nine tenths of them for arrays of other
libraries than NumPy. The functions are compiled, and stand in one module of that package, which is
loaded here by itself. They are the same objects, so that every number is the same.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Final

import scipy

__all__ = [
    "betainc", "erf", "erfcx", "expit", "gammaln", "log_ndtr", "ndtr", "ndtri", "xlog1py", "xlogy",
]  # fmt: skip
_PACKAGE: Final = "scipy.special"


@contextmanager
def _empty_package() -> Iterator[None]:
    """Let a module of the package be loaded as if the package held nothing else."""
    if _PACKAGE in sys.modules:
        yield
        return
    package = ModuleType(_PACKAGE)
    package.__path__ = [str(Path(scipy.__file__).with_name("special"))]
    sys.modules[_PACKAGE] = package
    try:
        yield
    finally:
        del sys.modules[_PACKAGE]  # whatever else imports it gets all of it


try:
    with _empty_package():
        from scipy.special._ufuncs import (
            betainc,
            erf,
            erfcx,
            expit,
            gammaln,
            log_ndtr,
            ndtr,
            ndtri,
            xlog1py,
            xlogy,
        )
except ImportError:  # another version of SciPy has them elsewhere
    from scipy.special import (
        betainc,
        erf,
        erfcx,
        expit,
        gammaln,
        log_ndtr,
        ndtr,
        ndtri,
        xlog1py,
        xlogy,
    )
