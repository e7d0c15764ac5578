"""A certificate for strangers to change: the file as it is, and its content signed again."""

import asyncio
import json
import math
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, Final

import httpx
from sqlalchemy import make_url

from benchmarks.servers import START_TOKEN, start_token_file
from service.app import create_app
from service.errors import LedgerError
from service.settings import Settings
from service.storage import migrations
from service.storage.engine import connect
from service.transparency.certificates.envelope import InvalidCertificateError, seal_certificate
from service.transparency.certificates.issue import CertificateInputs, issue
from service.transparency.certificates.records import AGREEMENT
from service.transparency.certificates.verify import verify_bytes
from service.transparency.signing import Signer
from service.web.strict_json import parse_json

DELTA: Final = 1e-5


@cache
def _issued() -> tuple[bytes, Signer]:
    """The certificate of a small run, and the key that signs it."""
    with tempfile.TemporaryDirectory() as name:
        url = f"sqlite:///{Path(name) / 'dpledger.db'}"
        engine = connect(url)
        migrations.upgrade(engine)
        signer = Signer.create(Path(name) / "key")
        asyncio.run(_record(url))
        asked = CertificateInputs(kind="run", name="run", deltas=(DELTA,), model_sha256=None)
        raw = issue(engine, signer, asked, by="fuzz")
        engine.dispose()
    return raw, signer


async def _record(url: str) -> None:
    token_file = start_token_file(Path(make_url(url).database or "").parent)
    app = create_app(Settings(database_url=url, start_token_file=token_file))
    step = {
        "first_step": 0, "steps": 10,
        "mechanism": {"kind": "gaussian", "noise_multiplier": 20.0},
        "sampling": {"kind": "full"},
    }  # fmt: skip
    asked: list[tuple[str, Any]] = [
        ("/v1/datasets", {"name": "data", "dataset_size": 60_000, "privacy_unit": "row",
                          "neighboring_relation": "add_or_remove_one"}),
        ("/v1/runs", {"name": "run", "writer": "writer-of-the-fuzzer", "dataset": "data",
                      "delta": DELTA}),
        ("/v1/runs/run/events", {"events": [step]}),
    ]  # fmt: skip
    transport = httpx.ASGITransport(app)
    headers = {"Authorization": f"Bearer {START_TOKEN}"}
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as api,
    ):
        for path, body in asked:
            (await api.post(path, json=body)).raise_for_status()


def _followed(content: dict[str, Any]) -> dict[str, Any]:
    """What follows from the facts: not with which libraries the signer says it was computed."""
    return content | {"versions": content["versions"]["dpledger"]}


def _alike(one: Any, other: Any) -> bool:
    """Whether two contents are the same, but for numbers as far apart as machines' may be."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=AGREEMENT)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_alike, one, other))
    return bool(type(one) is type(other) and one == other)


def seeds() -> tuple[bytes, ...]:
    """The file, and its content alone."""
    raw, _ = _issued()
    return raw, json.dumps(json.loads(raw)["certificate"]).encode()


def verify(body: bytes) -> str:
    """What is said of the bytes as a file, and as the content of one whose signature is right."""
    raw, signer = _issued()
    try:
        found = verify_bytes(body)
        if body != raw:
            raise AssertionError("a changed certificate is verified")
        return f"accepted {found.subject}"
    except InvalidCertificateError as error:
        said = str(error)
    try:
        content = parse_json(body)
        again = seal_certificate(content, signer)
    except (LedgerError, ValueError):  # which nobody can have signed
        return said[:40]
    try:
        verify_bytes(again, public_key=signer.public_key)
    except InvalidCertificateError as error:
        return f"signed: {str(error)[:40]}"
    if not _alike(_followed(content), _followed(json.loads(raw)["certificate"])):
        raise AssertionError("a changed content is verified")
    return "accepted, signed again"
