"""Edits of live rows, plain and skilled, are seen and named; honest ledgers raise no alarm."""

import random
from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, text

from benchmarks import tamper
from benchmarks.rewriting import Log, undone
from benchmarks.tamper import Ground, Tried
from benchmarks.tampering import EDITS, NOT_SKILLED
from service.storage import migrations
from service.storage.engine import connect, snapshot, transaction
from service.storage.tables import metadata
from service.transparency.verification.ledger import verify
from tests.conftest import BACKENDS, clear

EACH = [(kind, False) for kind in EDITS]
EACH += [(kind, True) for kind in EDITS if kind not in NOT_SKILLED]


@pytest.fixture(scope="module")
def grounds(
    backend_urls: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Ground]]:
    """The same happenings on a database of each kind, and what was kept of them."""
    found = []
    for name in BACKENDS:
        clear(backend_urls[name])
        engine = connect(backend_urls[name])
        folder = tmp_path_factory.mktemp(f"kept-{name}")
        # Of these happenings some are of every kind that is edited below.
        found.append(tamper.ground(engine, folder, random.Random(7), datasets=3, happenings=26))
    yield found
    for here in found:
        here.engine.dispose()


def test_a_ledger_that_nobody_edited_is_sound_by_everything_that_was_kept(
    grounds: list[Ground],
) -> None:
    for here in grounds:
        for kept in (here.witness, here.checkpoints):
            with snapshot(here.engine) as connection:
                report = verify(connection, kept)
            assert [one.text for one in report.broken] == []
            assert report.checked["entries"] > 20
            assert report.checked["leaves"] == sum(log.longest for log in kept.logs.values())


def test_stored_leaves_are_the_hashes_that_the_format_describes(grounds: list[Ground]) -> None:
    for here in grounds:
        with snapshot(here.engine) as connection:
            for name in here.names:
                log = Log.read(connection, name)
                assert [row["leaf"] for _, row in log.in_order()] == log.hashes()


@pytest.mark.parametrize(("kind", "skilled"), EACH)
def test_the_first_broken_leaf_is_named(grounds: list[Ground], kind: str, skilled: bool) -> None:
    chance, found = random.Random(f"{kind} {skilled}"), Tried()
    here = grounds[EACH.index((kind, skilled)) % len(grounds)]
    assert tamper.attempt(here, chance, kind, skilled=skilled, found=found)
    assert found.wrong == []
    # Checkpoints sign roots: whatever is a leaf differs from them, too.
    assert (found.tried, found.detected, found.named, found.signed) == (1, 1, 1, 1)


def test_what_was_edited_is_taken_back(grounds: list[Ground]) -> None:
    for here in grounds:
        with undone(here.engine) as connection:
            connection.execute(text("DELETE FROM entries"))
        with snapshot(here.engine) as connection:
            assert verify(connection, here.witness).first is None


def test_ledgers_that_nobody_edited_raise_no_alarm_also_after_a_migration(
    engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tamper.honest([engine], random.Random(3), 3) == (3, 0)
    assert capsys.readouterr().out == ""
    with transaction(engine) as connection:  # the schema as other tests expect it
        connection.execute(text("DELETE FROM alembic_version"))
        metadata.drop_all(connection)
    migrations.upgrade(engine, new=True)
