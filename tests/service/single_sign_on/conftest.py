"""A provider that all tests of this folder share, as it was at first."""

from collections.abc import Iterator

import pytest

from tests.service.single_sign_on.providers import IdentityProvider, identity_provider


@pytest.fixture(scope="session")
def shared_provider() -> Iterator[IdentityProvider]:
    with identity_provider() as provider:
        yield provider


@pytest.fixture
def provider(shared_provider: IdentityProvider) -> IdentityProvider:
    shared_provider.tell(
        subject="dana", groups=["officers"], skew=0, id_token={}, answers=True, deny=False
    )
    return shared_provider
