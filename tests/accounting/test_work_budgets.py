"""Budgets of work stand in one table, all of them in use."""

import re
from pathlib import Path

import accounting

ROOT = Path(accounting.__file__).parent
TABLE = ROOT / "work_budgets.py"
SERVICE = ROOT.parent / "service"
MODULES = {path: path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py") if path != TABLE}


def test_every_budget_of_the_table_is_used() -> None:
    names = set(re.findall(r"^([A-Z_]+): Final", TABLE.read_text(encoding="utf-8"), re.M))
    assert len(names) > 15
    service = (path.read_text(encoding="utf-8") for path in SERVICE.rglob("*.py"))
    used = {
        name
        for text in (*MODULES.values(), *service)
        for name in re.findall(r"work_budgets\.([A-Z_]+)", text)
    }
    assert names - used == {"MILLION"}
    assert used <= names


def test_no_other_module_has_a_budget_of_its_own() -> None:
    own = re.compile(r"^[A-Z_]+: Final = \d{2,3}_000_000\b", re.M)
    found = {path.name: own.findall(text) for path, text in MODULES.items()}
    assert {name: budgets for name, budgets in found.items() if budgets} == {}
