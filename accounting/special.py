"""The special functions that the accounting calls: SciPy's, without what else comes with them.

`import scipy.special` takes a tenth of a second and 18 MiB, nine tenths of them for arrays of other
libraries than NumPy. The functions are compiled, and stand in one module of that package, which is
loaded here by itself. They are the same objects, so that every number is the same.
"""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import scipy

if TYPE_CHECKING:
    from scipy.special import betainc as betainc
    from scipy.special import erf as erf
    from scipy.special import erfcx as erfcx
    from scipy.special import expit as expit
    from scipy.special import gammaln as gammaln
    from scipy.special import log_ndtr as log_ndtr
    from scipy.special import ndtr as ndtr
    from scipy.special import ndtri as ndtri
    from scipy.special import xlog1py as xlog1py
    from scipy.special import xlogy as xlogy

_NAMES: Final = (
    "betainc", "erf", "erfcx", "expit", "gammaln", "log_ndtr", "ndtr", "ndtri", "xlog1py", "xlogy",
)  # fmt: skip
_PACKAGE: Final = "scipy.special"


def _compiled() -> Any:
    """The module that holds the functions, loaded as if its package held nothing else."""
    package = ModuleType(_PACKAGE)
    package.__path__ = [str(Path(scipy.__file__).with_name("special"))]
    sys.modules[_PACKAGE] = package
    try:
        return import_module(f"{_PACKAGE}._ufuncs")
    finally:
        del sys.modules[_PACKAGE]  # whatever else imports it gets all of it


def _functions() -> dict[str, Any]:
    if _PACKAGE not in sys.modules:
        try:
            return _named(_compiled())
        except (ImportError, AttributeError):  # another version of SciPy has them elsewhere
            pass
    return _named(import_module(_PACKAGE))


def _named(module: Any) -> dict[str, Any]:
    return {name: getattr(module, name) for name in _NAMES}


globals().update(_functions())
