"""The commands requests list, show, ask, approve, reject and withdraw."""

import json
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from service.cli.options import build_failure
from service.cli.service_client import Service, UrlOption, exit_on_refusal, quote_name

requests = typer.Typer(
    help="Change requests: ask for another limit, and decide what others ask for.",
    no_args_is_help=True,
    add_completion=False,
)
_COLUMNS: Final = (
    "id", "state", "kind", "dataset", "target", "person", "reason", "requested_at", "decided_by",
)  # fmt: skip
ReasonOption = Annotated[str, typer.Option("--reason", help="why; stored permanently")]
IdArgument = Annotated[str, typer.Argument(help="identifier of the request", metavar="ID")]


@requests.command("list")
def list_requests(
    state: Annotated[
        str | None,
        typer.Option(help="only pending, approved, rejected, withdrawn, expired or stale ones"),
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="only requests about this dataset")] = None,
    by: Annotated[str | None, typer.Option(help="only requests of this person")] = None,
    url: UrlOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="every request as JSON")] = False,
) -> None:
    """List change requests, the oldest first. The key comes from DPLEDGER_API_KEY."""
    with exit_on_refusal():
        asked = {"state": state, "dataset": dataset, "by": by}
        found = list(Service(url).pages("/v1/requests", "requests", **asked))
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    typer.echo("\t".join(_COLUMNS))
    for one in found:
        typer.echo("\t".join(_cells(one)))


def _cells(one: dict[str, Any]) -> tuple[str, ...]:
    decided = (one["decision"] or {}).get("person")
    return tuple(str((one | {"decided_by": decided})[name] or "") for name in _COLUMNS)


@requests.command("show")
def show_request(request_id: IdArgument, url: UrlOption = None) -> None:
    """Print a request as JSON: what would change, who asked, why, and what was decided."""
    with exit_on_refusal():
        found = Service(url).get(f"/v1/requests/{quote_name(request_id)}")
    typer.echo(json.dumps(found, indent=2))


@requests.command("ask")
def ask(
    dataset: Annotated[str, typer.Argument(help="the dataset's name")],
    epsilon: Annotated[float, typer.Option(help="the limit on epsilon, in nats")],
    reason: ReasonOption,
    delta: Annotated[
        float | None, typer.Option(help="default: that of the present limit, or 1e-5")
    ] = None,
    envelope: Annotated[
        Path | None,
        typer.Option(help="a JSON file with the items of an envelope that replaces the filter"),
    ] = None,
    url: UrlOption = None,
) -> None:
    """Ask for another limit or envelope of a dataset, and print the identifier of the request."""
    service = Service(url)
    with exit_on_refusal():
        budget: dict[str, Any] = {"epsilon": epsilon}
        if envelope is not None:
            budget |= {"filter": "envelope", "envelope": _items(envelope)}
        if delta is None:
            present = service.get(f"/v1/datasets/{quote_name(dataset)}")["budget"]
            delta = present["delta"] if present else 1e-5
        body = {"reason": reason, "budget": budget | {"delta": delta}}
        found = service.post(f"/v1/datasets/{quote_name(dataset)}/requests", body)
    typer.echo(found["id"])


def _items(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise build_failure(
            f"--envelope: {file} cannot be read: {' '.join(str(error).split())}"
        ) from None


@requests.command("approve")
def approve(request_id: IdArgument, reason: ReasonOption, url: UrlOption = None) -> None:
    """Approve what another person asked for, and make the change."""
    _decide(request_id, "approve", reason, url)


@requests.command("reject")
def reject(request_id: IdArgument, reason: ReasonOption, url: UrlOption = None) -> None:
    """Reject what another person asked for."""
    _decide(request_id, "reject", reason, url)


@requests.command("withdraw")
def withdraw(request_id: IdArgument, reason: ReasonOption, url: UrlOption = None) -> None:
    """Withdraw what you asked for."""
    _decide(request_id, "withdraw", reason, url)


def _decide(request_id: str, verb: str, reason: str, url: str | None) -> None:
    with exit_on_refusal():
        found = Service(url).post(
            f"/v1/requests/{quote_name(request_id)}:{verb}", {"reason": reason}
        )
    typer.echo(found["state"])
