"""`execution_plan` is found where JAX-Privacy 2.0 has it, and where 2.2 moved it to."""

import subprocess
import sys
from typing import Final

import pytest

OLD: Final = "jax_privacy.experimental.execution_plan"
NEW: Final = "jax_privacy.execution_plan"
# A package whose module is at one place and not at the other; `None` hides a module.
ONLY_THERE: Final = """
import importlib, sys
try:
    module = importlib.import_module({old!r})
except ModuleNotFoundError:
    module = importlib.import_module({new!r})
sys.modules[{there!r}], sys.modules[{gone!r}] = module, None
from dpledger_client.integrations.jax_privacy import DPExecutionPlan
assert DPExecutionPlan is module.DPExecutionPlan
"""


@pytest.mark.parametrize(("there", "gone"), [(NEW, OLD), (OLD, NEW)], ids=["2.2", "2.0"])
def test_a_plan_is_known_wherever_the_library_keeps_it(there: str, gone: str) -> None:
    script = ONLY_THERE.format(old=OLD, new=NEW, there=there, gone=gone)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
