"""Readers and writers apart: on one database, each process answers its own kind of request."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import pytest
from sqlalchemy import Engine

from benchmarks.servers import free_port
from service.identity.keys import Role, create_key
from service.settings import Settings
from service.storage.engine import transaction
from service.transparency.signing import Signer
from service.web.process_role import answers
from tests.service.browsing import csrf_of, signed_in
from tests.service.proxy import blocks_of_guide, nginx
from tests.service.samples import BUDGET, append, dataset, event, run
from tests.service.test_keys import bearer

Serve = Callable[..., AbstractContextManager[str]]
ROOT = Path(__file__).parents[2]
KEY = "dpl_officer-of-two-processes-0123456789abcdef"
MISDIRECTED = (421, "/problems/misdirected")


@pytest.fixture
def both(
    engine: Engine, serve: Serve, tmp_path: Path
) -> Iterator[tuple[httpx.Client, httpx.Client]]:
    """A client of a reader and one of a writer, with an admin's key."""
    with transaction(engine) as connection:
        key = create_key(connection, name="officer", scope=Role.ADMIN, key=KEY)
    Signer.load_or_create(tmp_path / "signing_key")
    given = {"signing_key_file": tmp_path / "signing_key"}
    with (
        serve(role="reader", **given) as reads,
        serve(role="writer", **given) as writes,
        httpx.Client(base_url=reads, headers=bearer(key), timeout=30) as reader,
        httpx.Client(base_url=writes, headers=bearer(key), timeout=30) as writer,
    ):
        yield reader, writer


def told(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["type"]


def test_what_one_process_records_the_other_shows_at_once(
    both: tuple[httpx.Client, httpx.Client],
) -> None:
    reader, writer = both
    assert writer.post("/v1/datasets", json=dataset(budget=BUDGET)).status_code == 201
    assert writer.post("/v1/runs", json=run()).status_code == 201
    before = 0.0
    for step in range(5):
        assert append(writer, event(step, 1), mode="charge").status_code == 201
        assert reader.get("/v1/runs/run").json()["next_step"] == step + 1
        epsilon = reader.get("/v1/runs/run/guarantee").json()["epsilon"]
        assert epsilon > before
        before = epsilon
        budget = reader.get("/v1/datasets/data").json()["budget"]
        assert budget["share"] > 0
    assert reader.get("/v1/runs/run/certificate").status_code == 200
    assert reader.post("/v1/datasets/data/explain", json={}).status_code != 421


def test_each_refuses_what_the_other_answers_and_changes_nothing(
    both: tuple[httpx.Client, httpx.Client],
) -> None:
    reader, writer = both
    assert told(reader.post("/v1/datasets", json=dataset())) == MISDIRECTED
    assert told(writer.get("/v1/datasets")) == MISDIRECTED
    assert reader.get("/v1/datasets").json()["datasets"] == []
    assert writer.post("/v1/datasets", json=dataset()).status_code == 201
    assert writer.post("/v1/runs", json=run()).status_code == 201
    assert told(append(reader, event(0, 1))) == MISDIRECTED
    assert told(reader.patch("/v1/datasets/data", json={})) == MISDIRECTED
    assert reader.get("/v1/runs/run").json()["next_step"] == 0
    for path in ("/", "/datasets/data", "/datasets.csv", "/v1/runs/run/guarantee"):
        assert told(writer.get(path)) == MISDIRECTED, path
        assert reader.get(path).status_code != 421, path
    for client in both:
        for path in ("/healthz", "/readyz", "/metrics"):
            assert client.get(path).status_code == 200, path


def test_a_session_that_a_reader_began_holds_at_a_writer(
    both: tuple[httpx.Client, httpx.Client],
) -> None:
    reader, writer = both
    assert writer.post("/v1/datasets", json=dataset()).status_code == 201
    read, written = (str(one.base_url).rstrip("/") for one in both)
    with signed_in(read, KEY) as page:
        form = {"csrf": csrf_of(page), "revision": "1", "reason": "Stop.", "frozen": "yes"}
        sent = page.post("/datasets/data/admission", data=form)
        assert sent.status_code == 421
        answer = page.post(
            f"{written}/datasets/data/admission", data=form, headers={"origin": written}
        )
        assert answer.status_code == 303, answer.text
    assert reader.get("/v1/datasets/data").json()["frozen"] is True


def test_the_guides_nginx_chooses_by_the_method(
    both: tuple[httpx.Client, httpx.Client], tmp_path: Path
) -> None:
    reader, writer = both
    port = free_port()
    changed = {
        "127.0.0.1:8001": writer.base_url.netloc.decode(),
        "127.0.0.1:8002": reader.base_url.netloc.decode(),
    }
    blocks = blocks_of_guide("Reads apart from writes", port, changed)
    with (
        nginx(tmp_path, blocks, port) as front,
        httpx.Client(base_url=front, headers=bearer(KEY), timeout=30) as api,
    ):
        assert api.post("/v1/datasets", json=dataset()).status_code == 201
        assert api.post("/v1/runs", json=run()).status_code == 201
        assert append(api, event(0, 3)).status_code == 201
        assert api.get("/v1/runs/run").json()["next_step"] == 3
        assert api.get("/v1/runs/run/certificate").status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "reader", "writer"),
    [
        ("GET", "/v1/runs", True, False), ("HEAD", "/v1/runs", True, False),
        ("POST", "/v1/runs", False, True), ("PATCH", "/v1/datasets/data", False, True),
        ("DELETE", "/v1/runs", False, True), ("POST", "/v1/plan", True, True),
        ("POST", "/v1/datasets/data/explain", True, True), ("POST", "/sign-in", True, True),
        ("POST", "/v1/datasets/data/checkpoint:compare", True, True),
        ("POST", "/v1/runs/explain", False, True), ("GET", "/readyz", True, True),
    ],
)  # fmt: skip
def test_which_process_answers(method: str, path: str, reader: bool, writer: bool) -> None:
    assert answers("reader", method, path) == reader
    assert answers("writer", method, path) == writer
    assert answers("all", method, path)


def test_a_reader_starts_no_thread_that_writes(engine: Engine, serve: Serve) -> None:
    names = {one.name for one in threading.enumerate()}
    with serve(role="reader"):
        more = {one.name for one in threading.enumerate()} - names
    assert not any("writer" in name or "webhook" in name for name in more), more


def test_another_role_is_refused() -> None:
    with pytest.raises(ValueError, match="'all', 'reader' or 'writer'"):
        Settings(role="both")  # type: ignore[arg-type]
