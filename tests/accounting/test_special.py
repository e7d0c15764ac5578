"""The special functions are SciPy's own, however much of its package is loaded."""

import subprocess
import sys
from types import ModuleType

import pytest
import scipy.special

from accounting import special


def test_functions_are_those_of_scipy() -> None:
    assert {"erfcx", "log_ndtr", "gammaln"} <= set(special._NAMES)
    for name in special._NAMES:
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
    found = special._functions()
    assert found == {name: getattr(scipy.special, name) for name in special._NAMES}
    assert ("scipy.special" in sys.modules) == loaded


def test_functions_of_another_layout_come_from_the_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "scipy.special")
    monkeypatch.setattr(special, "_compiled", lambda: ModuleType("elsewhere"))
    assert special._functions() == {name: getattr(scipy.special, name) for name in special._NAMES}
