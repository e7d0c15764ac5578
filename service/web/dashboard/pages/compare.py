"""Runs side by side: what each did, what is proved of it, and where they differ."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response
from sqlalchemy import Connection, Row, select

from service.errors import InvalidRequestError, NotFoundError, TooExpensiveError
from service.formatting import accountant_words, count, many, plain, schedule_words, up, words
from service.guarantees.event_counts import run_counts
from service.guarantees.guarantee import Question, run_guarantee
from service.guarantees.history import History
from service.guarantees.known_histories import KnownHistories
from service.guarantees.noise_schedule import event_fields
from service.guarantees.recorded_facts import run_facts
from service.identity.access import runs_within
from service.identity.authentication import Caller
from service.ledger import lookups, views
from service.ledger.budgets.budget import delta_of
from service.schemas.message import Delta
from service.schemas.requests import valid_name
from service.schemas.responses import RunAnswer, RunGuarantee
from service.storage.engine import snapshot
from service.storage.tables import runs
from service.web.dashboard.line_chart import ChartLine, draw_lines
from service.web.dashboard.rendering import PageRoute, render
from service.web.dashboard.response_cache import answers_of, dataset_version
from service.web.dashboard.viewer import PageViewer
from service.web.parameters import Database
from service.web.strict_requests import expensive

router = APIRouter(route_class=PageRoute, include_in_schema=False)

COMPARED_RUNS_MAX: Final = 6  # beside one another; each takes some ten milliseconds
_EVENTS_MAX: Final = 4  # of a run that are told
COMPARED_POINTS: Final = 24  # of each curve
LISTED: Final = 12  # runs that are offered where none were chosen
_DELTA: Final = 1e-5  # where no run and no dataset has one

_Delta = Annotated[Delta | None, Query()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A run beside others."""

    run: RunAnswer
    guarantee: RunGuarantee | None
    reason: str  # why there is none
    settings: list[tuple[dict[str, str], int]]  # its events and their steps, the most first
    corrected: bool  # whether these are as corrected
    overdrafts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRun:
    """One thing of every run."""

    name: str
    values: tuple[str, ...]
    shared: str = ""  # what is the same in all runs

    @property
    def differs(self) -> bool:
        """Whether the runs are not alike in it."""
        return len(set(self.values)) > 1


@router.get("/compare")
@expensive
def compare(
    request: Request,
    database: Database,
    viewer: PageViewer,
    asked: Annotated[list[str], Query(alias="runs", max_length=50)] = [],  # noqa: B006
    delta: _Delta = None,
) -> Response:
    """Some runs side by side, at one delta."""
    names = [name for text in asked for name in text.split(",") if name]
    names = list(dict.fromkeys(names))
    with snapshot(database) as connection:
        rows = [_row(connection, viewer, name) for name in names[:COMPARED_RUNS_MAX]]
        at = delta if delta is not None else _common_delta(connection, rows)
        found = [_read_run(connection, row, at) for row in rows]
        offered = [] if names else _list_offered(connection, viewer)
    lines = [_noise_line(found)] if found else []
    lines += [ComparedRun(name=name, values=tuple(map(told, found))) for name, told in _LINES]
    chosen = [one.run.name for one in found]
    given: dict[str, Any] = {
        "compared": found,
        "lines": [line for line in lines if line.differs or len(found) == 1 or line.shared],
        "alike": [line for line in lines[1:] if not line.differs and len(found) > 1],
        "delta": at,
        "names": chosen,
        "address": urlencode({"runs": chosen, "delta": at}, doseq=True),
        "others": {name: _others(chosen, name, delta) for name in chosen},
        "unamplified": [_unamplified_text(one) for one in found],
        "differs": {
            "epsilon": len({_upper(one) for one in found}) > 1,
            "unamplified": len({_unamplified_text(one) for one in found}) > 1,
        },
        "left_out": max(0, len(names) - COMPARED_RUNS_MAX),
        "offered": offered,
    }
    return render(request, "compare.html", viewer=viewer, **given)


