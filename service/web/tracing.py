"""Whether requests are traced, by the standard variables of OpenTelemetry; its packages are extra.

Nothing of OpenTelemetry is imported here, so that a service without it starts as fast as before.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Protocol

from sqlalchemy import Engine
from starlette.types import ASGIApp

from service.errors import StartupError

SIGNALS: Final = ("TRACES", "METRICS")
PROTOCOL: Final = "http/protobuf"
_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
_EXTRA: Final = (
    f"{_ENDPOINT} is set and the packages of OpenTelemetry are not installed: "
    "pip install 'dpledger[telemetry]', or set OTEL_SDK_DISABLED=true."
)


class Tracing(Protocol):
    """What the application calls to be traced."""

    def around(self, app: ASGIApp) -> ASGIApp:
        """The application, each of whose requests is a span."""

    def committing(self, spans: Sequence[Any], /) -> AbstractContextManager[object]:
        """A span for a transaction of the writer, which ends the work of these requests' spans."""

    def stop(self) -> None:
        """Send what was not sent yet."""


class Untraced:
    """Nothing is traced, and nothing is done for it."""

    committing = nullcontext  # around a transaction there is nothing

    def around(self, app: ASGIApp) -> ASGIApp:
        """The application itself."""
        return app

    def stop(self) -> None:
        """Nothing is left to send."""


UNTRACED: Final = Untraced()


def signals_of(environment: Mapping[str, str]) -> frozenset[str]:
    """Which of SIGNALS the environment asks to be sent.

    A signal is sent where an OTLP endpoint is named for it or for all, unless its exporter is
    `none` or OTEL_SDK_DISABLED is `true`.

    Raises:
        StartupError: another exporter or protocol is asked for than OTLP over HTTP.
    """
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return frozenset()
    return frozenset(one for one in SIGNALS if _is_sent(environment, one))


def _is_sent(environment: Mapping[str, str], signal: str) -> bool:
    def said(own: str, common: str = "") -> str:
        return environment.get(own, "").strip() or environment.get(common, "").strip()

    exporter = said(f"OTEL_{signal}_EXPORTER") or "otlp"
    endpoint = said(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT", _ENDPOINT)
    if not endpoint or exporter == "none":
        return False
    if exporter != "otlp":
        raise StartupError(f"OTEL_{signal}_EXPORTER: otlp or none.")
    protocol = said(f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    if protocol not in ("", PROTOCOL):
        raise StartupError(
            f"OTEL_EXPORTER_OTLP_PROTOCOL: {PROTOCOL} alone, at the collector's port 4318."
        )
    return True


def tracing_of(environment: Mapping[str, str], engine: Engine) -> Tracing:
    """What traces a service on a database, where the environment asks for it.

    Raises:
        StartupError: it does, and its packages are not installed, or it asks for what they cannot.
    """
    signals = signals_of(environment)
    if not signals:
        return UNTRACED
    try:
        from service.web.open_telemetry import OpenTelemetry  # which takes a while to load
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("opentelemetry"):
            raise
        raise StartupError(_EXTRA) from None
    return OpenTelemetry(engine, signals)
