"""What the witness says of a ledger that came back from a backup."""

from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from service.operations.backup import restore, take_backup
from service.settings import Settings
from service.storage import migrations
from service.storage.engine import connect
from service.transparency.signing import Signer
from tests.conftest import AS_ADMIN, running
from tests.service.samples import FULL, append, event, setup


@dataclass(frozen=True)
class Lost:
    """A ledger that is gone, and what was kept elsewhere."""

    folder: Path

    def settings(self, name: str) -> Settings:
        """Of a service on a ledger in the folder, with the same key and witness."""
        return Settings(
            database_url=f"sqlite:///{self.folder / name}.db",
            signing_key_file=self.folder / "key",
            witness_file=self.folder / "witness",
        )

    def backed_up(self, name: str) -> None:
        engine = connect(self.settings("ledger").database_url)
        take_backup(engine, self.folder / name)
        engine.dispose()

    def restored(self, name: str) -> Settings:
        settings = self.settings(name)
        engine = connect(settings.database_url)
        restore(engine, self.folder / name, by="somebody")
        engine.dispose()
        return settings


@pytest.fixture
def lost(tmp_path: Path) -> Lost:
    found = Lost(tmp_path)
    Signer.create(tmp_path / "key")
    engine = connect(found.settings("ledger").database_url)
    migrations.upgrade(engine)
    engine.dispose()
    with (
        running(found.settings("ledger")) as address,
        httpx.Client(base_url=address, headers=AS_ADMIN) as api,
    ):
        setup(api)
        append(api, event(0, 5))
        found.backed_up("older")
        append(api, event(5, 5, sampling=FULL))
        found.backed_up("newest")
    return found  # the service has told the witness last of all


def test_the_newest_backup_goes_on_where_the_ledger_was(lost: Lost) -> None:
    with (
        running(lost.restored("newest")) as address,
        httpx.Client(base_url=address, headers=AS_ADMIN) as api,
    ):
        assert api.get("/readyz").status_code == 200
        assert append(api, event(10, 1)).status_code == 201


def test_an_older_backup_is_found_out_before_anything_is_written_to_it(lost: Lost) -> None:
    with (
        running(lost.restored("older")) as address,
        httpx.Client(base_url=address, headers=AS_ADMIN) as api,
    ):
        assert api.get("/readyz").json()["checks"]["log"] == "suspended"
        refused = append(api, event(5, 1))
        assert refused.status_code == 503
        assert refused.json()["type"] == "/problems/ledger-suspended"
        assert api.get("/v1/runs/run").json()["steps"] == 5
