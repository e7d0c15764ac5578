"""What the doctor says of a database that no longer refuses a second row."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from service.operations.diagnostics.result import Finding, Level
from service.operations.diagnostics.run import examine
from service.operations.diagnostics.unique_keys import unique_keys
from service.settings import Settings
from service.storage import migrations
from service.storage.engine import connect
from tests.service.schema_changes import after_changes

STEPS = "entries (branch_id, first_step)"
DROPPED = "DROP INDEX ix_entries_branch_id_first_step"
AGAIN = "CREATE {} INDEX again ON entries (branch_id, {})"
# Statements, and the key that a ledger no longer keeps unique after them.
LOST: dict[str, list[tuple[str, tuple[str, ...]]]] = {
    "sqlite": [
        (STEPS, (DROPPED,)),
        (STEPS, (DROPPED, AGAIN.format("", "first_step"))),
        (STEPS, (DROPPED, AGAIN.format("UNIQUE", "first_step, steps"))),
        (STEPS, (DROPPED, AGAIN.format("UNIQUE", "first_step") + " WHERE steps > 1")),
        (STEPS, (DROPPED, AGAIN.format("UNIQUE", "abs(first_step)"))),
        (STEPS, (DROPPED, AGAIN.format("UNIQUE", "first_step, abs(steps)"))),
    ],
    "postgresql": [
        (
            STEPS,
            (
                "UPDATE pg_index SET indisvalid = false "
                "WHERE indexrelid = 'ix_entries_branch_id_first_step'::regclass",
            ),
        ),
        *(
            (f"{table} ({columns})", (f"ALTER TABLE {table} DROP CONSTRAINT {name}",))
            for table, columns, name in (
                ("entries", "dataset_id, sequence", "pk_entries"),
                ("distinct_events", "content, dataset_id", "uq_distinct_events_dataset_id_content"),
                ("acts", "dataset_id, position", "uq_acts_dataset_id_position"),
                ("runs", "name", "uq_runs_name"),
            )
        ),
    ],
}
LOST["postgresql"] += LOST["sqlite"]
Change = Callable[..., Finding]


@pytest.fixture
def changed(engine: Engine) -> Change:
    """What is found of the keys after changes of the schema, which are rolled back."""
    return partial(after_changes, engine, unique_keys)


def test_a_key_that_is_no_longer_unique_is_named(engine: Engine, changed: Change) -> None:
    for key, statements in LOST[engine.dialect.name]:
        found = changed(*statements)
        assert (found.level, found.found) == (Level.FAIL, f"missing: {key}"), statements
        assert "dpledger verify" in found.remedy
    assert changed().level is Level.OK


def test_the_same_key_by_another_name_is_as_good(changed: Change) -> None:
    assert changed(DROPPED, AGAIN.format("UNIQUE", "first_step")).level is Level.OK


def test_a_missing_key_fails_the_whole_examination(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    engine = connect(url)
    migrations.upgrade(engine)
    with engine.begin() as connection:
        connection.execute(text(DROPPED))
    engine.dispose()
    found = {one.name: one for one in examine(Settings(database_url=url), backups=None)}
    assert found["unique_keys"].level is Level.FAIL
    assert STEPS in found["unique_keys"].found
