"""Tokens of pods: whose are accepted, as what, and until when."""

import base64
import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest
from dpledger_client import Client, DPLedgerError
from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey
from sqlalchemy import Engine, select

from service.identity.single_sign_on import provider_keys
from service.schemas.ledger_document import LedgerDocument
from service.storage.engine import snapshot
from service.storage.tables import acts, branches, runs
from service.transparency.certificates.verify import verify_bytes
from service.transparency.signing import Signer
from tests.service.samples import append, dataset, event, run
from tests.service.single_sign_on.identity_provider import SUBJECT
from tests.service.single_sign_on.providers import IdentityProvider

Serve = Callable[..., AbstractContextManager[str]]


def caller(address: str, token: str) -> httpx.Client:
    return httpx.Client(base_url=address, headers={"authorization": f"Bearer {token}"}, timeout=30)


def admin(provider: IdentityProvider, address: str) -> httpx.Client:
    return caller(address, provider.token(sub="dana", groups=["officers"]))


def refused(address: str, token: str, status: int, words: str) -> None:
    with caller(address, token) as api:
        answer = api.get("/v1/datasets")
    assert answer.status_code == status, answer.text
    assert words in answer.json()["detail"]


def test_a_pod_trains_with_the_token_that_its_cluster_gave_it(
    provider: IdentityProvider, serve: Serve, tmp_path: Path, engine: Engine
) -> None:
    with (
        serve(identity_file=provider.file(tmp_path), host="127.0.0.1") as address,
        admin(provider, address) as officer,
        caller(address, provider.token()) as pod,
    ):
        for name in ("scans", "other"):
            assert officer.post("/v1/datasets", json=dataset(name)).status_code == 201
        assert pod.post("/v1/runs", json=run("one", dataset="scans")).status_code == 201
        assert append(pod, event(0, 5), run="one").status_code == 201
        # The highest role counts: as a viewer it would reach the other one.
        assert pod.get("/v1/datasets/other").status_code == 404
        assert pod.post("/v1/runs", json=run("two", dataset="other")).status_code == 404
        assert pod.post("/v1/datasets", json=dataset("third")).status_code == 403
    with snapshot(engine) as connection:
        name = f"{provider.issuer}#{SUBJECT}"
        assert connection.scalar(select(runs.c.by)) == name
        assert connection.scalar(select(branches.c.appended_by)) == name
        assert f"{provider.issuer}#dana" in set(connection.scalars(select(acts.c.by)))


@pytest.mark.parametrize(
    ("claims", "status", "words"),
    [
        ({"aud": "another-service"}, 401, "aud"),
        ({"aud": None}, 401, "aud"),
        ({"exp": 1}, 401, "expired"),
        ({"exp": None}, 401, "exp"),
        ({"exp": "soon"}, 401, "not valid"),
        ({"sub": None}, 401, "sub"),
        ({"sub": ""}, 401, "sub"),
        ({"sub": "dana\n"}, 401, "subject"),
        ({"sub": "d" * 256}, 401, "subject"),
        ({"sub": 7}, 401, "sub"),
        ({"groups": "officers"}, 401, "groups"),
        ({"iss": "https://other.example"}, 401, "no identity provider"),
        ({"sub": "a-stranger"}, 403, "grants nothing"),
        ({"sub": "a-stranger", "groups": ["officers "]}, 403, "grants nothing"),
    ],
)
def test_a_token_of_others_or_for_others_is_refused(
    provider: IdentityProvider,
    serve: Serve,
    tmp_path: Path,
    claims: dict[str, Any],
    status: int,
    words: str,
) -> None:
    with serve(identity_file=provider.file(tmp_path)) as address:
        refused(address, provider.token(**claims), status, words)


