"""The special functions are SciPy's own, however much of its package is loaded."""

import importlib
import subprocess
import sys

import pytest
import scipy.special

from accounting import special


def test_functions_are_those_of_scipy() -> None:
    assert {"erfcx", "log_ndtr", "gammaln"} <= set(special.__all__)
    for name in special.__all__:
        assert getattr(special, name) is getattr(scipy.special, name)


def test_functions_alone_are_loaded_and_the_whole_package_after_them() -> None:
    code = """
import sys, accounting
assert "scipy.special._ufuncs" in sys.modules
assert not {"scipy.special", "scipy._lib._array_api", "numpy.f2py"} & set(sys.modules)
from scipy import optimize, special, stats
assert special._ufuncs.erfcx is accounting.special.erfcx
assert special.logsumexp([0.0, 0.0]) == special.log1p(1.0)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("loaded", [True, False])
def test_functions_are_found_by_themselves_or_in_the_package(
    loaded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not loaded:
        monkeypatch.delitem(sys.modules, "scipy.special")
    again = importlib.reload(special)
    assert ("scipy.special" in sys.modules) == loaded
    assert again.erfcx is scipy.special.erfcx


def test_functions_of_another_layout_come_from_the_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "scipy.special._ufuncs", None)
    again = importlib.reload(special)
    assert [getattr(again, name) for name in again.__all__] == [
        getattr(scipy.special, name) for name in again.__all__
    ]
