"""A copy that runs elsewhere is another ledger: what it signs says nothing of the first."""

from pathlib import Path

import pytest
from sqlalchemy import Engine, select, text, update
from typer.testing import CliRunner

from service.cli.main import app
from service.errors import ConflictError, LedgerSuspendedError
from service.ledger.datasets import create_dataset
from service.ledger.log.leaves import Act, append_leaves
from service.operations.backup import restore, take_backup
from service.schemas.requests import NewDataset
from service.storage import migrations
from service.storage.engine import connect, snapshot, transaction
from service.storage.tables import installation
from service.transparency.checkpoints import LogHeads, Part
from service.transparency.proofs import compare_checkpoint
from service.transparency.recovery import standing
from service.transparency.signing import Signer
from service.transparency.verification.ledger import verify
from tests.service.samples import dataset


def begun(engine: Engine, name: str) -> None:
    with transaction(engine) as connection:
        create_dataset(connection, NewDataset.model_validate(dataset(name)), by="me")


def part_of(engine: Engine, signer: Signer) -> Part:
    with snapshot(engine) as connection:
        return LogHeads.of(connection).part(signer, None)


@pytest.mark.parametrize("renamed", [False, True])
def test_only_a_copy_with_an_identity_of_its_own_leaves_the_first_alone(
    tmp_path: Path, renamed: bool
) -> None:
    signer = Signer.create(tmp_path / "signing_key")
    first, url = connect(f"sqlite:///{tmp_path / 'first.db'}"), f"sqlite:///{tmp_path / 'copy.db'}"
    migrations.upgrade(first)
    begun(first, "data")
    take_backup(first, tmp_path / "backup")
    copy = connect(url)
    restore(copy, tmp_path / "backup", by="me")
    if renamed:
        done = CliRunner().invoke(app, ["as-new-ledger", "--reason", "x", "--database", url])
        with snapshot(copy) as connection:
            assert done.stdout == f"{LogHeads.of(connection).ledger_id}\n"
            assert verify(connection).broken == []
    signed = part_of(copy, signer)
    with pytest.raises(ConflictError if renamed else LedgerSuspendedError):
        compare_checkpoint(first, signer, signed, by="viewer")
    assert standing(first).state == ("open" if renamed else "suspended")
    first.dispose()
    copy.dispose()


def test_an_identity_that_the_log_does_not_tell_of_is_broken(
    engine: Engine, database_url: str
) -> None:
    with snapshot(engine) as connection:
        own = connection.execute(select(installation.c.ledger_id)).scalar_one()
    try:
        command = ["as-new-ledger", "--database", database_url, "--reason"]
        assert CliRunner().invoke(app, [*command, ""]).exit_code == 2
        assert CliRunner().invoke(app, [*command, "staging"]).exit_code == 0
        with transaction(engine) as connection:
            (act,) = connection.execute(text("SELECT kind, content FROM acts")).all()
            assert (act.kind, '"reason":"staging"' in act.content) == ("copied", True)
            connection.execute(update(installation).values(ledger_id=own))
            (found,) = verify(connection).broken
        assert "differs from what the log says of the copy" in found.text
        with transaction(engine) as connection:
            append_leaves(connection, None, [Act("copied", {})])
            assert verify(connection).broken
    finally:  # the identity is the one thing that tests do not clear
        with transaction(engine) as connection:
            connection.execute(update(installation).values(ledger_id=own))
