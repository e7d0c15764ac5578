"""People who sign in through an identity provider, and what ends their sessions."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from sqlalchemy import Engine, select, update

from service.clock import now
from service.identity import sessions as session_module
from service.identity.keys import Role
from service.storage.engine import snapshot, transaction
from service.storage.tables import datasets, sessions, settings_changes
from service.transparency.signing import Signer
from tests.service.samples import dataset
from tests.service.single_sign_on.providers import GRANTS, IdentityProvider
from tests.service.test_keys import key

Serve = Callable[..., AbstractContextManager[str]]
PAGE = {"sec-fetch-site": "same-origin"}


@contextmanager
def browser(address: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=address, timeout=30, headers=PAGE) as found:
        yield found


def asked(page: httpx.Client, where: str = "/datasets?sort=name") -> str:
    """Where the provider sends a browser back to."""
    answer = page.get("/sign-in/house", params={"next": where})
    assert answer.status_code == 303, answer.text
    back = httpx.get(answer.headers["location"], timeout=30)
    assert back.status_code == 302, back.text
    return str(back.headers["location"])


def signed_in(page: httpx.Client) -> httpx.Response:
    return page.get(asked(page))


def test_a_person_signs_in_and_acts_under_their_own_name(
    provider: IdentityProvider, serve: Serve, tmp_path: Path, engine: Engine
) -> None:
    with serve(identity_file=provider.file(tmp_path)) as address, browser(address) as page:
        first = page.get("/sign-in")
        assert "Sign in with the house" in first.text
        assert "start token" not in first.text
        assert page.get("/datasets").status_code == 303
        answer = signed_in(page)
        assert answer.status_code == 200
        assert 'content="0; url=/datasets?sort=name"' in answer.text
        assert "samesite=strict" in answer.headers["set-cookie"].lower()
        seen = page.get("/datasets?sort=name")
        assert "Dana Doe · admin" in seen.text
        assert page.get("/v1/datasets").status_code == 401  # a session is no key
        token = provider.token(sub="dana", groups=["officers"])
        made = httpx.post(
            f"{address}/v1/datasets", json=dataset(budget={"epsilon": 3.0, "delta": 1e-5}),
            headers={"authorization": f"Bearer {token}"}, timeout=30,
        )  # fmt: skip
        assert made.status_code == 201
        shown = page.get("/datasets/data").text
        csrf = shown.split('name="csrf-token" content="')[1].split('"')[0]
        form = {
            "csrf": csrf, "epsilon": "2", "delta": "1e-5", "revision": "1", "reason": "Less.",
        }  # fmt: skip
        assert page.post("/datasets/data/limit", data=form).status_code == 303
    with snapshot(engine) as connection:
        assert connection.scalar(select(datasets.c.budget_epsilon)) == 2.0
        changed = connection.scalars(select(settings_changes.c.changed_by)).all()
        assert changed[-1] == f"{provider.issuer}#dana"


def test_a_public_client_has_no_secret(
    provider: IdentityProvider, serve: Serve, tmp_path: Path
) -> None:
    file = provider.file(tmp_path, secret=False)
    with serve(identity_file=file) as address, browser(address) as page:
        assert "Signed in" in signed_in(page).text


def test_an_answer_counts_once_and_in_its_own_browser(
    provider: IdentityProvider, serve: Serve, tmp_path: Path
) -> None:
    with (
        serve(identity_file=provider.file(tmp_path)) as address,
        browser(address) as page,
        browser(address) as other,
    ):
        back = asked(page)
        assert other.get(back).status_code == 403  # it began no sign-in
        asked(other)
        assert other.get(back).status_code == 403  # it began another one
        assert other.get("/datasets").status_code == 303
        assert page.get(back).status_code == 200
        assert page.get(back).status_code == 403
        begun = page.get("/sign-in/house").cookies["dpledger-sign-in"]
        for wrong in (begun[:-2] + "AA", "0" * 64 + begun[64:], "", "ä"):
            page.cookies.set("dpledger-sign-in", wrong.encode("ascii", "replace").decode())
            assert page.get("/sign-in/house/answer?code=a&state=b").status_code == 403


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"id_token": {"aud": "another-client"}}, "aud"),
        ({"id_token": {"aud": ["dpledger-pages", "another-client"]}}, "another client"),
        ({"id_token": {"azp": "another-client"}}, "another client"),
        ({"id_token": {"iss": "https://other.example"}}, "iss"),
        ({"id_token": {"nonce": "of-another-sign-in"}}, "another sign-in"),
        ({"id_token": {"nonce": None}}, "another sign-in"),
        ({"id_token": {"exp": None}}, "exp"),
        ({"skew": -1000}, "expired"),
        ({"skew": 1000}, "future"),
        ({"subject": "eve", "groups": ["cleaners"]}, "grants nothing"),
    ],
)
def test_a_token_of_another_sign_in_is_refused(
    provider: IdentityProvider,
    serve: Serve,
    tmp_path: Path,
    given: dict[str, object],
    words: str,
) -> None:
    with serve(identity_file=provider.file(tmp_path)) as address, browser(address) as page:
        back = asked(page)
        provider.tell(**given)
        if "subject" in given:
            back = asked(page)
        answer = page.get(back)
        assert answer.status_code in (401, 403)
        assert words in answer.text
        assert page.get("/datasets").status_code == 303


def test_a_code_of_one_sign_in_does_not_end_another(
    provider: IdentityProvider, serve: Serve, tmp_path: Path
) -> None:
    with serve(identity_file=provider.file(tmp_path)) as address, browser(address) as page:
        stolen = parse_qs(urlsplit(asked(page)).query)["code"][0]
        own = parse_qs(urlsplit(asked(page)).query)["state"][0]
        answer = page.get("/sign-in/house/answer", params={"code": stolen, "state": own})
        assert answer.status_code == 503  # its verifier is another one: the provider refuses it
        assert "did not finish the sign-in" in answer.text


def test_an_answer_of_another_issuer_is_refused(
    provider: IdentityProvider, serve: Serve, tmp_path: Path
) -> None:
    with serve(identity_file=provider.file(tmp_path)) as address, browser(address) as page:
        answer = page.get(asked(page) + "&iss=https://other.example")
        assert answer.status_code == 403


def test_a_refused_sign_in_says_so(
    provider: IdentityProvider, serve: Serve, tmp_path: Path
) -> None:
    provider.tell(deny=True)
    with serve(identity_file=provider.file(tmp_path)) as address, browser(address) as page:
        answer = page.get(asked(page))
        assert answer.status_code == 403
        assert "did not sign you in" in answer.text


def test_a_person_whose_group_was_taken_away_is_out_at_the_next_sign_in(
    provider: IdentityProvider, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve(identity_file=provider.file(tmp_path)) as address, browser(address) as page:
        signed_in(page)
        provider.tell(groups=["readers"])
        assert "· admin" in page.get("/datasets").text  # until the session ends: an hour
        later = now() + timedelta(seconds=3601)
        monkeypatch.setattr(session_module, "now", lambda: later)
        assert page.get("/datasets").status_code == 303
        monkeypatch.undo()
        signed_in(page)
        assert "· viewer" in page.get("/datasets").text


def test_a_sign_in_ends_the_sessions_in_which_the_provider_said_otherwise(
    provider: IdentityProvider, serve: Serve, tmp_path: Path
) -> None:
    with (
        serve(identity_file=provider.file(tmp_path)) as address,
        browser(address) as page,
        browser(address) as same,
        browser(address) as other,
    ):
        signed_in(page)
        signed_in(same)
        assert "· admin" in page.get("/datasets").text  # two sessions of a person who is the same
        provider.tell(groups=["readers"])
        signed_in(other)
        assert "· viewer" in other.get("/datasets").text
        assert page.get("/datasets").status_code == 303
        assert same.get("/datasets").status_code == 303


def test_a_refused_sign_in_ends_all_sessions_of_the_person(
    provider: IdentityProvider, serve: Serve, tmp_path: Path
) -> None:
    grants = '[[grant]]\nprovider = "house"\ngroup = "officers"\nrole = "admin"\n'
    file = provider.file(tmp_path, grants=grants)
    with serve(identity_file=file) as address, browser(address) as page, browser(address) as other:
        signed_in(page)
        assert page.get("/datasets").status_code == 200
        provider.tell(groups=["cleaners"])
        assert signed_in(other).status_code == 403
        assert page.get("/datasets").status_code == 303


def test_a_sign_in_ends_the_session_that_the_browser_had_before(
    provider: IdentityProvider, serve: Serve, tmp_path: Path, engine: Engine
) -> None:
    secret = key(engine, Role.ADMIN)
    with serve(identity_file=provider.file(tmp_path)) as address, browser(address) as page:
        assert page.post("/sign-in", data={"key": secret}).status_code == 303
        before = dict(page.cookies)
        back = asked(page)
        page.cookies.delete("dpledger")  # the provider's page sends none that is strict
        assert page.get(back).status_code == 200
        with httpx.Client(base_url=address, cookies=before, timeout=30) as stolen:
            assert stolen.get("/datasets").status_code == 303


def test_a_grant_that_was_taken_away_ends_sessions_at_the_next_start(
    provider: IdentityProvider, serve: Serve, tmp_path: Path, engine: Engine
) -> None:
    signing = tmp_path / "signing"
    Signer.create(signing)
    file = provider.file(tmp_path)
    with serve(identity_file=file, signing_key_file=signing) as address, browser(address) as page:
        signed_in(page)
        cookies = dict(page.cookies)
    for grants, status in ((GRANTS, 200), (GRANTS.replace("officers", "others"), 303)):
        provider.file(tmp_path, grants=grants)
        with (
            serve(identity_file=file, signing_key_file=signing) as address,
            httpx.Client(base_url=address, cookies=cookies, timeout=30) as page,
        ):
            assert page.get("/datasets").status_code == status
    with (
        serve(signing_key_file=signing) as address,  # without an identity file
        httpx.Client(base_url=address, cookies=cookies, timeout=30) as page,
    ):
        assert page.get("/datasets").status_code == 303
        assert page.get("/sign-in/house").status_code == 404


def test_rows_alone_make_nobody_another_person(
    provider: IdentityProvider, serve: Serve, tmp_path: Path, engine: Engine
) -> None:
    provider.tell(groups=["readers"])
    with serve(identity_file=provider.file(tmp_path)) as address, browser(address) as page:
        signed_in(page)
        assert page.get("/datasets").status_code == 200
        with transaction(engine) as connection:
            stored = connection.scalar(select(sessions.c.principal))
            assert stored is not None
            connection.execute(update(sessions).values(principal=stored.replace("read", "offic")))
        assert page.get("/datasets").status_code == 303


def test_keys_sign_in_beside_people(
    provider: IdentityProvider, serve: Serve, tmp_path: Path, engine: Engine
) -> None:
    secret = key(engine, Role.VIEWER)
    with serve(identity_file=provider.file(tmp_path)) as address, browser(address) as page:
        assert page.post("/sign-in", data={"key": secret}).status_code == 303
        assert "viewer · viewer" in page.get("/datasets").text


def test_a_service_without_people_has_no_sign_in_of_the_provider(
    provider: IdentityProvider, serve: Serve, tmp_path: Path
) -> None:
    file = provider.file(tmp_path, client=False)
    with serve(identity_file=file) as address, browser(address) as page:
        assert "Sign in with" not in page.get("/sign-in").text
        assert page.get("/sign-in/house").status_code == 404
        assert page.get("/sign-in/other").status_code == 404
