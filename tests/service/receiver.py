"""Somebody who takes webhooks, and somebody who sends them."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from sqlalchemy import Engine, insert

from service.clock import now
from service.ledger.incidents import Kind
from service.ledger.lookups import find_dataset
from service.operations.webhooks import Dispatcher, webhooks_of
from service.settings import Settings
from service.storage.engine import transaction
from service.storage.tables import incidents

PHRASE = "a secret of more than thirty-two characters"


@dataclass
class Receiver:
    """Somebody who takes webhooks, or does not."""

    url: str = ""
    answers: list[int] = field(default_factory=list)  # statuses; 200 once they are used up
    sent: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    delay_seconds: float = 0.0

    @property
    def sequences(self) -> list[int]:
        return [json.loads(body)["sequence"] for _, body in self.sent]

    @property
    def kinds(self) -> list[str]:
        return [json.loads(body)["kind"] for _, body in self.sent]

    @property
    def ids(self) -> list[str]:
        return [headers["webhook-id"] for headers, _ in self.sent]


@contextmanager
def receiving(*answers: int, delay_seconds: float = 0.0, port: int = 0) -> Iterator[Receiver]:
    receiver = Receiver(answers=list(answers), delay_seconds=delay_seconds)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            receiver.sent.append((headers, body))
            time.sleep(receiver.delay_seconds)
            status = receiver.answers.pop(0) if receiver.answers else 200
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("location", receiver.url)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_given: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_address[1]}/hook?a=b"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def secret_in(folder: Path) -> Path:
    """A file with a secret."""
    file = folder / "secret"
    file.write_text(f"{PHRASE}\n", encoding="utf-8")
    return file


@contextmanager
def sending(engine: Engine, folder: Path, *urls: str, **given: object) -> Iterator[Dispatcher]:
    """A process that sends to these addresses."""
    settings = Settings(
        webhooks=urls,
        webhook_secret_file=secret_in(folder),
        **given,  # type: ignore[arg-type]
    )
    dispatcher = Dispatcher(engine, webhooks_of(settings))
    dispatcher.start()
    try:
        yield dispatcher
    finally:
        dispatcher.stop()


def happened(engine: Engine, *, hours_ago: float, sequence: int) -> None:
    """Record an incident of the past."""
    with transaction(engine) as connection:
        row = {
            "dataset_id": find_dataset(connection, "data").id,
            "kind": Kind.OVERDRAFT.value,
            "sequence": sequence,
            "detail": "{}",
            "occurred_at": now() - timedelta(hours=hours_ago),
        }
        connection.execute(insert(incidents).values(row))
