"""What strangers' bytes go into, each as one function: what it says of them, or a crash.

A target answers a word for what became of the bytes: accepted, or refused and why. It raises what
is neither: an exception that no caller expects, or a property that does not hold.
"""

import atexit
import json
import re
import tempfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import quote

from dpledger_client.importers import csv, dp_event, flower, opacus
from dpledger_client.importers.bounded_reader import BadFile
from dpledger_client.importers.event_tree import UntranslatableEvent
from dpledger_client.recording import write_ahead_file
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from sqlalchemy import StaticPool, create_engine
from starlette.datastructures import QueryParams

from accounting.accountants import best_bound
from accounting.event_counts import EventCounts
from accounting.events import NeighboringRelation
from benchmarks import fuzz_certificates
from service.errors import InvalidRequestError, LedgerError
from service.ledger.budgets.strategies import Sensitivities
from service.schemas.event_codec import canonical, spans_of
from service.schemas.field_errors import fault_list
from service.schemas.ledger_document import LedgerDocument
from service.schemas.requests import EventBatch, valid_name
from service.storage.tables import metadata
from service.web import parameters
from service.web.api import append_events as route
from service.web.strict_json import parse_json
from service.web.strict_requests import JSON, NDJSON

SIZE: Final = 60_000
_MEMORY: Final = Path("/dev", "shm")  # a million files are written; no disk needs to see them
_DIGITS: Final = re.compile(r"\d+")
_ACCOUNTED_MAX: Final = 3  # different events of a document whose epsilon is worked out
_ONE_IN: Final = 64  # of such documents; each takes as long as a hundred without it


