"""The restatements in a certificate are those of the log, each with its proof."""

import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from sqlalchemy import Engine

from service.schemas.event_codec import canonical
from service.transparency.certificates import records
from service.transparency.certificates.envelope import InvalidCertificateError
from service.transparency.certificates.verify import verify_bytes
from service.transparency.signing import Signer
from tests.service.certifying import certified, resealed, said, signer_of
from tests.service.samples import Json, append, event, run, setup
from tests.service.test_restatements import later  # noqa: F401 (a fixture)


@pytest.fixture
def signer(tmp_path: Path) -> Signer:
    return signer_of(tmp_path)


@pytest.fixture
def raw(
    api: httpx.Client,
    engine: Engine,
    signer: Signer,
    later: Callable[..., None],  # noqa: F811
) -> bytes:
    """A certificate with two restatements, beside one of another run."""
    setup(api)
    assert api.post("/v1/runs", json=run("other", writer="another-writer-of-it")).is_success
    append(api, event(0, 100))
    certified(engine, signer)
    certified(engine, signer, "other")
    later(1.25)
    certified(engine, signer)
    later(1.5, "0.3.0")
    return certified(engine, signer)


def refused(raw: bytes, signer: Signer, change: Callable[[Json], object]) -> str:
    with pytest.raises(InvalidCertificateError) as error:
        verify_bytes(resealed(raw, signer, change), public_key=signer.public_key)
    return str(error.value)


def test_each_restatement_is_proved_by_the_log_of_the_certificate(
    raw: bytes, signer: Signer
) -> None:
    found = verify_bytes(raw, public_key=signer.public_key)
    count = len(said(raw)["restatements"])
    assert count >= 2
    assert f"the same log tells of the restatements, {count} of them" in found.checks
    assert sum("TOO LOW" in note for note in found.notes) == count


def _mildly(one: Json) -> None:
    one["changes"][0]["new"]["epsilon"] *= 0.9


def _high(one: Json) -> None:
    one["changes"][0]["direction"] = "too_high"


def _first(change: Callable[[Json], object]) -> Callable[[Json], object]:
    return lambda certificate: change(certificate["restatements"][0])


FORGED: dict[str, tuple[Callable[[Json], object], str]] = {
    "a milder number": (_first(_mildly), "restatements.0: the log does not tell of it"),
    "another direction": (_first(_high), "restatements.0: the log does not tell of it"),
    "another version": (
        _first(lambda one: one.update(core_version="9.9")), "restatements.0: the log does not",
    ),
    "another time": (
        _first(lambda one: one["log"].update(acted_at="2020")), "restatements.0: the log does not",
    ),
    "another place": (
        _first(lambda one: one["log"].update(position=0)), "restatements.0: the log does not",
    ),
    "the proof of the certificate": (
        lambda said: said["restatements"][0].update(
            log={name: said["log"][name] for name in said["restatements"][0]["log"]}
        ),
        "restatements.0: the log does not tell of it",
    ),
    "no proof": (_first(lambda one: one.pop("log")), "restatements.0.log"),
    "the same one twice": (
        lambda said: said["restatements"].insert(0, said["restatements"][0]),
        "restatements.1: is not before the one above it",
    ),
    "another order": (
        lambda said: said["restatements"].reverse(), "is not before the one above it",
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", FORGED)
def test_a_restatement_that_was_forged_and_signed_again_is_found_out(
    raw: bytes, signer: Signer, how: str
) -> None:
    change, named = FORGED[how]
    assert named in refused(raw, signer, change)


def test_a_restatement_that_was_taken_out_breaks_the_signature(raw: bytes, signer: Signer) -> None:
    envelope = json.loads(raw)
    envelope["certificate"]["restatements"].clear()
    with pytest.raises(InvalidCertificateError, match="the signature is not that"):
        verify_bytes(canonical(envelope).encode(), public_key=signer.public_key)


def test_what_was_restated_of_another_subject_does_not_stand_here(
    api: httpx.Client,
    engine: Engine,
    signer: Signer,
    monkeypatch: pytest.MonkeyPatch,
    raw: bytes,
) -> None:
    true, subject = records.restatements_of, {"kind": "run", "name": "run"}
    # The service itself attaches what the log says of another run.
    monkeypatch.setattr(
        records,
        "restatements_of",
        lambda connection, dataset, _: true(connection, dataset, subject),
    )
    with pytest.raises(InvalidCertificateError, match=r"restatements\.0: is of another subject"):
        verify_bytes(certified(engine, signer, "other"), public_key=signer.public_key)
