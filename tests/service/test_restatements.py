"""Restatements: what a later version of the accounting answers stands beside what was certified."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine
from typer.testing import CliRunner, Result

import accounting
from accounting.accountants import best_first
from accounting.accountants.queries import Query
from accounting.event_counts import EventCounts
from accounting.guarantees import Bound
from service.cli.main import app
from service.errors import LedgerError
from service.schemas.provenance import VERSIONS
from service.storage.engine import snapshot
from service.transparency.certificates.envelope import InvalidCertificateError
from service.transparency.certificates.html import certificate_page
from service.transparency.certificates.recheck import restate_all
from service.transparency.certificates.records import differences, direction_of, is_later
from service.transparency.certificates.verify import verify_bytes
from service.transparency.signing import Signer
from service.transparency.verification.ledger import verify
from service.transparency.verification.saved_heads import Kept
from tests.service.certifying import certified, full_world, said, signer_of, told
from tests.service.samples import append, event, setup

LATER = "0.2.0"


@pytest.fixture
def signer(tmp_path: Path) -> Signer:
    return signer_of(tmp_path)


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Another version of the accounting, whose Renyi bound is so many times the present one."""

    def become(factor: float, version: str = LATER) -> None:
        bound: Callable[[EventCounts, Query], Bound] = best_first.ACCOUNTANTS["rdp"]

        def other(counts: EventCounts, question: Query) -> Bound:
            found = bound(counts, question)
            return replace(found, epsilon=found.epsilon * factor)

        monkeypatch.setitem(best_first.ACCOUNTANTS, "rdp", other)
        monkeypatch.setattr(accounting, "__version__", version)
        monkeypatch.setitem(VERSIONS, "dpledger", version)

    return become


def command(engine: Engine, *words: str) -> Result:
    url = engine.url.render_as_string(hide_password=False)
    result: Result = CliRunner().invoke(app, ["restate", "--database", url, *words])
    return result


def ledger(api: httpx.Client) -> None:
    setup(api)
    append(api, event(0, 100))


def test_the_same_version_restates_nothing(
    api: httpx.Client, engine: Engine, signer: Signer
) -> None:
    ledger(api)
    certified(engine, signer)
    result = command(engine)
    assert (result.exit_code, result.stdout) == (0, "0 restated, 0 of them certified TOO LOW\n")
    assert told(engine, "restatement") == []


def test_a_later_version_with_the_same_answers_restates_nothing(
    api: httpx.Client, engine: Engine, signer: Signer, later: Callable[..., None]
) -> None:
    ledger(api)
    certified(engine, signer)
    later(1.0)
    assert list(restate_all(engine, dry_run=False)) == []
    certified(engine, signer)
    assert told(engine, "restatement") == []
    assert len(told(engine, "certificate")) == 2  # another version says it, too


def test_what_turned_out_too_low_is_appended_and_shouted(
    api: httpx.Client, engine: Engine, signer: Signer, later: Callable[..., None]
) -> None:
    ledger(api)
    before = said(certified(engine, signer))
    (kept,) = told(engine, "certificate")
    later(1.25)
    dry = command(engine, "--dry-run")
    assert dry.exit_code == 1
    assert told(engine, "restatement") == []
    result = command(engine)
    assert result.exit_code == 1
    (line, summary) = result.stdout.splitlines()
    assert line == dry.stdout.splitlines()[0]
    assert line.startswith("TOO LOW: run run at entry 1, delta 1e-05, rdp: version 0.1.0 certified")
    assert summary == "1 restated, 1 of them certified TOO LOW"
    (restated,) = told(engine, "restatement")
    (change,) = restated["changes"]
    old = next(one for one in before["statements"] if one["accountant"] == "rdp")
    assert (change["direction"], change["accountant"]) == ("too_low", "rdp")
    assert change["old"] == {"epsilon": old["epsilon"], "epsilon_lower": old["epsilon_lower"]}
    assert change["new"]["epsilon"] == pytest.approx(1.25 * old["epsilon"])
    assert (restated["old_core_version"], restated["core_version"]) == ("0.1.0", LATER)
    assert restated["position"] == before["log"]["position"]
    assert told(engine, "certificate") == [kept]  # nothing is edited
    (incident,) = api.get("/v1/datasets/data/incidents").json()["incidents"]
    assert incident["kind"] == "certified_too_low"
    assert incident["detail"]["certified"] == old["epsilon"]
    # Once is enough.
    assert command(engine).stdout == "0 restated, 0 of them certified TOO LOW\n"
    assert len(told(engine, "restatement")) == 1


def test_a_ledger_that_tells_of_certificates_and_restatements_is_sound(
    api: httpx.Client, engine: Engine, signer: Signer, later: Callable[..., None]
) -> None:
    ledger(api)
    certified(engine, signer)
    later(1.25)
    assert command(engine).exit_code == 1
    append(api, event(100, 1))
    with snapshot(engine) as connection:
        assert verify(connection, Kept()).broken == []


def test_what_was_higher_than_needed_is_told_quietly(
    api: httpx.Client, engine: Engine, signer: Signer, later: Callable[..., None]
) -> None:
    ledger(api)
    certified(engine, signer)
    later(0.99)
    result = command(engine)
    assert result.exit_code == 0
    assert "TOO LOW: " not in result.stdout
    (restated,) = told(engine, "restatement")
    assert restated["changes"][0]["direction"] == "too_high"
    assert api.get("/v1/datasets/data/incidents").json()["incidents"] == []