class Broken(Exception):  # noqa: N818 - what a property that does not hold raises
    """Something that was accepted is not what it was."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """Something that reads bytes of strangers."""

    run: Callable[[bytes], str]
    seeds: Sequence[bytes] = ()
    made: Callable[[], Sequence[bytes]] | None = None  # where seeds take time to make

    def first(self) -> Sequence[bytes]:
        """The inputs that others are made from."""
        return self.seeds if self.made is None else self.made()


@cache
def _strategies() -> Sensitivities:
    """Those of a ledger that keeps none."""
    engine = create_engine("sqlite://", poolclass=StaticPool)
    metadata.create_all(engine)
    return Sensitivities(engine)


def _refused(error: Exception) -> str:
    if isinstance(error, RequestValidationError | ValidationError):
        faults = fault_list(list(error.errors()))  # what the service would answer
        text = faults[0]["message"] if faults else ""
    else:
        text = str(error)
    return f"{type(error).__name__}: {_DIGITS.sub('N', text)[:60]}"


def _require(held: bool, what: str) -> None:
    if not held:
        raise Broken(what)


def _body(body: bytes) -> str:
    """A JSON body of steps: read the short way, the long way, and from its own canonical form."""
    try:
        append = route.read_append("run", parameters.AppendQuery(), JSON, body, _strategies())
    except (LedgerError, RequestValidationError) as error:
        return _refused(error)
    _require(
        append.events == route._read_batch(body, _strategies()).events,
        "a known body reads otherwise",
    )
    dumped = EventBatch(
        branch=append.branch_name, mode=cast(Any, append.mode), events=list(append.events)
    ).model_dump(exclude_none=True)  # fmt: skip
    again = EventBatch.model_validate(parse_json(canonical(dumped).encode()))
    _require(again.events == append.events, "the canonical form is of other events")
    return _priced(append.events)


def _lines(body: bytes) -> str:
    """Lines of steps: read together, and each by itself."""
    try:
        append = route.read_append("run", parameters.AppendQuery(), NDJSON, body, _strategies())
    except (LedgerError, RequestValidationError) as error:
        return _refused(error)
    each = [
        route._read_line(1, line, _strategies()) for line in body.removesuffix(b"\n").split(b"\n")
    ]
    _require(append.events == each, "a line reads otherwise beside others")
    return _priced(append.events)


def _priced(events: Any) -> str:
    try:
        spans = spans_of(events, dataset_size=SIZE, first_step=events[0].first_step)
    except InvalidRequestError as error:
        return _refused(error)
    _require(all(span.steps >= 1 for span in spans), "steps are lost")
    return f"accepted {len(spans)}"


def _ledger(body: bytes) -> str:
    """A ledger document, its balances, and for few different events its epsilon."""
    try:
        document = LedgerDocument.model_validate(parse_json(body))
        counts, corrected = document.counts(), document.corrected_counts()
    except (LedgerError, ValidationError) as error:
        return _refused(error)
    dumped = canonical(document.model_dump(exclude_none=True)).encode()
    again = LedgerDocument.model_validate(parse_json(dumped))
    _require(canonical(again.model_dump(exclude_none=True)).encode() == dumped, "other form")
    _require(again.counts() == counts, "the canonical form is of another balance")
    _require(again.corrected_counts() == corrected, "corrections are lost")
    if not 0 < len(counts.steps) <= _ACCOUNTED_MAX or zlib.crc32(body) % _ONE_IN:
        return "accepted"
    return _accounted(counts, document.neighboring_relation)


def _accounted(counts: EventCounts, relation: str) -> str:
    found = best_bound.guarantee(
        counts, relation=NeighboringRelation(relation), delta=1e-5, accountant="rdp"
    )
    if found.epsilon is None:
        return "accepted, no epsilon"
    low, high = found.epsilon_lower or 0.0, found.epsilon
    _require(0 <= low <= high < float("inf"), "epsilon is no bound")
    return "accepted, with an epsilon"


@cache
def _file() -> Path:
    kept = tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None)
    atexit.register(kept.cleanup)
    return Path(kept.name) / "input"


def _of_file(read: Callable[[Path], Any], *refusals: type[Exception]) -> Callable[[bytes], str]:
    def run(body: bytes) -> str:
        _file().write_bytes(body)
        try:
            found = read(_file())
        except refusals as error:
            return _refused(error)
        events = getattr(found, "events", found)
        canonical_ = json.dumps(events, allow_nan=False) if isinstance(events, list) else ""
        _require("mechanism" in canonical_ or not isinstance(events, list) or events == [], "none")
        return "accepted"

    return run


def _importer(read: Callable[[Path], Any]) -> Callable[[bytes], str]:
    return _of_file(read, BadFile, UntranslatableEvent)


def _spool(body: bytes) -> str:
    """A spool: what it says is contiguous steps, whatever was in it."""
    _file().write_bytes(body)
    try:
        found = write_ahead_file.read(_file())
    except write_ahead_file.SpoolError as error:
        return _refused(error)
    steps = sum(span.steps for span in found.spans)
    _require(found.next_step == found.header["first_step"] + steps, "steps are lost")
    return f"accepted {found.end}"


_QUERIES: Final = (
    parameters.GuaranteeQuery, parameters.RunGuaranteeQuery, parameters.HistoryQuery,
    parameters.CurveQuery, parameters.RunPageQuery, parameters.AppendQuery,
)  # fmt: skip


def _query(text: bytes) -> str:
    """The text after the question mark of a request, and every name in it."""
    params = dict(QueryParams(text.decode("latin-1")))
    said = []
    for query in _QUERIES:
        try:
            found = query.model_validate(params)
            if isinstance(found, parameters.PageQuery):
                said.append(str(found.after >= 0))
        except (ValidationError, InvalidRequestError) as error:
            said.append(_refused(error)[:24])
    for value in params.values():
        if valid_name(value):
            _require(quote(value, safe="") == value, "a name is not one in a path")
    return "; ".join(said)


_STEP: Final = {
    "first_step": 0, "steps": 10,
    "mechanism": {"kind": "gaussian", "noise_multiplier": 1.1},
    "sampling": {"kind": "poisson", "sampling_probability": 0.01},
}  # fmt: skip
_MECHANISMS: Final = (
    {"kind": "laplace", "noise_multiplier": 2.0},
    {"kind": "randomized_response", "probability_of_truth": 0.5, "categories": 4},
    {"kind": "approximate_dp", "epsilon": 0.1, "delta": 1e-9},
    {"kind": "zcdp", "rho": 0.01}, {"kind": "none"},
)  # fmt: skip
_SAMPLINGS: Final = (
    {"kind": "full"}, {"kind": "unknown"}, {"kind": "poisson", "expected_batch_size": 600.0},
    {"kind": "truncated_poisson", "sampling_probability": 0.01, "max_batch_size": 700},
    {"kind": "fixed_size", "batch_size": 600}, {"kind": "with_replacement", "batch_size": 600},
    {"kind": "cyclic", "batch_size": 600, "steps_per_pass": 100},
    {"kind": "shuffle", "batch_size": 600, "reshuffle": "each_pass", "steps_per_pass": 50},
    {"kind": "balls_and_bins", "steps_per_pass": 100},
    {"kind": "random_allocation", "steps_per_pass": 100, "participations": 3},
    {"kind": "non_uniform", "max_weight": 0.001},
)  # fmt: skip
_STEPS: Final = (
    _STEP,
    *({**_STEP, "first_step": 10, "mechanism": one} for one in _MECHANISMS),
    *({**_STEP, "first_step": 10, "sampling": one} for one in _SAMPLINGS),
)
_DOCUMENT: Final[dict[str, Any]] = {
    "format": "dpledger/1", "neighboring_relation": "add_or_remove_one", "dataset_size": SIZE,
    "events": [_STEP, {**_STEP, "first_step": 10, "sampling": {"kind": "full"}}],
    "branches": [{"name": "fork", "from_branch": "main", "from_step": 5,
                  "events": [{**_STEP, "first_step": 5}]}],
    "run": "run", "dataset": "data", "delta": 1e-5, "accept": ["published"],
    "plan": [{**_STEP, "first_step": None}], "state": "finished",
    "releases": [{"branch": "main", "step": 3}],
    "overdrafts": [{"branch": "main", "first_step": 3, "steps": 2}],
    "corrections": [{"branch": "main", "first_step": 2, "steps": 3, "reason": "so it was",
                     "mechanism": _STEP["mechanism"], "sampling": {"kind": "full"}}],
    "assumptions": {"loss_convexity": 0.0,
                    "learning_rate": [{"first_step": 0, "learning_rate": 0.1}]},
    "labels": {"a": "b"},
}  # fmt: skip
_TREE: Final = {
    "class_name": "ComposedDpEvent",
    "events": [
        {"class_name": "SelfComposedDpEvent", "count": 5,
         "event": {"class_name": "PoissonSampledDpEvent", "sampling_probability": 0.01,
                   "event": {"class_name": "GaussianDpEvent", "noise_multiplier": 1.1}}},
        {"class_name": "LaplaceDpEvent", "noise_multiplier": 2.0},
    ],
}  # fmt: skip
_PRINTED: Final = (
    b"ComposedDpEvent(events=[SelfComposedDpEvent(event=PoissonSampledDpEvent("
    b"sampling_probability=0.01, event=GaussianDpEvent(noise_multiplier=1.1)), count=5), "
    b"LaplaceDpEvent(noise_multiplier=np.float64(2.0))])"
)
_STATE: Final = {
    "schema_version": 1, "backend": "rdp", "orders": [2.0, 4.0],
    "config": {"target_delta": 1e-5, "population_size": 100,
               "neighboring_relation": "add-or-remove-one", "sampling_method": "poisson",
               "max_epsilon": None},
    "compositions": [{"event": {"noise_multiplier": 1.0, "sample_size": 10,
                                "population_size": 100}, "count": 5}],
}  # fmt: skip
_HEADER: Final = {
    "format": write_ahead_file.FORMAT, "run": {"name": "run", "writer": "writer-of-the-spool"},
    "branch": None, "first_step": 0,
}  # fmt: skip
_WHAT: Final = {"what": {name: _STEP[name] for name in ("mechanism", "sampling")}}


def _json(*values: Any) -> bytes:
    return b"\n".join(json.dumps(value).encode() for value in values)


_TABLE: Final = b"noise_multiplier,sample_rate,steps\n1.1,0.01,100\n0.9,0.02,50\n"
TARGETS: Final[dict[str, Target]] = {
    "events": Target(run=_body, seeds=(
        *(_json({"events": [one]}) for one in _STEPS),
        _json({"branch": "fork", "mode": "charge", "events": list(_STEPS)}))),
    "lines": Target(run=_lines, seeds=(
        *(_json(one) + b"\n" for one in _STEPS), _json(*_STEPS),
        _json(_STEP, {**_STEP, "first_step": 10}, {**_STEP, "first_step": 20}))),
    "ledger": Target(run=_ledger, seeds=(
        _json(_DOCUMENT), _json({**_DOCUMENT, "corrections": [], "branches": []}),
        *(_json({**_DOCUMENT, "corrections": [], "events": [{**one, "first_step": 0}]})
          for one in _STEPS))),
    "dp_event": Target(run=_importer(dp_event.read), seeds=(_json(_TREE), _PRINTED)),
    "csv": Target(run=_importer(csv.read), seeds=(_TABLE, _TABLE.replace(b"\n", b"\r\n"))),
    "flower": Target(run=_importer(flower.read), seeds=(_json(_STATE),)),
    "opacus": Target(run=_importer(opacus.read), seeds=(
        _json({"mechanism": "rdp", "history": [[1.1, 0.01, 100], [0.9, 0.02, 5]]}),
        b"PK\x03\x04archive/data.pkl", b"\x80\x02c__builtin__\neval\n")),
    "spool": Target(run=_spool, seeds=(
        _json(_HEADER, _WHAT, 0, 1, [2, 50], {"lease": "x"}, {"sent": 3},
              {"tell": ["sampling", {}]}, {"end": "finished"}, {"closed": True}) + b"\n",
        _json({**_HEADER, "branch": {"name": "b", "writer": "w" * 16, "from_step": 3},
               "first_step": 3}, _WHAT, 3, 3, 4) + b"\n")),
    "certificate": Target(run=fuzz_certificates.verify, made=fuzz_certificates.seeds),
    "query": Target(run=_query, seeds=(
        b"delta=1e-5&accountant=pld&branch=main", b"epsilon=3&as_of=17", b"points=100&delta=0.1",
        b"page_size=10&page_token=MTA=&dataset=data&state=active", b"branch=a.b-c_d&mode=charge",
        b"page_token=LTE%3D", b"page_token=%F0%9F%92%A9&delta=%31e-5")),
}  # fmt: skip
