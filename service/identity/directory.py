"""What signing in asks of an identity provider: callers by its tokens, and its names on pages."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from service.identity.authentication import Caller


class SignInProvider(Protocol):
    """An identity provider through which people sign in."""

    @property
    def name(self) -> str:
        """In the address of its sign-in."""

    @property
    def title(self) -> str | None:
        """On the page, instead of the name."""


class Directory(Protocol):
    """Callers by tokens of identity providers."""

    @property
    def sign_in_providers(self) -> Sequence[SignInProvider]:
        """Those through which people sign in."""

    def holder(self, digest: str) -> "Caller | None":
        """Whose token has this digest, if it was verified and is still in force."""

    async def admit(self, authorization: str) -> None:
        """Verify the token of a header, if it bears one, so that `holder` knows it."""

    def person(self, principal: str) -> "Caller | None":
        """A person as a session stores it; None if nothing is granted to it."""
