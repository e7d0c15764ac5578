"""What tests of certificates share: a key, a world to certify, and a service that signs."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from sqlalchemy import Engine, select

from benchmarks.servers import free_port
from service.app import create_app
from service.settings import Settings
from service.storage import migrations
from service.storage.engine import connect
from service.storage.tables import acts
from service.transparency.certificates.envelope import seal_certificate
from service.transparency.certificates.issue import CertificateInputs, issue
from service.transparency.signing import Signer
from service.web.server import Server
from tests.conftest import AS_ADMIN
from tests.service.samples import (
    AUDIT,
    BALLS,
    BUDGET,
    FULL,
    POISSON,
    SAMPLING,
    Json,
    append,
    dataset,
    event,
    run,
)

QUIET: Json = {"kind": "gaussian", "noise_multiplier": 20.0}


def signer_of(folder: Path) -> Signer:
    file = folder / "signing_key"
    return Signer.load(file) if file.exists() else Signer.create(file)


@contextmanager
def signing(url: str, signer: Signer | None, **given: Any) -> Iterator[httpx.Client]:
    """A service of one's own that signs with a key."""
    application = create_app(Settings(database_url=url, **given))
    application.state.signer = signer
    port = free_port()
    server = Server(uvicorn.Config(application, host="127.0.0.1", port=port, log_config=None))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.002)
    try:
        with httpx.Client(
            base_url=f"http://127.0.0.1:{port}", timeout=30, headers=AS_ADMIN
        ) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join()


def certified(
    engine: Engine,
    signer: Signer,
    name: str = "run",
    *,
    kind: str = "run",
    deltas: tuple[float, ...] = (1e-5,),
    model_sha256: str | None = None,
) -> bytes:
    asked = CertificateInputs(kind=kind, name=name, deltas=deltas, model_sha256=model_sha256)
    return issue(engine, signer, asked, by="tests")


def said(raw: bytes) -> Json:
    found: Json = json.loads(raw)["certificate"]
    return found


def resealed(raw: bytes, signer: Signer, change: Callable[[Json], object]) -> bytes:
    """A certificate that somebody with a key has changed and signed again."""
    certificate = said(raw)
    change(certificate)
    return seal_certificate(certificate, signer)


def told(engine: Engine, kind: str) -> list[Json]:
    """The content of every act of a kind, in order."""
    query = select(acts.c.content).where(acts.c.kind == kind).order_by(acts.c.id)
    with engine.connect() as connection:
        return [json.loads(content) for content in connection.scalars(query)]


def full_world(api: httpx.Client) -> None:
    """A dataset with two runs and a child: branches, passes, a correction, an overdraft, leases."""
    answers = [
        api.post("/v1/datasets", json=dataset(budget=BUDGET)),
        api.post("/v1/runs", json=run(labels={"library.opacus": "1.5.4"}, delta=1e-6)),
        api.post("/v1/runs", json=run("other", writer="writer-of-the-tests-2")),
        append(api, event(0, 100), event(100, 50, sampling=BALLS)),
        append(api, event(0, 30, mechanism=QUIET, sampling=FULL), run="other"),
        api.post(
            "/v1/runs/run/branches",
            json={"name": "b", "writer": "writer-of-the-tests-3", "from_step": 120,
                  "from_branch": "main", "order": "fresh"},
        ),
        append(api, event(120, 5, sampling=BALLS), branch="b"),
        append(api, event(150, 2, sampling=FULL)),  # beyond the limit
        api.post(
            "/v1/runs/other/corrections",
            json={"first_step": 3, "steps": 4, "reason": "the log says so",
                  "mechanism": {"kind": "gaussian", "noise_multiplier": 15.0}, "sampling": FULL},
        ),
        api.post("/v1/runs/run/releases", json={"step": 10}),
        api.post(
            "/v1/runs/run/findings",
            json=SAMPLING | {"status": "contradicted", "declared": FULL, "recorded": POISSON},
        ),
        api.post("/v1/runs/run/audits", json=AUDIT | {"synthetic": False}),
        api.post("/v1/runs/run/audits/1:result", json={"correct": 98}),
    ]  # fmt: skip
    assert [answer.status_code for answer in answers] == [201] * len(answers), [
        answer.text for answer in answers if answer.status_code != 201
    ]


def certificate_of(
    folder: Path, signer: Signer, world: Callable[[httpx.Client], None] = full_world
) -> bytes:
    """The certificate of a run, to which much has happened."""
    url = f"sqlite:///{folder / 'ledger.db'}"
    engine = connect(url)
    migrations.upgrade(engine)
    with signing(url, signer) as api:
        world(api)
    raw = certified(engine, signer)
    engine.dispose()
    return raw
