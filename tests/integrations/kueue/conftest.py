"""A fake cluster, a ledger, and the controller between them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster, Controller, until


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    cluster.create_check()
    yield cluster
    cluster.stop()


@pytest.fixture(scope="session")
def controller(
    cluster: Cluster, service: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Controller]:
    key = Path(f"{service.database}.token")
    controller = Controller(cluster, service.url, key, tmp_path_factory.mktemp("controller"))
    controller.start()
    until(
        lambda: cluster.call("GET", "/admissionchecks/dpledger"), lambda found: found.get("status")
    )
    yield controller
    controller.kill()
