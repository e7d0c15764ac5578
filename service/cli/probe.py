"""Whether the service of this machine or container is ready: the health check of the image."""

import sys
from typing import Annotated, Final
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, build_opener

import typer

_SECONDS: Final = 4.0  # less than a health check waits
_PATH: Final = "/readyz"
# Without proxies: one named in the environment could not reach this machine's own address.
_OPENER: Final = build_opener(ProxyHandler({}))


def probe(
    port: Annotated[int, typer.Option(envvar="DPLEDGER_PORT", help="port of the service")] = 8000,
) -> None:
    """Ask /readyz of the service on this machine; exit with 1 unless it is ready."""
    try:
        _OPENER.open(f"http://127.0.0.1:{port}{_PATH}", timeout=_SECONDS).close()
    except HTTPError as error:
        typer.echo(error.read().decode("utf-8", "replace").rstrip(), err=True)
        sys.exit(1)
    except (URLError, OSError) as error:
        typer.echo(f"The service does not answer at port {port}: {error}", err=True)
        sys.exit(1)
    typer.echo("ready")
