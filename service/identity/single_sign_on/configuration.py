"""Which identity providers are believed, and which role each of their groups or subjects has."""

import tomllib
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from service.errors import StartupError
from service.identity.keys import KEY_DATASETS_MAX
from service.schemas.field_errors import fault_list
from service.schemas.requests import NAME_PATTERN
from service.settings import is_loopback

TEXT_MAX: Final = 255  # characters of an issuer, a subject or a group
PERSON_SESSION_SECONDS: Final = 3600  # after which a person's groups are asked for again
GRANTS_MAX: Final = 10_000
EVERY_SUBJECT: Final = "*"  # every subject of a provider

_Name = Annotated[str, Field(pattern=NAME_PATTERN)]
_Text = Annotated[str, Field(min_length=1, max_length=TEXT_MAX)]


def _safe_url(text: str) -> str:
    """Refuse an address whose answers others on the network could replace."""
    url = urlsplit(text)
    local = url.scheme == "http" and is_loopback(url.hostname or "")
    if (url.scheme != "https" and not local) or not url.hostname:
        raise ValueError("must begin with https://, or http:// on a loopback address")
    if "?" in text or "#" in text or url.username is not None or not text.isprintable():
        raise ValueError("has no query, no fragment and no user")
    return text


SafeUrl = Annotated[str, Field(max_length=TEXT_MAX), AfterValidator(_safe_url)]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Provider(_Table):
    """An issuer of tokens."""

    name: _Name  # in the addresses of this service
    issuer: SafeUrl  # as its tokens have it
    audience: _Text = "dpledger"  # of tokens that are sent as API keys are
    client_id: _Text | None = None  # of this service, if people sign in through the provider
    client_secret_file: str | None = None  # none for a public client, which has PKCE alone
    title: _Text | None = None  # on the sign-in page
    scopes: _Text = "openid profile email"
    groups_claim: _Text = "groups"
    subject_claim: _Text = "sub"  # which names a person the same for each client of the provider
    session_seconds: int = Field(default=PERSON_SESSION_SECONDS, ge=60, le=12 * 3600)
    ca_file: str | None = None  # of certificates that the provider's are checked against
    token_file: str | None = None  # holds a token by which the provider's keys may be read


class Grant(_Table):
    """A role of a group, or of a subject."""

    provider: _Name
    group: _Text | None = None
    subject: _Text | None = None  # `*` for each that the provider names
    role: Literal["viewer", "trainer", "owner", "approver", "admin"]
    datasets: tuple[_Name, ...] | None = Field(
        default=None, min_length=1, max_length=KEY_DATASETS_MAX, strict=False
    )

    @model_validator(mode="after")
    def _one_holder(self) -> "Grant":
        if (self.group is None) == (self.subject is None):
            raise ValueError("must name a group or a subject, and not both")
        if self.role == "admin" and self.datasets is not None:
            raise ValueError("an admin cannot be limited to datasets")
        if self.role == "owner" and self.datasets is None:
            raise ValueError("an owner needs the datasets that it owns")
        if self.role not in ("viewer", "trainer") and self.subject == EVERY_SUBJECT:
            raise ValueError(f"not every subject can be an {self.role}")
        return self


class Configuration(_Table):
    """All providers and grants."""

    provider: tuple[Provider, ...] = Field(min_length=1, max_length=20, strict=False)
    grant: tuple[Grant, ...] = Field(default=(), max_length=GRANTS_MAX, strict=False)

    @model_validator(mode="after")
    def _names_belong_together(self) -> "Configuration":
        names = [one.name for one in self.provider]
        if len(set(names)) < len(names):
            raise ValueError("two providers have the same name")
        if len({one.issuer for one in self.provider}) < len(names):
            raise ValueError("two providers have the same issuer")
        unknown = {one.provider for one in self.grant} - set(names)
        if unknown:
            raise ValueError(f"grant.provider: there is no provider {min(unknown)}")
        return self


def read_configuration(path: Path) -> Configuration:
    """Read the identity file.

    Raises:
        StartupError: it cannot be read, or says something that cannot be.
    """
    try:
        with path.open("rb") as file:
            return Configuration.model_validate(tomllib.load(file))
    except OSError as error:
        raise StartupError(f"DPLEDGER_IDENTITY_FILE: {path}: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise StartupError(f"DPLEDGER_IDENTITY_FILE: {path} is not TOML: {error}.") from None
    except ValidationError as error:
        first = fault_list(list(error.errors()))[0]
        raise StartupError(
            f"DPLEDGER_IDENTITY_FILE: {path}: {first['location']}: {first['message']}."
        ) from None
