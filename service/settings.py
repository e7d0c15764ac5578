"""Settings from the environment, read once by the command line."""

import ipaddress
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict
from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from service.errors import StartupError

ADDRESS_FORMS: Final = (
    "DPLEDGER_DATABASE_URL or --database: sqlite:///FILE or postgresql://USER@HOST/NAME."
)
SIGNING_KEY_SUFFIX: Final = ".signing_key"  # of the file beside a SQLite ledger
START_TOKEN_SUFFIX: Final = ".token"  # noqa: S105 (of a file beside it, too)
Fraction = Annotated[float, Field(gt=0, le=1)]


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, by its name alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def address_of(url: str) -> URL:
    """A database's URL in its parts.

    Raises:
        StartupError: it is none; nothing of it is repeated, for it may hold a password.
    """
    try:
        return make_url(url)
    except (ArgumentError, ValueError):  # of the latter a port that is no number
        raise StartupError(ADDRESS_FORMS) from None


ProcessRole = Literal["all", "reader", "writer"]


class Settings(BaseSettings):
    """What an operator decides. Variables carry the prefix DPLEDGER_."""

    model_config = SettingsConfigDict(env_prefix="DPLEDGER_", frozen=True, extra="ignore")

    # Whether the process answers everything, or only what reads or what writes.
    role: ProcessRole = "all"
    # Processes that share the address; more than one on PostgreSQL alone.
    workers: int = Field(default=1, ge=1, le=64)
    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    database_url: str = "sqlite:///dpledger.db"
    # Holds the password for database_url, so that neither an environment nor a command line does.
    database_password_file: Path | None = None
    # Holds the first admin key; read only while the service has no key.
    admin_key_file: Path | None = None
    # Holds the key that signs checkpoints and certificates; beside a SQLite file by default.
    signing_key_file: Path | None = None
    # Holds the start token, which signs in on a loopback address until the first key is created;
    # made where there is none. Beside a SQLite file by default, else `dpledger.token`.
    start_token_file: Path | None = None
    # Names identity providers and what is granted to their groups and subjects (TOML).
    identity_file: Path | None = None
    body_bytes_max: int = Field(default=4 * 1024 * 1024, ge=1024, le=64 * 1024 * 1024)
    # Of keys that have no limits of their own; in each process.
    requests_per_second: float | None = Field(default=None, ge=0.001, le=1e6)
    # Of a viewer's key without a limit of its own, if requests_per_second is not set: reading must
    # not delay others.
    viewer_requests_per_second: float = Field(default=20.0, ge=0.001, le=1e6)
    # Requests without a key that are taken in each process; others wait for their turn.
    keyless_requests_per_second: float = Field(default=50.0, ge=1.0, le=1e6)
    key_body_bytes_max: int | None = Field(default=None, ge=1024)
    # That a viewer's key may have told in the logs, in each process; who may write may write these.
    certificates_per_hour: float = Field(default=12.0, ge=0.1, le=1e6)
    # How long the head of a request may take to arrive, and then its body; and how many connections
    # there may be, of this process: one more is told to come again.
    header_seconds: float = Field(default=10.0, ge=0.1, le=300.0)
    body_seconds: float = Field(default=30.0, ge=0.1, le=600.0)
    # How long a client may take nothing of its answer.
    write_seconds: float = Field(default=30.0, ge=0.1, le=600.0)
    connections_max: int = Field(default=800, ge=1, le=100_000)
    busy_timeout_seconds: float = Field(default=10.0, ge=0.1, le=60.0)
    # How long to keep answering during shutdown, until balancers send requests elsewhere.
    drain_seconds: float = Field(default=0.0, ge=0.0, le=300.0)
    shutdown_seconds: int = Field(default=20, ge=1, le=600)
    # Shares of capacity; what is charged raises an incident as it passes one of them.
    budget_thresholds: Annotated[tuple[Fraction, ...], NoDecode] = (0.5, 0.8, 0.95)
    # Where incidents are sent, which kinds of them (all, if none is named), and the file of the
    # secret that signs them.
    webhooks: Annotated[tuple[str, ...], NoDecode] = ()
    webhook_kinds: Annotated[tuple[str, ...], NoDecode] = ()
    webhook_secret_file: Path | None = None

    # Changes that wait for the approval of another person.
    approvals: Annotated[
        tuple[Literal["limits", "envelopes", "voids", "corrections"], ...], NoDecode
    ] = ()
    # A file on another disk that follows the logs, and how often it is brought up to date.
    witness_file: Path | None = None
    witness_seconds: float = Field(default=60.0, ge=0.1, le=86_400.0)

    @field_validator(
        "database_password_file", "admin_key_file", "signing_key_file", "start_token_file",
        "webhook_secret_file", "witness_file", "identity_file", mode="before",
    )  # fmt: skip
    @classmethod
    def _unset(cls, value: object) -> object:
        """A variable without a value names no file; as a path it would be the present folder."""
        return None if value == "" else value

    @field_validator("budget_thresholds", "webhooks", "webhook_kinds", "approvals", mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        """A variable of the environment names several things, with commas or spaces between."""
        return tuple(value.replace(",", " ").split()) if isinstance(value, str) else value

    @field_validator("budget_thresholds")
    @classmethod
    def _in_order(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(sorted(set(value)))

    @property
    def database_address(self) -> str:
        """The database's URL, with the password from its file if there is one.

        Raises:
            StartupError: the URL is none, or the file cannot be read.
        """
        if self.database_password_file is None:
            return self.database_url
        # Line ends alone are dropped, as by the PostgreSQL image, which reads the same file.
        try:
            password = self.database_password_file.read_text(encoding="utf-8").rstrip("\n")
        except OSError as error:
            raise StartupError(f"DPLEDGER_DATABASE_PASSWORD_FILE: {error}") from None
        except UnicodeDecodeError:  # its words have a part of what the file holds
            raise StartupError("DPLEDGER_DATABASE_PASSWORD_FILE: the file is not UTF-8.") from None
        address = address_of(self.database_url).set(password=password)
        return address.render_as_string(hide_password=False)

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the service."""
        return is_loopback(self.host)

    @property
    def start_token_path(self) -> Path:
        """Where the start token is, or would be made."""
        if self.start_token_file is not None:
            return self.start_token_file
        address = address_of(self.database_url)
        if address.get_backend_name() != "sqlite" or not address.database:
            return Path("dpledger" + START_TOKEN_SUFFIX)
        return Path(address.database + START_TOKEN_SUFFIX)

    @property
    def signing_key_path(self) -> Path | None:
        """Where the signing key is; None without a setting and without a SQLite file."""
        address = address_of(self.database_url)
        if self.signing_key_file is not None or not address.database:
            return self.signing_key_file
        if address.get_backend_name() != "sqlite":
            return None
        return Path(address.database + SIGNING_KEY_SUFFIX)
