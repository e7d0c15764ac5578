"""The commands incidents list, comment, assign, acknowledge and reopen."""

import json
from typing import Annotated, Any, Final

import typer

from service.cli.service_client import Service, UrlOption, exit_on_refusal, quote_name

incidents = typer.Typer(
    help="Incidents: list them, and say what was done about them.",
    no_args_is_help=True,
    add_completion=False,
)
_COLUMNS: Final = ("id", "state", "kind", "dataset", "run", "assignee", "occurred_at")
IncidentArgument = Annotated[
    str, typer.Argument(help="identifier of the incident", metavar="INCIDENT")
]
TextOption = Annotated[str | None, typer.Option("--text", help="stored permanently")]


@incidents.command("list")
def list_incidents(
    state: Annotated[str | None, typer.Option(help="only open or acknowledged ones")] = None,
    kind: Annotated[str | None, typer.Option(help="only of this kind, such as overdraft")] = None,
    dataset: Annotated[str | None, typer.Option(help="only of this dataset")] = None,
    assignee: Annotated[str | None, typer.Option(help="only assigned to this key")] = None,
    url: UrlOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="every incident as JSON")] = False,
) -> None:
    """List incidents, the newest first. The key comes from DPLEDGER_API_KEY."""
    asked = {"state": state, "kind": kind, "dataset": dataset, "assignee": assignee}
    with exit_on_refusal():
        found = list(Service(url).pages("/v1/incidents", "incidents", **asked))
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    typer.echo("\t".join(_COLUMNS))
    for one in found:
        typer.echo("\t".join(str(one[name] or "") for name in _COLUMNS))


@incidents.command("comment")
def comment(
    incident: IncidentArgument,
    text: Annotated[str, typer.Option("--text", help="stored permanently")],
    url: UrlOption = None,
) -> None:
    """Comment on an incident."""
    _note(incident, url, action="comment", text=text)


@incidents.command("assign")
def assign(
    incident: IncidentArgument,
    to: Annotated[str | None, typer.Option(help="name of a key; without it, no key")] = None,
    text: TextOption = None,
    url: UrlOption = None,
) -> None:
    """Assign an incident to a key; an admin may."""
    _note(incident, url, action="assign", assignee=to, text=text)


@incidents.command("acknowledge")
def acknowledge(incident: IncidentArgument, text: TextOption = None, url: UrlOption = None) -> None:
    """Say that nothing is left to do; an owner, an approver or an admin may."""
    _note(incident, url, action="acknowledge", text=text)


@incidents.command("reopen")
def reopen(incident: IncidentArgument, text: TextOption = None, url: UrlOption = None) -> None:
    """Open an acknowledged incident again."""
    _note(incident, url, action="reopen", text=text)


def _note(incident: str, url: str | None, **note: Any) -> None:
    body = {name: value for name, value in note.items() if value is not None}
    with exit_on_refusal():
        found = Service(url).post(f"/v1/incidents/{quote_name(incident)}/notes", body)
    typer.echo(found["state"])
