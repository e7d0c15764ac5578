"""Requests that schemathesis makes from the OpenAPI document, every check of it enabled.

The requests and what the answers are held against come from the document the service itself gives
out. What a JSON schema cannot say of a request, `BEYOND_SCHEMA` says, one reason a rule: a refusal
for any other cause is a failure, and so is every failure of any other check.
"""

import asyncio
import hashlib
import re
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import schemathesis
import uvicorn
from fastapi import FastAPI
from schemathesis.config import SchemathesisConfig
from schemathesis.core.failures import Failure
from schemathesis.engine import events, from_schema
from schemathesis.schemas import BaseSchema
from starlette.types import Message, Receive, Scope, Send

from benchmarks.servers import databases, free_port
from service.app import create_app
from service.identity.keys import Role as KeyScope
from service.identity.keys import create_key
from service.settings import Settings
from service.storage import migrations
from service.storage.engine import connect, transaction
from service.transparency.signing import Signer
from service.web.server import Server, connection_limits

# Names that there are, so that a generated request meets something; two names in three are these.
KNOWN: Final = {
    "dataset": ("data", "bare"),
    "run": ("run", "done", "other"),
    "reservation": ("ahead", "returned"),
    "bound": ("poisson-gaussian", "gaussian-rdp"),
    "slug": ("conflict", "not-found"),
    "branch": ("main", "fork"),
}
NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
WRITER: Final = "writer-of-the-requests"
STREAM_SECONDS: Final = 0.05  # after which the reader of a stream leaves, if it is told nothing
FAILURES_SHOWN: Final = 20
# What a schema cannot say, by what the answer says of it.
BEYOND_SCHEMA: Final[dict[str, str]] = {
    "Input should be a valid integer": "a schema takes 3.0 for an integer; the service does not",
    "must be printable text": "no pattern of a schema knows what Unicode can print",
    "must be true, false, null, a finite number": "the same, inside an assumption",
    "must match": "the same of a name in a place that has no pattern",
    "orders: each lies in": "compares a number with the filter's kind",
    "orders: the .* filter has none": "one of two fields",
    "its theorem is .*, which": "what is accepted decides which filter there is",
    r"assumptions\..*: must be given": "what a release says decides what must be attested",
    "must be every_step here": "the same",
    r"must lie in \[0, world_size\)": "compares two fields",
    r"body\.signature: must be of key": "only what this service signed is compared",
    "must not be more than": "compares two parameters, or one with what was recorded",
    "and not both": "one of two parameters",
    "must be the dataset in the path": "compares a field with the path",
    "less than or equal to 4611686018427387904": "the document tells this integer as a float",
    "give sampling_probability or expected_batch_size": "one of two fields, in an open event none",
    r"must lie in \[.*\] for this dataset": "compares a size with the dataset's",
    r"must lie in \[1, steps_per_pass\]": "compares two fields",
    "this sampling needs a dataset_size": "one field needs another",
    "must attest, if there are parents": "the same",
    "declared must be given where": "the same",
    "which anyone can see: there is no finite bound": "the mechanism does not fit the relation",
    r"first_step: must be \d+": "an event begins where the one before it ended",
    "a JSON body says this itself": "what the query may say depends on the body's type",
    "give delta or epsilon, not both": "compares two parameters",
    "must be given: neither the run nor": "depends on what was recorded",
    "must be a next_page_token": "only what was given out continues a list",
    "must be the id of a frame": "depends on what was recorded",
    r"query.as_of: must lie in": "depends on what was recorded",
    "no event leaves its .* open": "compares solve_for with what is left out",
    "must be given to solve for": "the same",
    "may be left out of one event only": "the same",
    "whose steps are open": "the same",
    "cannot be kept to": "a target that nothing reaches",
    "Every bound for this event is": "what is accepted decides which theorem applies",
    "it has no finite epsilon": "the same, where no theorem applies at all",
    "If-Match is missing": "428 says more than that a header is required",
    "The settings are at revision": "depends on what was recorded",
    "give halting_probability or mean": "one of two fields",
    "no halting_probability": "one field excludes another",
    "give event or events, not both": "one of two fields",
    "belongs to a budget whose filter is envelope": "compares two fields",
    "must equal body.branch": "compares the query with the body",
    "must be matrix_gaussian": "compares two fields",
    "must be min_separation or": "the same",
    "at no Renyi order does the budget hold": "what is accepted decides which orders hold a step",
    "must lie in the future": "compares a time with the clock",
    "left_out: must be": "compares a length with the dataset's",
    r"must lie in \[\d+, (guesses|canaries)\]": "compares two fields",
    "must have from": "compares the lengths of rows",
    "must be of one length": "the same",
    "must begin with a number above 0": "an array's first place",
    "must be 0 or of a size from": "a range with a gap",
    r"must lie in \[\d+, \d+\], at most steps_per_pass": "compares two parameters",
    "must equal body.mode": "compares the query with the body",
    "must be the name of a key in force": "depends on what was recorded",
    "only full or poisson sampling is accounted": "which theorems there are",
    "would take more than 2 s of processor": "the same: how much there is to add up",
    "So many deltas would take too much work": "the same",
}


