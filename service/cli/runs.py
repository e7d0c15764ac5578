"""The commands runs and report: what a service says of runs, as a table or as a statement."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Column, Table

from service.cli.options import build_failure
from service.cli.service_client import Service, UrlOption, exit_on_refusal, quote_name
from service.formatting import NO_BOUND, charged_share, lower, upper
from service.schemas.run_states import STATES

_COLUMNS: Final = (
    "run", "dataset", "state", "steps", "sampling", "at_least", "certified", "charged", "by",
    "created",
)  # fmt: skip
_MISSING: Final = "-"  # in a cell


def runs(
    dataset: Annotated[str | None, typer.Option(help="only runs on this dataset")] = None,
    state: Annotated[
        str | None, typer.Option(help=f"only runs in this state: {', '.join(STATES)}")
    ] = None,
    by: Annotated[str | None, typer.Option(help="only runs that this API key registered")] = None,
    url: UrlOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="every run as JSON")] = False,
) -> None:
    """List the runs of a service, the oldest first.

    "certified" is the proved epsilon of each run alone, and "at_least" its lower end; both hold if
    no step depended on earlier answers. "charged" is the share of the run's own budget that its
    steps have used; "-" is a run without a budget of its own: `dpledger watch RUN` says what its
    dataset was charged. The key comes from DPLEDGER_API_KEY.
    """
    with exit_on_refusal():
        found = _with_certified(Service(url), dataset=dataset, state=state, by=by)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    elif sys.stdout.isatty():
        _table(found)
    else:  # without a terminal, a table would cut long names
        typer.echo("\t".join(_COLUMNS))
        for run in found:
            typer.echo("\t".join(_cells(run)))


def _with_certified(service: Service, **asked: str | None) -> list[dict[str, Any]]:
    """Return the runs, each with its certified epsilon; a run without a delta has none."""
    found: dict[str, dict[str, Any]] = {}
    before, known = -1, 0
    while before < known and known < max(1, len(found)):  # each request gets further
        for page in service.whole_pages("/v1/runs", certified="true", **asked):
            for run in page["runs"]:
                found[run["name"]] = run | {"certified": page["certified"].get(run["name"])}
        before, known = known, sum(run["certified"] is not None for run in found.values())
    return list(found.values())


def _cells(run: dict[str, Any]) -> tuple[str, ...]:
    certified, budget = run["certified"], run["budget"]
    at_least = at_most = charged = _MISSING
    if certified is not None:
        lower_end, upper_end = certified["epsilon_lower"], certified["epsilon"]
        at_least = _MISSING if lower_end is None else lower(lower_end)
        at_most = NO_BOUND if upper_end is None else upper(upper_end)
    if budget is not None:
        charged = charged_share(budget["share"])
    return (
        run["name"], run["dataset"], run["state"], str(run["steps"]), run["sampling_status"],
        at_least, at_most, charged, run["by"] or _MISSING, run["created_at"],
    )  # fmt: skip


def _table(found: list[dict[str, Any]]) -> None:
    right = ("steps", "at_least", "certified", "charged")
    columns = (
        Column(name, justify="right" if name in right else "left", overflow="fold")
        for name in _COLUMNS
    )
    table = Table(*columns, box=None)
    for run in found:
        style = "red" if "contradicted" in run["sampling_status"] else None
        name, *others, created = _cells(run)
        table.add_row(name, *others, created[:16].replace("T", " "), style=style)
    Console().print(table, markup=False) if found else typer.echo("There are no runs.")


def report(
    run: Annotated[str | None, typer.Argument(help="the run's name")] = None,
    dataset: Annotated[
        str | None, typer.Option(help="instead of a run: all runs of this dataset together")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="a file to write; without it, standard output")
    ] = None,
    delta: Annotated[
        list[float] | None, typer.Option(help="an additional delta to state; may be repeated")
    ] = None,
    url: UrlOption = None,
) -> None:
    """Write the privacy statement of a run or a dataset, as one printable HTML file.

    The key comes from DPLEDGER_API_KEY.
    """
    if (run is None) == (dataset is None):
        raise build_failure("Name a run, or a dataset with --dataset.")
    if not all(0 < one < 1 for one in delta or ()):
        raise build_failure("--delta: must lie in (0, 1)")
    path = (
        f"/runs/{quote_name(run)}" if run is not None else f"/datasets/{quote_name(dataset or '')}"
    )
    service = Service(url)
    with exit_on_refusal():
        service.get(f"/v1{path}")  # says what is wrong in words, not as a page
        page = service.text(f"{path}/report", format="file", delta=delta or None)
    if out is None:
        typer.echo(page, nl=False)
        return
    try:
        out.write_text(page, encoding="utf-8")
    except OSError as error:
        raise build_failure(f"{out}: {error.strerror}") from None
    typer.echo(str(out))