def _others(chosen: Sequence[str], name: str, delta: float | None) -> str:
    """The address of the comparison without a run."""
    rest = [one for one in chosen if one != name]
    return urlencode({"runs": rest} | ({} if delta is None else {"delta": delta}), doseq=True)


def _upper(one: Compared) -> str:
    return one.reason if one.guarantee is None else up(one.guarantee.epsilon)


def _unamplified_text(one: Compared) -> str:
    """What the steps would cost in full batches; nothing beside an epsilon without a bound."""
    found = one.guarantee
    if found is None or found.epsilon is None or found.unamplified_epsilon is None:
        return "—"
    return up(found.unamplified_epsilon)


@router.get("/compare/curves")
@expensive
def curves(
    request: Request,
    database: Database,
    viewer: PageViewer,
    asked: Annotated[list[str], Query(alias="runs", max_length=50)],
    delta: Annotated[Delta, Query()],
) -> Response:
    """Epsilon by step of some runs, each alone: a part of the page."""
    names = list(dict.fromkeys(asked))[:COMPARED_RUNS_MAX]
    with snapshot(database) as connection:
        rows = [_row(connection, viewer, name) for name in names]
        told = [_history(request, connection, row, delta) for row in rows]
    lines = [
        ChartLine(label=row.name, address=f"/runs/{row.name}", points=_points(one))
        for row, one in zip(rows, told, strict=True)
    ]
    return render(
        request,
        "compare_curves.html",
        viewer=viewer,
        delta=delta,
        chart=draw_lines(lines, stairs=True, word_x=_steps_word, word_y=plain),
        endless=[
            row.name
            for row, one in zip(rows, told, strict=True)
            if any(point.epsilon is None for point in one.points)
        ],
        up=up,
    )


def _history(request: Request, connection: Connection, row: Row[Any], delta: float) -> History:
    """Epsilon by step at a delta, as it was told last if nothing was recorded since."""
    dataset = lookups.dataset_of(connection, row)
    known: KnownHistories = request.app.state.histories
    key = ("compared", row.id, row.created_at, delta)
    found: History = answers_of(request).compute(
        key,
        dataset_version(dataset),
        lambda: known.history(connection, row.name, delta=delta, points=COMPARED_POINTS),
    )
    return found


def _points(told: History) -> list[tuple[float, float]]:
    bounded = any(one.epsilon is not None for one in told.points)
    found = [(0.0, 0.0)] if bounded else []
    return found + [
        (float(one.steps), math.inf if one.epsilon is None else one.epsilon) for one in told.points
    ]


def _steps_word(steps: float) -> str:
    return many(round(steps), "step")


def _row(connection: Connection, viewer: Caller, name: str) -> Row[Any]:
    """A run's row.

    Raises:
        NotFoundError: there is none, or none that the key reaches.
    """
    named = runs_within(viewer.datasets), runs.c.name == name
    found = connection.execute(select(runs).where(*named)).first() if valid_name(name) else None
    if found is None:
        raise NotFoundError("There is no such run.")
    return found


def _common_delta(connection: Connection, rows: Sequence[Row[Any]]) -> float:
    """The least delta of all runs: what holds there holds at the others' too."""
    found = [delta_of(lookups.dataset_of(connection, row), row) for row in rows]
    return min((delta for delta in found if delta is not None), default=_DELTA)


def _list_offered(connection: Connection, viewer: Caller) -> list[str]:
    latest = select(runs.c.name).where(runs_within(viewer.datasets)).order_by(runs.c.id.desc())
    return list(connection.scalars(latest.limit(LISTED)))


