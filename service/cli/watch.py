"""The command watch: a run as it trains, in the terminal."""

import contextlib
import json
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from typing import IO, Annotated, Any, Final

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from service.cli.service_client import (
    AwayError,
    Json,
    Refused,
    Service,
    UrlOption,
    exit_on_refusal,
    quote_name,
)
from service.formatting import all_digits, lower, upper
from service.schemas.run_states import CLOSED

PATIENCE_SECONDS: Final = 2.0  # between looks at a run that says nothing: its end is no entry
JOIN_SECONDS: Final = 5.0  # that a stream is waited for; without one, looks must do
LAST_SECONDS: Final = 1.0  # that a stream is listened to after the end
AGAIN_SECONDS: Final = 2.0  # before a stream that broke off is asked for again
INCIDENTS_SHOWN: Final = 5
Frame = tuple[str, Any]


@dataclass(slots=True)
class WatchedRun:
    """What is known of a run."""

    run: Json
    guarantee: Json | None = None
    reason: str = ""  # why there is none
    budget: Json | None = None
    whose: str = ""  # the budget is
    incidents: Sequence[Json] = ()


def watch(
    run: Annotated[str, typer.Argument(help="the run's name")],
    delta: Annotated[
        float | None, typer.Option(help="default: that of the run or its budget")
    ] = None,
    seconds: Annotated[float, typer.Option(help="least time between two readings")] = 2.0,
    url: UrlOption = None,
) -> None:
    """Follow a run until it is finished: steps, both ends of epsilon, and the budget left.

    Without a terminal, a line is printed for each change. The key comes from DPLEDGER_API_KEY.
    """
    service = Service(url)
    with exit_on_refusal(), contextlib.suppress(KeyboardInterrupt):
        changes = _changes(service, run, delta=delta, seconds=seconds)
        if sys.stdout.isatty():
            _draw(changes)
        else:
            _print(changes)


def _changes(
    service: Service, name: str, *, delta: float | None, seconds: float
) -> Iterator[WatchedRun]:
    """The run each time that something has changed; the last time it is closed."""
    frames: SimpleQueue[Frame] = SimpleQueue()
    path = f"/v1/runs/{quote_name(name)}"
    service.get(path)  # says what is wrong, if anything is
    follower = _Follower(service, path, frames)
    follower.start()
    # After the first frame the stream has every incident.
    early = _next(frames, 0.0, patience=JOIN_SECONDS)
    seen = _look(service, path, service.get(path), delta, early)
    yield seen
    while seen.run["state"] not in CLOSED:
        happened = _next(frames, seconds)
        present = service.get(path)
        if present == seen.run and not happened:
            continue
        seen = _look(service, path, present, delta, [*seen.incidents, *happened])
        yield seen
    time.sleep(LAST_SECONDS)  # what happened just before the end may still be on its way
    if late := _next(frames, 0.0, patience=0.0):
        yield replace(seen, incidents=[*seen.incidents, *late])
    follower.ending.set()


def _look(
    service: Service, path: str, run: Json, delta: float | None, incidents: Sequence[Json] = ()
) -> WatchedRun:
    """What a run has spent and what is left; every number is the service's."""
    seen = WatchedRun(run, incidents=incidents)
    try:
        seen.guarantee = service.get(f"{path}/guarantee", delta=delta)
    except Refused as refusal:
        seen.reason = str(refusal)
    seen.budget, seen.whose = run["budget"], "run"
    if seen.budget is None:
        seen.budget = service.get(f"/v1/datasets/{quote_name(run['dataset'])}")["budget"]
        seen.whose = "dataset"
    return seen


def _next(
    frames: "SimpleQueue[Frame]", seconds: float, *, patience: float | None = None
) -> list[Json]:
    """Wait for news, and a little longer for what comes with them; the incidents among them."""
    found: list[Frame] = []
    with contextlib.suppress(Empty):
        found.append(frames.get(timeout=PATIENCE_SECONDS if patience is None else patience))
        time.sleep(seconds)
        while True:
            found.append(frames.get_nowait())
    for kind, what in found:
        if kind == "refused":
            raise what
    return [what for kind, what in found if kind == "incident"]