@dataclass(slots=True)
class Explored:
    """What came of the requests."""

    requests: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    excused: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """How many requests, how they were answered, and by which rules some were excused."""
        answered = ", ".join(f"{status}: {n}" for status, n in sorted(self.statuses.items()))
        rules = "".join(f"\n  {n:6} {rule}" for rule, n in self.excused.most_common())
        return (
            f"{self.requests} requests, {len(self.failures)} failures ({answered}); "
            f"{self.excused.total()} refused for what no schema says:{rules}"
        )


def explore(
    address: str, found: Explored, *, key: str, seed: int, examples: int, share: float
) -> None:
    """Send requests and hold every answer against the document.

    Args:
        address: of a service where `prepare` was done.
        found: to be added to.
        key: of an admin.
        seed: the same one makes the same requests.
        examples: generated at random for each operation.
        share: of the requests at the edges of each value, of which there are some 6,000.
    """
    schema = _schema(address, key=key, seed=seed, examples=examples, edges=share > 0)
    _steer(schema, found, seed=seed, share=share)
    for event in from_schema(schema).execute():
        if isinstance(event, events.ScenarioFinished):
            _count(found, event.recorder)
        elif isinstance(event, events.NonFatalError):
            found.failures.append(f"{event.label}: {event.value}")
        elif isinstance(event, events.FatalError):
            raise event.exception


def _schema(address: str, *, key: str, seed: int, examples: int, edges: bool) -> BaseSchema:
    settings = {
        "seed": seed,
        "continue-on-failure": True,
        "headers": {"Authorization": f"Bearer {key}"},
        "request-timeout": 30.0,
        "checks": {
            "enabled": True,
            # A body that no schema allows may be too large as well, or sent on settings that have
            # changed since: a pass without a length is refused when its dataset was looked at.
            "negative_data_rejection": {
                "expected-statuses": ["400", "401", "404", "409", "412", "413", "415", "422", "428"]
            },
        },
        "generation": {
            "max-examples": examples, "mode": "all", "no-shrink": True, "database": "none",
            "deterministic": True,
        },
        # Of two operations, none links to the other.
        "phases": {"stateful": {"enabled": False}, "coverage": {"enabled": edges}},
        "warnings": False,
    }  # fmt: skip
    config = SchemathesisConfig.from_dict(settings)
    document = httpx.get(f"{address}/v1/openapi.json", timeout=60).json()
    schema = schemathesis.openapi.from_dict(document, config=config)
    schema.config.update(base_url=address)
    return schema


def _steer(schema: BaseSchema, found: Explored, *, seed: int, share: float) -> None:
    @schema.hook
    def filter_case(_context: Any, case: Any) -> bool:
        at_random = case.meta is None or case.meta.phase.name.value != "coverage"
        what = (case.method, case.path_parameters, case.query, case.headers, case.body)
        return at_random or _number(seed, *what) < share

    @schema.hook
    def map_path_parameters(_context: Any, parameters: Any) -> Any:
        return parameters and {name: _known(name, one) for name, one in parameters.items()}

    @schema.hook
    def filter_failure(_context: Any, failure: Failure, case: Any, response: Any) -> bool:
        rule = beyond_schema(failure, response)
        if rule is None:
            return True
        found.excused[rule] += 1
        return False


def beyond_schema(failure: Failure, response: Any) -> str | None:
    """The rule that a request broke though its schema allows it; None for every other failure."""
    if type(failure).__name__ != "RejectedPositiveData" or response.status_code not in (
        412,
        422,
        428,
    ):
        return None
    said = response.json()
    text = f"{said['title']}: {said['detail']}"
    return next((rule for rule in BEYOND_SCHEMA if re.search(rule, text)), None)


def _number(*parts: object) -> float:
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:4]) / 2**32


def _known(name: str, value: Any) -> Any:
    """A name there is, for two in three that could be one: what is no name stays none."""
    if not isinstance(value, str) or not NAME.fullmatch(value) or name not in KNOWN:
        return value
    place = int(_number(name, value) * len(KNOWN[name]) * 1.5)
    return KNOWN[name][place] if place < len(KNOWN[name]) else value


def _count(found: Explored, recorder: Any) -> None:
    for identifier, interaction in recorder.interactions.items():
        found.requests += 1
        if interaction.response is not None:
            found.statuses[interaction.response.status_code] += 1
        else:
            asked = recorder.cases[identifier].value.as_curl_command()[:800]
            found.failures.append(f"{recorder.label}: no answer\n  {asked}")
        for check in recorder.checks.get(identifier, []):
            if check.failure_info is not None:
                found.failures.append(_told(recorder, identifier, check))