def _read_run(connection: Connection, row: Row[Any], delta: float) -> Compared:
    guarantee, reason = None, ""
    dataset = lookups.dataset_of(connection, row)
    counts, corrected = run_counts(connection, row.id, dataset.dataset_size), False
    try:
        facts = run_facts(connection, row, dataset)
        counts, corrected = facts.accounts[-1], facts.corrected is not None
        guarantee = run_guarantee(connection, row.name, Question(delta=delta))
    except (InvalidRequestError, TooExpensiveError) as error:
        reason = error.detail
    by_steps = sorted(counts.steps.items(), key=lambda one: -one[1])
    return Compared(
        run=views.run_answer(connection, row),
        guarantee=guarantee,
        reason=reason,
        settings=[(event_fields(event), steps) for event, steps in by_steps],
        corrected=corrected,
    )


def _headline(pick: Callable[[RunGuarantee], Any]) -> Callable[[Compared], str]:
    """A line that tells something of the guarantee."""

    def told(one: Compared) -> str:
        value = None if one.guarantee is None else pick(one.guarantee)
        return "—" if value in (None, "", []) else str(value)

    return told


def _outside(one: Compared) -> str:
    found = [f"{told.kind} {told.verdict} on {told.branch}" for told in one.run.outside_guarantee]
    return "; ".join(found).replace("_", " ") or "nothing"


def _noise_line(found: Sequence[Compared]) -> ComparedRun:
    """Noise and sampling: what all events of all runs share is said once, and the rest in cells."""
    every = [fields for one in found for fields, _ in one.settings]
    names = list(every[0]) if every else []
    if any(list(fields) != names for fields in every):  # of other kinds: nothing is taken out
        values = tuple(_cell(one, None) for one in found)
        return ComparedRun(name="Noise and sampling", values=values)
    differ = [name for name in names if len({fields[name] for fields in every}) > 1]
    shared = [_name_value(name, every[0][name]) for name in names if name not in differ]
    return ComparedRun(
        name=", ".join(differ).capitalize() or "Noise and sampling",
        values=tuple(_cell(one, differ) for one in found),
        shared=", ".join(shared),
    )


def _name_value(name: str, value: str) -> str:
    """A kind tells what it is; a number does not."""
    return value if name in _KINDS else f"{name} {value}"


def _cell(one: Compared, names: Sequence[str] | None) -> str:
    """A run's events, a line each: the values of some fields, or every field with its name."""
    lines = []
    for fields, steps in one.settings[:_EVENTS_MAX]:
        told = [_name_value(*field) for field in fields.items()]
        if names is not None:
            told = [fields[name] for name in names]
        lines.append(" · ".join([*([", ".join(told)] if told else []), many(steps, "step")]))
    more = len(one.settings) - len(lines)
    beyond = [f"and {more} more"] if more else []
    return "\n".join([*lines, *beyond, *(["as corrected"] if one.corrected else [])]) or "—"


_KINDS: Final = ("mechanism", "sampling")
_LINES: Final[tuple[tuple[str, Callable[[Compared], str]], ...]] = (
    ("Steps", lambda one: count(one.run.steps)),
    ("Branches", lambda one: count(len(one.run.branches))),
    ("Shown", lambda one: words(one.run.release)),
    ("Neighbours", _headline(lambda found: found.neighboring_relation.replace("_", " "))),
    ("Accountant", _headline(lambda found: accountant_words(found.accountant))),
    ("Bound", _headline(lambda found: found.bound)),
    ("Theorems", _headline(lambda found: "\n".join(found.theorems))),
    ("Status", _headline(lambda found: found.status)),
    ("Assumptions", _headline(lambda found: ", ".join(found.assumptions).replace("_", " "))),
    ("Holds for", _headline(lambda found: schedule_words(found.valid_for))),
    ("Sampling", lambda one: one.run.sampling_status),
    ("Outside the guarantee", _outside),
    ("Corrections", _headline(lambda found: count(found.corrections))),
    ("Known defects", lambda one: ", ".join(told.id for told in one.run.advisories) or "none"),
    ("Dataset", lambda one: one.run.dataset),
    ("State", lambda one: one.run.state),
)