class _Follower(threading.Thread):
    """Reads the stream, again and again; ends with the command."""

    def __init__(self, service: Service, path: str, frames: "SimpleQueue[Frame]") -> None:
        super().__init__(daemon=True)
        self._service = service
        self._path = f"{path}/stream"
        self._frames = frames
        self._last: str | None = None
        self.ending = threading.Event()

    def run(self) -> None:
        while not self.ending.is_set():
            try:
                headers = {} if self._last is None else {"Last-Event-ID": self._last}
                with self._service.open(self._path, headers) as body:
                    for kind, last, data in frames_of(body):
                        self._last = last or self._last
                        self._frames.put((kind, data))
                        if self.ending.is_set():
                            return
            except Refused as refusal:
                if refusal.status < 500 and refusal.status != 429:
                    self._frames.put(("refused", refusal))
                    return
            except (AwayError, OSError, ValueError):
                pass  # it is asked for again, from where it broke off
            time.sleep(AGAIN_SECONDS)


def frames_of(lines: IO[bytes]) -> Iterator[tuple[str, str | None, Json]]:
    """(event, id, data) of server-sent events; comments are passed over."""
    fields: dict[str, str] = {}
    for line in lines:
        text = line.decode("utf-8").rstrip("\r\n")
        if text:
            name, _, value = text.partition(":")
            fields[name] = value.removeprefix(" ")
            continue
        if "data" in fields:
            yield fields.get("event", "message"), fields.get("id"), json.loads(fields["data"])
        fields = {}


# ---- what is shown


def epsilon_text(seen: WatchedRun) -> str:
    """Both ends of the epsilon, the upper one first."""
    found = seen.guarantee
    if found is None:
        return f"no epsilon: {seen.reason}"
    if found["epsilon"] is None:
        return f"epsilon infinite: {found['reason']}"
    least = "" if found["epsilon_lower"] is None else f" (at least {lower(found['epsilon_lower'])})"
    return f"epsilon at most {upper(found['epsilon'])}{least} at delta {found['delta']!r}"


def budget_text(seen: WatchedRun) -> str:
    """What the budget that holds the run has charged, and what is left; the rest is reserved."""
    budget = seen.budget
    if budget is None:
        return "no budget"
    limit = all_digits(budget["epsilon"])
    if budget["overdrawn"]:
        return f"{seen.whose} budget of {limit} OVERDRAWN"
    charged = f"charged {upper(budget['spent'])} of the {seen.whose}'s {limit}"
    return f"{charged}, {lower(budget['remaining'])} left"


def line_of(seen: WatchedRun) -> str:
    """All of it on one line."""
    steps = f"{seen.run['steps']} steps"
    return "; ".join((steps, epsilon_text(seen), budget_text(seen), seen.run["state"]))


def _print(changes: Iterator[WatchedRun]) -> None:
    told = 0
    for seen in changes:
        for one in seen.incidents[told:]:
            typer.echo(f"incident: {one['kind']} at sequence {one['sequence']}")
        told = len(seen.incidents)
        typer.echo(line_of(seen))
        sys.stdout.flush()


def _draw(changes: Iterator[WatchedRun]) -> None:
    console = Console()
    with Live(console=console, auto_refresh=False) as live:
        for seen in changes:
            live.update(draw_run(seen), refresh=True)


def draw_run(seen: WatchedRun) -> Group:
    """A run as it stands, some lines high."""
    run, facts = seen.run, Table.grid(padding=(0, 2))
    facts.add_row(Text("run", "dim"), Text(run["name"], "bold"))
    facts.add_row(Text("dataset", "dim"), Text(run["dataset"]))
    state = "green" if run["state"] == "active" else "yellow"
    facts.add_row(Text("state", "dim"), Text(run["state"], state))
    facts.add_row(Text("steps", "dim"), Text(f"{run['steps']:,}"))
    facts.add_row(Text("spent", "dim"), Text(epsilon_text(seen), "bold"))
    facts.add_row(Text("budget", "dim"), Text(budget_text(seen)))
    parts: list[Any] = [facts]
    if seen.budget is not None:
        spent = seen.budget["spent"]
        done = 1.0 if spent is None else min(1.0, spent / seen.budget["epsilon"])
        parts.append(ProgressBar(total=1.0, completed=done, width=40))
    if run["sampling_status"] == "contradicted":
        parts.append(Text("The code samples in another way than declared.", "red"))
    parts += [
        Text(f"{one['kind']} at sequence {one['sequence']}", "red")
        for one in seen.incidents[-INCIDENTS_SHOWN:]
    ]
    return Group(*parts)
