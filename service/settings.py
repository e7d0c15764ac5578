"""Settings from the environment, read once by the command line."""

import ipaddress
from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict
from sqlalchemy import make_url

Fraction = Annotated[float, Field(gt=0, le=1)]


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, by its name alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Settings(BaseSettings):
    """What an operator decides. Variables carry the prefix DPLEDGER_."""

    model_config = SettingsConfigDict(env_prefix="DPLEDGER_", frozen=True, extra="ignore")

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    database_url: str = "sqlite:///dpledger.db"
    # Holds the password for database_url, so that neither an environment nor a command line does.
    database_password_file: Path | None = None
    # Holds the first admin key; read only while the service has no key.
    admin_key_file: Path | None = None
    body_bytes_max: int = Field(default=4 * 1024 * 1024, ge=1024, le=64 * 1024 * 1024)
    busy_timeout_seconds: float = Field(default=10.0, ge=0.1, le=60.0)
    shutdown_seconds: int = Field(default=20, ge=1, le=600)
    # Fractions of a limit; what is spent raises an incident as it passes one of them.
    budget_thresholds: Annotated[tuple[Fraction, ...], NoDecode] = (0.5, 0.8, 0.95)
    # Where incidents are sent, which kinds of them (all, if none is named), and the file of the
    # secret that signs them.
    webhooks: Annotated[tuple[str, ...], NoDecode] = ()
    webhook_kinds: Annotated[tuple[str, ...], NoDecode] = ()
    webhook_secret_file: Path | None = None

    @field_validator("budget_thresholds", "webhooks", "webhook_kinds", mode="before")
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
            OSError: the file cannot be read.
        """
        if self.database_password_file is None:
            return self.database_url
        # Line ends alone are dropped, as by the PostgreSQL image, which reads the same file.
        password = self.database_password_file.read_text(encoding="utf-8").rstrip("\n")
        address = make_url(self.database_url).set(password=password)
        return address.render_as_string(hide_password=False)

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the service."""
        return is_loopback(self.host)