def test_a_token_that_the_provider_did_not_sign_is_refused(
    provider: IdentityProvider, serve: Serve, tmp_path: Path
) -> None:
    present = int(time.time())
    claims = {
        "iss": provider.issuer, "sub": "dana", "aud": "dpledger", "groups": ["officers"],
        "iat": present, "exp": present + 600,
    }  # fmt: skip
    public = httpx.get(f"{provider.issuer}/keys", timeout=30).json()["keys"][0]
    own = RSAKey.generate_key(2048)
    modulus = OctKey.import_key({"kty": "oct", "k": public["n"]})
    forged = [
        jwt.encode({"alg": "RS256", "kid": public["kid"]}, claims, own),
        jwt.encode({"alg": "RS256", "kid": "unknown"}, claims, own),
        jwt.encode({"alg": "RS256"}, claims, own),
        # The public key as a shared secret.
        jwt.encode({"alg": "HS256", "kid": public["kid"]}, claims, modulus),
    ]
    signed = provider.token(sub="dana", groups=["officers"])
    header, body, signature = signed.split(".")
    forged += [f"{header}.{body}.", f"{header}.{body}.{signature[:-4]}AAAA"]
    none = "eyJhbGciOiJub25lIn0"  # {"alg":"none"}
    forged += [f"{none}.{body}.", f"{none}.{body}.{signature}"]
    with serve(identity_file=provider.file(tmp_path)) as address:
        for token in forged:
            refused(address, token, 401, "not valid here")
        with caller(address, signed) as api:
            assert api.get("/v1/datasets").status_code == 200