def _told(recorder: Any, identifier: str, check: Any) -> str:
    case, answer = recorder.cases[identifier].value, recorder.interactions[identifier].response
    said = answer.content.decode("utf-8", "replace")[:300] if answer else ""
    what = f"{check.name}: {check.failure_info.failure.title}"
    return f"{what}\n  {case.as_curl_command()[:800]}\n  {said}"


def campaign(*, requests: int, seed: int) -> int:
    """Explore a service on each database until there were so many requests; 0 without a failure."""
    failed = 0
    with tempfile.TemporaryDirectory() as name, databases(Path(name)) as urls:
        for backend, url in urls.items():
            found = Explored()
            with serving(url) as (address, key):
                while found.requests < requests / len(urls):
                    explore(address, found, key=key, seed=seed, examples=20, share=1.0)
                    seed += 1
            failed += len(found.failures)
            print(f"{backend}: {found}", *found.failures[:FAILURES_SHOWN], sep="\n", flush=True)
    return int(failed > 0)


@contextmanager
def serving(url: str) -> Iterator[tuple[str, str]]:
    """A service on an empty database with what the requests are to meet; an admin's key."""
    engine = connect(url)
    migrations.upgrade(engine)
    with transaction(engine) as connection:
        key = create_key(connection, name="explorer", scope=KeyScope.ADMIN)
    engine.dispose()
    port, keys = free_port(), tempfile.TemporaryDirectory()
    file = Path(keys.name) / "signing_key"
    Signer.create(file)
    settings = Settings(database_url=url, signing_key_file=file)
    application = Leaving(create_app(settings))
    server = Server(
        uvicorn.Config(application, port=port, log_config=None, **connection_limits(settings))
    )  # fmt: skip
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    address = f"http://127.0.0.1:{port}"
    try:
        with httpx.Client(base_url=address, headers={"Authorization": f"Bearer {key}"}) as api:
            prepare(lambda path, body: api.post(path, json=body).status_code)
        yield address, key
    finally:
        server.should_exit = True
        thread.join()
        keys.cleanup()


class Leaving:
    """An application whose streams have readers that leave soon; others wait for a whole answer."""

    def __init__(self, app: FastAPI) -> None:
        self.app = app
        self.state = app.state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http" or not scope["path"].endswith("/stream"):
            await self.app(scope, receive, send)
            return
        told = asyncio.Event()

        async def leaving() -> Message:
            with suppress(TimeoutError):
                async with asyncio.timeout(STREAM_SECONDS):
                    await told.wait()
            return {"type": "http.disconnect"}

        async def sent(message: Message) -> None:
            await send(message)
            if b"data:" in message.get("body", b""):
                told.set()

        await self.app(scope, leaving if scope["method"] == "GET" else receive, sent)


def prepare(send: Callable[[str, Any], int]) -> None:
    """What the requests are to meet: datasets, runs with steps, branches and reservations.

    Args:
        send: posts a body to a path and returns the answer's status.
    """
    gaussian = {"kind": "gaussian", "noise_multiplier": 1.1}
    poisson = {"kind": "poisson", "sampling_probability": 0.01}
    step = {"mechanism": gaussian, "sampling": poisson}
    events_ = {"events": [{"first_step": 0, "steps": 100, **step}]}
    dataset = {
        "dataset_size": 60000, "neighboring_relation": "add_or_remove_one", "privacy_unit": "row",
    }  # fmt: skip
    budget = {"epsilon": 8.0, "delta": 1e-5}
    run = {"writer": WRITER, "dataset": "data", "delta": 1e-5}
    ahead = {"event": {"steps": 10, **step}, "ttl_seconds": 86400}
    asked = [
        ("/v1/datasets", {"name": "data", "budget": budget, **dataset}),
        ("/v1/datasets", {"name": "bare", **dataset}),
        *(("/v1/runs", {"name": name, **run, **more})
          for name, more in (("run", {}), ("done", {}), ("other", {"budget": budget}))),
        *((f"/v1/runs/{name}/events", events_) for name in ("run", "done", "other")),
        ("/v1/runs/run/branches", {"name": "fork", "writer": WRITER, "from_step": 50}),
        ("/v1/runs/run/reservations", {"name": "ahead", **ahead}),
        ("/v1/runs/run/reservations", {"name": "returned", "branch": "fork", **ahead}),
        ("/v1/reservations/returned:void", {"reason": "nobody needs it"}),
        ("/v1/runs/run/releases", {"step": 40}),
        ("/v1/runs/done:finish", {"state": "finished"}),
    ]  # fmt: skip
    for path, body in asked:
        status = send(path, body)
        if status not in (200, 201):
            raise ValueError(f"POST {path} answered {status}")