def test_asking_again_restates_and_the_new_certificate_says_so(
    api: httpx.Client, engine: Engine, signer: Signer, later: Callable[..., None]
) -> None:
    ledger(api)
    old = certified(engine, signer)
    later(1.25)
    new = certified(engine, signer)
    (restated,) = said(new)["restatements"]
    assert restated["changes"][0]["direction"] == "too_low"
    assert restated["position"] == said(old)["log"]["position"]
    found = verify_bytes(new, public_key=signer.public_key)
    assert "restated by version 0.2.0: what was certified at sequence 1 was TOO LOW" in found.notes
    assert "TOO LOW" in certificate_page(new)
    assert "TOO LOW" not in certificate_page(old)
    certified(engine, signer)
    assert len(told(engine, "restatement")) == 1
    assert command(engine).stdout.startswith("0 restated")


def test_the_later_version_refuses_to_verify_what_is_too_low(
    api: httpx.Client, engine: Engine, signer: Signer, later: Callable[..., None]
) -> None:
    ledger(api)
    old = certified(engine, signer)
    verify_bytes(old, public_key=signer.public_key)
    later(1.25)
    with pytest.raises(InvalidCertificateError, match=r"rdp: TOO LOW: version 0\.2\.0"):
        verify_bytes(old, public_key=signer.public_key)


def test_a_state_of_long_ago_is_restated_from_what_the_log_kept_of_it(
    api: httpx.Client, engine: Engine, signer: Signer, later: Callable[..., None]
) -> None:
    full_world(api)
    before = said(certified(engine, signer, "data", kind="dataset"))
    append(api, event(152, 100))
    append(api, event(30, 5), run="other")
    later(1.5)
    (found,) = restate_all(engine, dry_run=False)
    assert found.too_low
    assert found.content["sequence"] == before["facts"]["sequence"]
    new = {(c["delta"], c["accountant"]): c["new"]["epsilon"] for c in found.content["changes"]}
    assert new == {
        (one["delta"], "rdp"): pytest.approx(1.5 * one["epsilon"])
        for one in before["statements"] if one["accountant"] == "rdp"
    }  # fmt: skip


def test_an_earlier_version_restates_nothing(
    api: httpx.Client, engine: Engine, signer: Signer, later: Callable[..., None]
) -> None:
    ledger(api)
    certified(engine, signer)
    later(1.25, "0.0.9")
    certified(engine, signer)
    assert list(restate_all(engine, dry_run=False)) == []
    assert told(engine, "restatement") == []


def test_of_many_who_restate_at_once_one_does(
    api: httpx.Client, engine: Engine, signer: Signer, later: Callable[..., None]
) -> None:
    ledger(api)
    certified(engine, signer)
    certified(engine, signer, deltas=(1e-7,))
    later(1.25)
    with ThreadPoolExecutor(4) as pool:
        each = list(pool.map(lambda _: list(restate_all(engine, dry_run=False)), range(4)))
    assert sum(map(len, each)) == len(told(engine, "restatement")) == 2


def test_a_second_later_version_restates_what_the_first_one_said(
    api: httpx.Client, engine: Engine, signer: Signer, later: Callable[..., None]
) -> None:
    ledger(api)
    certified(engine, signer)
    later(1.25)
    list(restate_all(engine, dry_run=False))
    later(0.8, "0.3.0")  # of the one before: as it was
    (found,) = restate_all(engine, dry_run=False)
    assert (found.content["old_core_version"], found.too_low) == (LATER, False)


def test_a_log_without_the_facts_is_not_restated_in_silence(
    api: httpx.Client,
    engine: Engine,
    signer: Signer,
    later: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ledger(api)
    certified(engine, signer)
    later(1.25)
    monkeypatch.setattr("service.transparency.certificates.records.facts_of", lambda *_: None)
    result = command(engine)
    assert result.exit_code == 2
    assert "does not hold what was certified" in result.stderr


def test_a_database_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["restate", "--database", "mysql://nowhere"])
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("old", "new", "direction"),
    [
        (1.0, 1.0, None),
        (1.0, 1.0 + 1e-7, None),
        (1.0, 1.0 + 1e-5, "too_low"),
        (1.0, 1.0 - 1e-5, "too_high"),
        (1.0, None, "too_low"),
        (None, 1.0, "too_high"),
        (None, None, None),
        (0.0, 1e-9, "too_low"),
    ],
)
def test_a_certified_epsilon_was_too_low_where_less_is_proved_now(
    old: float | None, new: float | None, direction: str | None
) -> None:
    assert direction_of(old, new) == direction


def test_what_only_one_of_two_certificates_says_is_no_difference() -> None:
    one: dict[str, Any] = {"delta": 1e-5, "accountant": "rdp", "reservations": False}
    low, high = {"epsilon": 1.0, "epsilon_lower": 0.5}, {"epsilon": 2.0, "epsilon_lower": 0.5}
    assert differences([one | low], [one | high | {"delta": 1e-6}]) == []
    assert len(differences([one | low], [one | high])) == 1


def test_versions_are_ordered_by_their_numbers() -> None:
    assert is_later("0.10.0", "0.9.9")
    assert not is_later("0.1.0", "0.1.0")
    assert not is_later("", "0.1.0")


def test_ledger_errors_are_said_in_one_line(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    class SuspendedError(LedgerError):
        slug = "ledger-suspended"

    def refuse(*_given: object, **_more: object) -> Any:
        raise SuspendedError("not now")

    monkeypatch.setattr("service.transparency.certificates.recheck.restate_all", refuse)
    result = command(engine)
    assert (result.exit_code, result.stderr) == (2, "not now\n")