def test_what_strangers_make_up_is_refused_and_nothing_fails(
    provider: IdentityProvider, serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def part(text: str) -> str:
        return base64.urlsafe_b64encode(text.encode("utf-8", "surrogatepass")).rstrip(b"=").decode()

    kid = httpx.get(f"{provider.issuer}/keys", timeout=30).json()["keys"][0]["kid"]
    body = json.dumps({"iss": provider.issuer, "sub": "dana", "aud": "dpledger", "exp": 2**33})
    deep = "[" * 2000
    headers = [
        '["alg"]', '"alg"', "7", "null", deep, json.dumps({"alg": "EdDSA", "kid": kid}),
        '{"alg": "RS256", "kid": "\\ud800"}', '{"alg": ["RS256"]}', '{"kid": {}}', "{", "",
    ]  # fmt: skip
    made = [f"{part(one)}.{part(body)}.AAAA" for one in headers]
    header = part(json.dumps({"alg": "RS256", "kid": kid}))
    made += [f"{header}.{part(one)}.AAAA" for one in (deep, '{"iss": ' + deep, "[]", "{", "")]
    with serve(identity_file=provider.file(tmp_path)) as address:
        for token in made:
            with caller(address, token) as api:
                assert api.get("/v1/datasets").status_code == 401, token
    assert [one for one in caplog.records if one.levelname == "ERROR"] == []


def test_a_subject_may_be_another_claim(
    provider: IdentityProvider, serve: Serve, tmp_path: Path
) -> None:
    file = provider.file(tmp_path)
    file.write_text(file.read_text().replace("client_id", 'subject_claim = "oid"\nclient_id', 1))
    with serve(identity_file=file) as address:
        with caller(address, provider.token(sub="pairwise-1", oid=SUBJECT)) as api:
            assert api.get("/v1/datasets").status_code == 200
        refused(address, provider.token(sub=SUBJECT), 401, "subject")
        refused(address, provider.token(sub=SUBJECT, oid="another"), 403, "grants nothing")


def test_a_token_ends_at_its_time_though_it_was_verified(
    provider: IdentityProvider, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = int(time.time()) + 3600
    with (
        serve(identity_file=provider.file(tmp_path)) as address,
        caller(address, provider.token(exp=ends)) as api,
    ):
        assert api.get("/v1/datasets").status_code == 200
        # It is in force for the minute that clocks may differ.
        for late, status in ((59, 200), (61, 401)):
            monkeypatch.setattr(time, "time", lambda late=late: ends + late)
            assert api.get("/v1/datasets").status_code == status


def test_clocks_may_differ_by_a_minute(
    provider: IdentityProvider, serve: Serve, tmp_path: Path
) -> None:
    with serve(identity_file=provider.file(tmp_path)) as address:
        provider.tell(skew=50)
        with caller(address, provider.token()) as api:
            assert api.get("/v1/datasets").status_code == 200
        provider.tell(skew=120)
        refused(address, provider.token(), 401, "not valid here")


def test_a_provider_may_change_its_keys(
    provider: IdentityProvider, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provider_keys, "RETRY_SECONDS", 0.0)
    with serve(identity_file=provider.file(tmp_path)) as address:
        before = provider.token()
        with caller(address, before) as api:
            assert api.get("/v1/datasets").status_code == 200
        provider.tell(rotate=0)
        with caller(address, provider.token()) as api:
            assert api.get("/v1/datasets").status_code == 200
        with caller(address, before) as api:  # verified before, and in force until its end
            assert api.get("/v1/datasets").status_code == 200


def test_strangers_do_not_make_the_service_ask_the_provider(
    provider: IdentityProvider, serve: Serve, tmp_path: Path
) -> None:
    own = RSAKey.generate_key(2048)
    claims = {"iss": provider.issuer, "sub": "dana", "aud": "dpledger", "exp": 2**33}
    with serve(identity_file=provider.file(tmp_path)) as address:
        before = provider.tell()["reads"]
        for number in range(12):
            token = jwt.encode({"alg": "RS256", "kid": f"invented-{number}"}, claims, own)
            refused(address, token, 401, "not valid here")
        assert provider.tell()["reads"] == before + 1


def test_a_provider_that_does_not_answer_is_no_reason_to_admit(
    provider: IdentityProvider, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = provider.token()
    provider.tell(answers=False)
    monkeypatch.setattr(provider_keys, "RETRY_SECONDS", 0.0)
    with serve(identity_file=provider.file(tmp_path)) as address:
        refused(address, token, 503, "does not answer")
        provider.tell(answers=True)
        with caller(address, token) as api:
            assert api.get("/v1/datasets").status_code == 200
        provider.tell(answers=False)
        other = provider.token()
        with caller(address, other) as api:  # its keys are known
            assert api.get("/v1/datasets").status_code == 200


def test_keys_go_on_working_beside_tokens(
    provider: IdentityProvider, serve: Serve, tmp_path: Path
) -> None:
    with serve(identity_file=provider.file(tmp_path)) as address:
        refused(address, "dpl_no.such.key", 401, "no identity provider")
        refused(address, "dpl_nosuchkey", 401, "API key")


def test_a_tokens_rate_is_its_subjects(
    provider: IdentityProvider, serve: Serve, tmp_path: Path
) -> None:
    with serve(identity_file=provider.file(tmp_path), requests_per_second=0.01) as address:
        with caller(address, provider.token()) as api:
            assert api.get("/v1/datasets").status_code == 200
        with caller(address, provider.token(jti="another")) as api:
            assert api.get("/v1/datasets").status_code == 429


def test_a_trainer_sends_the_token_that_its_file_holds_now(
    provider: IdentityProvider, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    monkeypatch.delenv("DPLEDGER_API_KEY", raising=False)
    monkeypatch.setenv("DPLEDGER_API_KEY_FILE", str(file))
    with pytest.raises(ValueError, match="DPLEDGER_API_KEY_FILE"):
        Client("http://127.0.0.1:9")
    file.write_text(provider.token(sub="dana", groups=["officers"]) + "\n")
    with (
        serve(identity_file=provider.file(tmp_path)) as address,
        Client(address, retries=0) as client,
    ):
        client.create_dataset(
            "scans", dataset_size=100, neighboring_relation="replace_one", privacy_unit="example"
        )
        file.write_text(provider.token(exp=1))
        with pytest.raises(DPLedgerError, match="expired"):
            client.dataset("scans")
        file.write_text(provider.token())
        assert client.dataset("scans")["name"] == "scans"
        file.unlink()  # the last one goes on
        assert client.dataset("scans")["name"] == "scans"


def test_a_ledger_and_a_certificate_name_persons_and_pods(
    provider: IdentityProvider, serve: Serve, tmp_path: Path
) -> None:
    signing = tmp_path / "signing_key"
    Signer.create(signing)
    file = provider.file(tmp_path)
    with (
        serve(identity_file=file, signing_key_file=signing, host="127.0.0.1") as address,
        admin(provider, address) as officer,
        caller(address, provider.token()) as pod,
    ):
        assert officer.post("/v1/datasets", json=dataset("scans")).status_code == 201
        assert pod.post("/v1/runs", json=run("one", dataset="scans")).status_code == 201
        assert append(pod, event(0, 5), run="one").status_code == 201
        ledger = pod.get("/v1/runs/one/ledger")
        answer = officer.get("/v1/runs/one/certificate")
    trained_by = f"{provider.issuer}#{SUBJECT}"
    document = LedgerDocument.model_validate(ledger.json())  # as the command line reads it
    assert (document.by, document.appended_by) == (trained_by, [trained_by])
    assert answer.status_code == 200, answer.text
    verify_bytes(answer.content)
    said = answer.json()["certificate"]
    (limit,) = said["facts"]["dataset"]["limits"]
    issued_by = f"{provider.issuer}#dana"
    assert (limit["changed_by"], said["log"]["by"]) == (issued_by, issued_by)
    (standing,) = said["standing"]
    assert (standing["by"], standing["appended_by"]) == (trained_by, [trained_by])
