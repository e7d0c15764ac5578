"""What a provider says of itself: which answers are believed, and how long."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest
from joserfc.jwk import OctKey, RSAKey

from service.errors import ForbiddenError, UnavailableError
from service.identity.single_sign_on import code_flow, provider_keys
from service.identity.single_sign_on.code_flow import (
    EXCHANGES_MAX,
    Exchanges,
    Started,
    begin_sign_in,
    unseal,
)
from service.identity.single_sign_on.configuration import Configuration, Provider
from service.identity.single_sign_on.directory import TokenDirectory
from service.identity.single_sign_on.provider_keys import (
    ANSWER_BYTES_MAX,
    BELIEVED_SECONDS,
    FRESH_SECONDS,
    ProviderKeys,
)
from service.identity.single_sign_on.tokens import Principal, VerifiedToken

ISSUER = "https://login.example"
PROVIDER = Provider(name="house", issuer=ISSUER, client_id="pages")
KEY = RSAKey.generate_key(2048)
KEY.ensure_kid()
SECRET = b"s" * 32


class Said:
    """What the provider answers, by path."""

    def __init__(self) -> None:
        self.clock = 1000.0
        self.asked = 0
        self.discovery: dict[str, Any] = {
            "issuer": ISSUER, "jwks_uri": f"{ISSUER}/keys",
            "authorization_endpoint": f"{ISSUER}/authorize", "token_endpoint": f"{ISSUER}/token",
        }  # fmt: skip
        self.keys: list[Any] = [KEY.as_dict(private=False)]
        self.padding = ""
        self.status = 200

    def answer(self, request: httpx.Request) -> httpx.Response:
        self.asked += 1
        if request.url.path == "/keys":
            body: Any = {"keys": self.keys, "padding": self.padding}
        else:
            body = self.discovery
        return httpx.Response(self.status, json=body, headers={"location": f"{ISSUER}/keys"})

    def known(self) -> ProviderKeys:
        return ProviderKeys(PROVIDER, clock=lambda: self.clock)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Said:
    found = Said()

    @contextmanager
    def client(_provider: Provider, *, as_client: bool = False) -> Iterator[httpx.Client]:
        with httpx.Client(transport=httpx.MockTransport(found.answer)) as one:
            yield one

    monkeypatch.setattr(provider_keys, "provider_client", client)
    monkeypatch.setattr(code_flow, "provider_client", client)
    return found


def test_keys_are_read_once_in_an_hour_and_believed_for_a_day(said: Said) -> None:
    keys = said.known()
    first = keys.known(KEY.kid)
    assert first.token_endpoint == f"{ISSUER}/token"
    said.clock += FRESH_SECONDS
    assert keys.known(KEY.kid) is first
    assert said.asked == 2
    said.clock += 1
    assert keys.known(KEY.kid) is not first
    assert said.asked == 4
    said.status = 500
    said.clock += BELIEVED_SECONDS
    keys.known(KEY.kid)
    said.clock += 1
    with pytest.raises(UnavailableError):
        keys.known(KEY.kid)


def with_other_issuer(said: Said) -> None:
    said.discovery["issuer"] = "https://other.example"


def with_plain_keys(said: Said) -> None:
    said.discovery["jwks_uri"] = "http://login.example/keys"


def without_keys(said: Said) -> None:
    said.keys = []


def with_secret_keys_alone(said: Said) -> None:
    said.keys = [OctKey.generate_key().as_dict(private=True)]


def with_keys_to_encrypt_alone(said: Said) -> None:
    said.keys = [KEY.as_dict(private=False) | {"use": "enc"}]


def with_broken_keys(said: Said) -> None:
    said.keys = [{"kty": "RSA", "n": "AQAB"}]


def with_too_much(said: Said) -> None:
    said.padding = "x" * ANSWER_BYTES_MAX


def with_a_redirect(said: Said) -> None:
    said.status = 302


@pytest.mark.parametrize(
    "spoil",
    [
        with_other_issuer, with_plain_keys, without_keys, with_secret_keys_alone,
        with_keys_to_encrypt_alone, with_broken_keys, with_too_much, with_a_redirect,
    ],
)  # fmt: skip
def test_what_is_not_safe_is_not_believed(said: Said, spoil: Callable[[Said], None]) -> None:
    spoil(said)
    with pytest.raises(UnavailableError, match="house does not answer"):
        said.known().known()


def test_keys_that_cannot_be_used_are_left_out(said: Said) -> None:
    said.keys.append(OctKey.generate_key().as_dict(private=True))
    said.keys.append({"kty": "RSA", "n": "AQAB"})
    said.keys.append({"kty": "EC", "crv": "brainpoolP256r1", "x": "AQAB", "y": "AQAB"})
    said.keys.append("a key")
    assert [one.kid for one in said.known().known().keys.keys] == [KEY.kid]


def test_a_sign_in_is_over_after_ten_minutes(said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    started, there = begin_sign_in(
        PROVIDER, said.known(), redirect_uri="https://x.example/answer", next_path="/runs"
    )
    assert there.startswith(f"{ISSUER}/authorize?response_type=code&client_id=pages")
    assert started.verifier not in there
    cookie = started.sealed(SECRET)
    assert unseal(SECRET, cookie) == started
    assert unseal(b"t" * 32, cookie) is None
    late = time.time() + code_flow.STARTED_SECONDS + 1
    monkeypatch.setattr(time, "time", lambda: late)
    assert unseal(SECRET, cookie) is None


def test_an_answer_at_another_providers_address_is_refused(said: Said) -> None:
    started = Started(
        provider="house", state="s", nonce="n", verifier="v", redirect_uri="", next_path="/",
        until=2.0**33,
    )  # fmt: skip
    other = Provider(name="other", issuer="https://other.example", client_id="pages")
    with pytest.raises(ForbiddenError, match="another browser"):
        code_flow.finish_sign_in(
            started, other, said.known(), Exchanges(), {"state": "s", "code": "c"}
        )


def test_strangers_take_few_threads_and_an_answer_counts_once() -> None:
    exchanges = Exchanges()
    with ExitStack() as under_way:
        for number in range(EXCHANGES_MAX):
            under_way.enter_context(exchanges.one(f"state-{number}"))
        with pytest.raises(UnavailableError, match="Too many"), exchanges.one("another"):
            pass
    with exchanges.one("another"):
        pass
    with pytest.raises(ForbiddenError), exchanges.one("another"):
        pass


def test_a_verified_token_ends_at_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    text = {"provider": "house", "subject": "*", "role": "viewer"}
    directory = TokenDirectory(
        Configuration.model_validate({"provider": [PROVIDER.model_dump()], "grant": [text]})
    )
    principal = Principal(provider="house", issuer=ISSUER, subject="dana")
    directory._remember("digest", VerifiedToken(principal, time.time() + 100))
    assert directory.holder("digest") is not None
    late = time.time() + 101
    monkeypatch.setattr(time, "time", lambda: late)
    assert directory.holder("digest") is None


def test_of_several_grants_the_highest_role_counts_with_its_datasets() -> None:
    roles = (
        ("readers", "viewer", None), ("team", "trainer", None), ("letters", "owner", ["letters"]),
        ("digits", "owner", ["digits"]), ("second-line", "approver", None),
        ("officers", "admin", None),
    )  # fmt: skip
    grants = [
        {"provider": "house", "group": group, "role": role}
        | ({} if datasets is None else {"datasets": datasets})
        for group, role, datasets in roles
    ]
    directory = TokenDirectory(
        Configuration.model_validate({"provider": [PROVIDER.model_dump()], "grant": grants})
    )
    for groups, role, datasets in (
        (("readers", "letters", "digits", "team"), "owner", {"letters", "digits"}),
        (("letters", "second-line"), "approver", None),
        (("second-line", "officers", "letters"), "admin", None),
    ):
        one = Principal(provider="house", issuer=ISSUER, subject="dana", groups=groups)
        found = directory.caller_of(one)
        assert (found.scope, found.datasets) == (role, datasets)


def test_a_group_of_another_provider_grants_nothing() -> None:
    other = Provider(name="other", issuer="https://other.example")
    grant = {"provider": "house", "group": "officers", "role": "admin"}
    directory = TokenDirectory(
        Configuration.model_validate(
            {"provider": [PROVIDER.model_dump(), other.model_dump()], "grant": [grant]}
        )
    )
    one = Principal(provider="house", issuer=ISSUER, subject="dana", groups=("officers",))
    assert directory.person(one.stored()) is not None
    two = Principal(provider="other", issuer=other.issuer, subject="dana", groups=("officers",))
    assert directory.person(two.stored()) is None
