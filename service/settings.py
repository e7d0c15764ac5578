"""Settings from the environment, read once by the command line."""

import ipaddress
from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """What an operator decides. Variables carry the prefix DPLEDGER_."""

    model_config = SettingsConfigDict(env_prefix="DPLEDGER_", frozen=True, extra="ignore")

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    database_url: str = "sqlite:///dpledger.db"
    # Holds the first admin key; read only while the service has no key.
    admin_key_file: Path | None = None
    body_bytes_max: int = Field(default=4 * 1024 * 1024, ge=1024, le=64 * 1024 * 1024)
    busy_timeout_seconds: float = Field(default=10.0, ge=0.1, le=60.0)
    shutdown_seconds: int = Field(default=20, ge=1, le=600)

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the service."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False
