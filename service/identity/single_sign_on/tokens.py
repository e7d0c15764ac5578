"""Check that a token is an identity provider's, for this service and in force."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from joserfc import jws, jwt
from joserfc.errors import ExpiredTokenError, InvalidClaimError, JoseError, MissingClaimError
from joserfc.jwt import JWTClaimsRegistry

from service.errors import UnauthorizedError, UnavailableError
from service.identity.single_sign_on.configuration import TEXT_MAX, Provider
from service.identity.single_sign_on.provider_keys import ProviderKeys

# By a key pair: with a shared secret this service could sign what it checks.
ALGORITHMS: Final = [
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
    "Ed25519",
]  # fmt: skip
CLOCK_SKEW_SECONDS: Final = 60  # that a provider's clock may differ from this one
TOKEN_LENGTH_MAX: Final = 16_384
GROUPS_MAX: Final = 1000
_PARTS: Final = 3
_NOT_VALID: Final = "The token is not valid here: {}."


class ClaimError(Exception):
    """A claim of a token is not as this service needs it; the text says how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """A person or a pod, as an identity provider names it."""

    provider: str  # its name in the identity file
    issuer: str
    subject: str
    groups: tuple[str, ...] = ()
    title: str = ""  # a name that people know it by, to be shown and for nothing else

    @property
    def name(self) -> str:
        """What acts name it by: no other provider and no key can have the same."""
        return f"{self.issuer}#{self.subject}"

    def stored(self) -> str:
        """As a session stores it: JSON."""
        return json.dumps(asdict(self))


def stored_principal(text: str) -> Principal:
    """Read what `stored` wrote."""
    said = json.loads(text)
    return Principal(**{**said, "groups": tuple(said["groups"])})


@dataclass(frozen=True, slots=True)
class VerifiedToken:
    """A principal, and until when the token says so."""

    principal: Principal
    until: float  # seconds since the epoch, by the clock that is a minute behind


def is_token(text: str) -> bool:
    """Whether a text has the form of a signed token, which no API key has."""
    return len(text) <= TOKEN_LENGTH_MAX and text.isascii() and text.count(".") == _PARTS - 1


def issuer_of(token: str) -> str | None:
    """The issuer that a token names; nothing of it is believed yet."""
    try:
        claims = jws.extract_compact(token.encode("ascii")).payload
        said = json.loads(claims)
    except Exception:  # strangers send anything, and the library names no one class for all of it
        return None
    issuer = said.get("iss") if isinstance(said, dict) else None
    return issuer if isinstance(issuer, str) else None


def verify_token(
    token: str, provider: Provider, keys: ProviderKeys, *, audience: str, nonce: str | None = None
) -> VerifiedToken:
    """Check a token.

    Args:
        token: as it was sent.
        provider: that it names.
        keys: of the provider.
        audience: that it must be for.
        nonce: that it must hold, if it is the answer to a sign-in.

    Raises:
        UnauthorizedError: it is not in force, or not for this service.
        UnavailableError: the provider's keys cannot be read.
    """
    try:
        header = jws.extract_compact(token.encode("ascii")).headers()
        key_id = header.get("kid")
        known = keys.known(key_id if isinstance(key_id, str) else None)
        claims = jwt.decode(token, known.keys, algorithms=ALGORITHMS).claims
        JWTClaimsRegistry(
            leeway=CLOCK_SKEW_SECONDS,
            iss={"essential": True, "value": provider.issuer},
            aud={"essential": True, "value": audience},
            exp={"essential": True},
            sub={"essential": True},
        ).validate(claims)
        _require_own(claims, audience, nonce)
        return VerifiedToken(
            _principal(claims, provider), float(claims["exp"]) + CLOCK_SKEW_SECONDS
        )
    except JoseError as error:
        raise UnauthorizedError(_NOT_VALID.format(_reason(error))) from None
    except UnavailableError:
        raise
    except ClaimError as error:
        raise UnauthorizedError(_NOT_VALID.format(error)) from None
    except Exception:  # what strangers send may fail in any way
        raise UnauthorizedError(_NOT_VALID.format("it cannot be read")) from None


def _reason(error: JoseError) -> str:
    """What is wrong, without anything that was sent."""
    if isinstance(error, (InvalidClaimError, MissingClaimError, ExpiredTokenError)):
        return error.description.rstrip(".")  # it names the claim
    return error.error.replace("_", " ")


def _require_own(claims: Mapping[str, Any], audience: str, nonce: str | None) -> None:
    """Refuse the answer to another sign-in, and a token that was made for another client.

    Raises:
        ClaimError: it is one.
    """
    if nonce is None:
        return
    if claims.get("nonce") != nonce:
        raise ClaimError("it answers another sign-in")
    if claims.get("azp", audience) != audience or claims["aud"] not in (audience, [audience]):
        raise ClaimError("it is for another client, too")


def _principal(claims: Mapping[str, Any], provider: Provider) -> Principal:
    subject = claims.get(provider.subject_claim)
    if not isinstance(subject, str) or not 0 < len(subject) <= TEXT_MAX or not _plain(subject):
        raise ClaimError(f"its subject must be 1 to {TEXT_MAX} printable ASCII characters")
    groups = claims.get(provider.groups_claim, [])
    if not isinstance(groups, list) or len(groups) > GROUPS_MAX:
        raise ClaimError(f"its {provider.groups_claim} must be a list of at most {GROUPS_MAX}")
    title = next(
        (
            claims[name]
            for name in ("name", "preferred_username", "email")
            if isinstance(claims.get(name), str)
        ),
        subject,
    )
    return Principal(
        provider=provider.name,
        issuer=provider.issuer,
        subject=subject,
        groups=tuple(one for one in groups if isinstance(one, str)),
        title=title[:TEXT_MAX],
    )


def _plain(text: str) -> bool:
    return text.isascii() and text.isprintable()
