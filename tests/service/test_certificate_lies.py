"""A service that lies from the beginning, log, key and all: what can be computed is found out."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Connection, Engine, update

from service.errors import LedgerSuspendedError
from service.storage.engine import transaction
from service.storage.tables import installation
from service.transparency.certificates import issue
from service.transparency.certificates.envelope import InvalidCertificateError
from service.transparency.certificates.facts import facts_of_dataset, facts_of_run
from service.transparency.certificates.schema import Statement
from service.transparency.certificates.statements import statements_of
from service.transparency.certificates.verify import verify_bytes
from service.transparency.signing import Signer
from tests.service.certifying import certified, signer_of, told
from tests.service.samples import Json, append, dataset, event, run, setup


@pytest.fixture
def signer(tmp_path: Path) -> Signer:
    return signer_of(tmp_path)


@pytest.fixture
def ledger(api: httpx.Client) -> None:
    setup(api)
    append(api, event(0, 100))


def refused(raw: bytes, signer: Signer) -> str:
    with pytest.raises(InvalidCertificateError) as error:
        verify_bytes(raw, public_key=signer.public_key)
    return str(error.value)


def _lower_upper(found: list[Statement]) -> list[Statement]:
    last = found[-1]
    assert last.epsilon is not None
    return [*found[:-1], last.model_copy(update={"epsilon": last.epsilon * (1 - 1e-5)})]


def _lower_lower(found: list[Statement]) -> list[Statement]:
    return [found[0].model_copy(update={"epsilon_lower": None}), *found[1:]]


STATED: dict[str, tuple[Callable[[list[Statement]], list[Statement]], str]] = {
    "an upper bound too low": (_lower_upper, "rdp: epsilon is not what version"),
    "no lower bound": (_lower_lower, "best: epsilon_lower is not what version"),
    "one accountant left out": (lambda found: found[:-1], "not one for each delta"),
    "one said twice": (lambda found: [*found, found[0]], "not one for each delta"),
    "another status": (
        lambda found: [found[0].model_copy(update={"status": "derived"}), *found[1:]], "status",
    ),
}  # fmt: skip


@pytest.mark.usefixtures("ledger")
@pytest.mark.parametrize("lie", STATED)
def test_what_is_stated_is_computed_again(
    engine: Engine, signer: Signer, monkeypatch: pytest.MonkeyPatch, lie: str
) -> None:
    change, named = STATED[lie]

    def stated(*given: Any) -> list[Statement]:
        return change(statements_of(*given))

    monkeypatch.setattr("service.transparency.certificates.issue.affordable_statements", stated)
    assert named in refused(certified(engine, signer), signer)


def _in_run(name: str, value: object) -> Callable[[Json], None]:
    def change(facts: Json) -> None:
        facts["homes"][0]["runs"][0]["ledger"][name] = value

    return change


def _in_home(name: str, value: object) -> Callable[[Json], None]:
    def change(facts: Json) -> None:
        facts["homes"][0][name] = value

    return change


def _subject(facts: Json) -> None:
    facts["subject"]["name"] = "better"


MIXED: dict[str, Callable[[Json], None]] = {
    "the ledger of another run": _in_run("run", "other"),
    "the ledger of another dataset": _in_run("dataset", "other"),
    "a ledger under another relation": _in_run("neighboring_relation", "replace_special"),
    "a ledger of more records": _in_run("dataset_size", 10**9),
    "a dataset of more records": _in_home("dataset_size", 10**9),
    "another dataset": _in_home("dataset", "other"),
    "another subject": _subject,
}


@pytest.mark.usefixtures("ledger")
@pytest.mark.parametrize("mix", MIXED)
def test_facts_that_do_not_fit_together_are_found_out(
    engine: Engine, signer: Signer, monkeypatch: pytest.MonkeyPatch, mix: str
) -> None:
    def facts_of(connection: Connection, name: str) -> tuple[Json, float | None]:
        facts, delta = facts_of_run(connection, name)
        MIXED[mix](facts)
        return facts, delta

    monkeypatch.setitem(issue._READERS, "run", facts_of)
    assert refused(certified(engine, signer), signer).startswith("facts: they are not of")


@pytest.mark.usefixtures("ledger")
def test_a_smaller_dataset_is_not_certified_as_one_with_every_record(
    api: httpx.Client, engine: Engine, signer: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {"parents": ["data"], "rows_per_parent_record": "at_most_one", "dataset_size": 6000}
    assert api.post("/v1/datasets", json=dataset("child", **made)).status_code == 201
    api.post("/v1/runs", json=run("small", dataset="child"))
    append(api, event(0, 50), run="small")
    verify_bytes(certified(engine, signer, "data", kind="dataset"), public_key=signer.public_key)

    def facts_of(connection: Connection, name: str) -> tuple[Json, float | None]:
        facts, delta = facts_of_dataset(connection, name)
        facts["homes"][1]["exactly_one"] = True
        return facts, delta

    monkeypatch.setitem(issue._READERS, "dataset", facts_of)
    raw = certified(engine, signer, "data", kind="dataset")
    assert refused(raw, signer).startswith("facts: they are not of")


@pytest.mark.usefixtures("ledger")
def test_a_ledger_that_contradicts_itself_is_found_out(
    engine: Engine, signer: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def facts_of(connection: Connection, name: str) -> tuple[Json, float | None]:
        facts, delta = facts_of_run(connection, name)
        facts["homes"][0]["runs"][0]["ledger"]["events"][0]["first_step"] = 5
        return facts, delta

    monkeypatch.setitem(issue._READERS, "run", facts_of)
    honest = statements_of
    monkeypatch.setattr("service.transparency.certificates.issue.account_of", lambda facts: facts)
    ran = facts_of_run

    def stated(_facts: object, deltas: list[float]) -> list[Statement]:
        from service.transparency.certificates.schema import Facts
        from service.transparency.certificates.statements import account_of

        with engine.connect() as connection:
            facts, _ = ran(connection, "run")
        return honest(account_of(Facts.model_validate(facts)), deltas)

    monkeypatch.setattr("service.transparency.certificates.issue.affordable_statements", stated)
    assert "cannot be accounted" in refused(certified(engine, signer), signer)


@pytest.mark.usefixtures("ledger")
def test_a_ledger_that_is_suspended_meanwhile_is_told_of_nothing(
    engine: Engine, signer: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    why = json.dumps({"state": "suspended", "generation": 0, "lost": [], "reason": "rolled back"})

    def stated(*given: Any) -> list[Statement]:
        with transaction(engine) as connection:
            connection.execute(update(installation).values(suspended=why))
        return statements_of(*given)

    monkeypatch.setattr("service.transparency.certificates.issue.affordable_statements", stated)
    with pytest.raises(LedgerSuspendedError):
        certified(engine, signer)
    assert told(engine, "certificate") == []


@pytest.mark.usefixtures("ledger")
@pytest.mark.parametrize("version", ["0.1.1", "99.0", "0.1.0+b", "0.0.1", "none"])
@pytest.mark.parametrize("change", [{"epsilon": 0.0, "epsilon_lower": None}, {"steps": 1}])
def test_no_name_of_a_version_excuses_a_number_that_this_one_cannot_prove(
    engine: Engine, signer: Signer, monkeypatch: pytest.MonkeyPatch, version: str, change: Json
) -> None:
    def stated(*given: Any) -> list[Statement]:
        return [one.model_copy(update=change) for one in statements_of(*given)]

    versions = {"dpledger": version, "numpy": "2", "scipy": "1", "python": "3"}
    monkeypatch.setattr("service.transparency.certificates.issue.affordable_statements", stated)
    monkeypatch.setattr("service.transparency.certificates.issue.VERSIONS", versions)
    said = refused(certified(engine, signer), signer)
    assert "epsilon contradicts" in said or "steps does not follow" in said or "proves no" in said


@pytest.mark.usefixtures("ledger")
@pytest.mark.parametrize("version", ["0.0.1", "99.0"])
def test_what_an_epsilon_rests_on_is_noted_where_another_version_is_to_have_said_it(
    engine: Engine, signer: Signer, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    def stated(*given: Any) -> list[Statement]:
        first, *others = statements_of(*given)
        return [first.model_copy(update={"status": "derived", "assumptions": []}), *others]

    monkeypatch.setattr("service.transparency.certificates.issue.affordable_statements", stated)
    monkeypatch.setattr(
        "service.transparency.certificates.issue.VERSIONS",
        {"dpledger": version, "numpy": "2", "scipy": "1", "python": "3"},
    )
    found = verify_bytes(certified(engine, signer), public_key=signer.public_key)
    (note,) = [one for one in found.notes if "not as version" in one]
    assert note.startswith("delta 1e-05, best: status and assumptions not as version")
    assert note.endswith(f"verify with the version that it names, {version}")


@pytest.mark.usefixtures("ledger")
def test_a_certificate_names_the_versions_that_computed_it_and_nothing_else(
    engine: Engine, signer: Signer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.transparency.certificates.issue.VERSIONS", {"dpledger": "0.1.0"})
    assert "versions" in refused(certified(engine, signer), signer)
