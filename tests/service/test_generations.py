"""Generations: only the holder of the service's key abandons what was lost."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, update
from typer.testing import CliRunner

from benchmarks.rewriting import Log, refit, told
from service.cli.main import app
from service.errors import LedgerSuspendedError
from service.ledger.log.leaves import Act
from service.ledger.log.leaves import append_leaves as append_acts
from service.schemas.event_codec import canonical
from service.storage.engine import snapshot, transaction
from service.storage.tables import installation
from service.transparency.checkpoints import LogHeads, Part
from service.transparency.log_heads import Head
from service.transparency.proofs import compare_checkpoint
from service.transparency.reconciliation import (
    RECONCILIATION_FORMAT,
    Reconciliation,
    ReconciliationStatement,
    ReportedHead,
    Suspension,
    list_effective,
    merge_reported_heads,
)
from service.transparency.recovery import Reconciled, reconcile, recover, standing
from service.transparency.signing import Signer
from service.transparency.verification.ledger import verify
from service.transparency.verification.report import VerificationReport
from service.transparency.verification.saved_heads import of_checkpoints, of_witness
from service.transparency.witness import read_witness
from service.transparency.witness_follower import Follower
from tests.conftest import without_triggers
from tests.service.restored import put_back, taken
from tests.service.samples import Json, append, dataset, event, setup

ELSEWHERE = "1f" * 16  # another ledger's id


@pytest.fixture
def signer(tmp_path: Path) -> Signer:
    return Signer.create(tmp_path / "signing_key")


@pytest.fixture
def stranger(tmp_path: Path) -> Signer:
    return Signer.create(tmp_path / "stranger")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "witness"


@pytest.fixture
def follower(engine: Engine, signer: Signer, path: Path) -> Iterator[Follower]:
    one = Follower(engine, signer, path, seconds=60)
    yield one
    one.close()


def part_of(engine: Engine, signer: Signer) -> Part:
    """What the service signs of the dataset now."""
    with snapshot(engine) as connection:
        return LogHeads.of(connection).part(signer, "data")


def require_suspended(engine: Engine, signer: Signer, kept: Part) -> None:
    with pytest.raises(LedgerSuspendedError):
        compare_checkpoint(engine, signer, kept, by="viewer")
    assert standing(engine).state == "suspended"


def rewrite(engine: Engine) -> None:
    """All entries but the first are gone, and every hash fits again."""
    with transaction(engine) as connection, without_triggers(connection):
        log = Log.read(connection, "data")
        pairs = told(connection, log)
        log.entries = log.entries[:1]
        log.store()
        refit(connection, "data", pairs)


def stated(engine: Engine, **given: Any) -> ReconciliationStatement:
    """What an admin would state who abandons everything, as the ledger is now."""
    with snapshot(engine) as connection:
        present = LogHeads.of(connection)
    lost = [Head(dataset="data", size=10**6, root="0" * 64, steps=0)]
    fields = {
        "format": RECONCILIATION_FORMAT, "ledger_id": present.ledger_id, "generation": 1,
        "reason": "the disk",
        "by": "officer", "abandoned": lost, "continued": list(present.in_order), "not_taken": {},
    }  # fmt: skip
    return ReconciliationStatement.model_validate(fields | given)


def written(engine: Engine, content: Json, *, by: str = "officer") -> None:
    with transaction(engine) as connection:
        append_acts(connection, None, [Act("reconciled", content, by)])


def unsigned(engine: Engine, _signer: Signer, _stranger: Signer) -> None:
    fields = {"generation": 1, "reason": "the disk", "not_taken": {}}
    written(engine, fields | {"abandoned": [{"dataset": "data", "size": 10**6}]})


def by_a_stranger(engine: Engine, _signer: Signer, stranger: Signer) -> None:
    written(engine, Reconciliation.signed(stated(engine), stranger).model_dump())


def with_a_strangers_signature(engine: Engine, signer: Signer, stranger: Signer) -> None:
    content = Reconciliation.signed(stated(engine), stranger).model_dump()
    written(engine, content | {"public_key": signer.public_key, "key_id": signer.key_id})


def of_another_ledger(engine: Engine, signer: Signer, _stranger: Signer) -> None:
    written(engine, Reconciliation.signed(stated(engine, ledger_id=ELSEWHERE), signer).model_dump())


def by_another_admin(engine: Engine, signer: Signer, _stranger: Signer) -> None:
    written(engine, Reconciliation.signed(stated(engine), signer).model_dump(), by="somebody")


def at_another_place(engine: Engine, signer: Signer, _stranger: Signer) -> None:
    content = Reconciliation.signed(stated(engine), signer).model_dump()
    with transaction(engine) as connection:
        append_acts(connection, None, [Act("key_created", {"name": "x"}, "officer")])
    written(engine, content)


def with_another_reason(engine: Engine, signer: Signer, _stranger: Signer) -> None:
    content = Reconciliation.signed(stated(engine), signer).model_dump()
    written(engine, content | {"reason": "another"})


FORGERIES = [
    unsigned, by_a_stranger, with_a_strangers_signature, of_another_ledger, by_another_admin,
    at_another_place, with_another_reason,
]  # fmt: skip


@pytest.mark.parametrize("forge", FORGERIES, ids=lambda forge: forge.__name__)
def test_a_reconciliation_that_the_key_did_not_sign_excuses_nothing(
    api: httpx.Client, engine: Engine, follower: Follower, path: Path, signer: Signer,
    stranger: Signer, forge: Callable[[Engine, Signer, Signer], None],
) -> None:  # fmt: skip
    setup(api)
    for step in range(4):
        append(api, event(step, 1))
    follower.look()
    before, kept = path.read_bytes(), part_of(engine, signer)
    rewrite(engine)
    forge(engine, signer, stranger)
    with snapshot(engine) as connection:
        report = verify(connection, of_witness(path, signer.public_key), generation=1)
    assert "dataset data, entry 2" in report.broken[0].text + report.broken[-1].text
    told_of = [*report.notes, *(one.text for one in report.broken)]
    assert forge is by_a_stranger or any("excuses nothing" in text for text in told_of)
    assert follower.look().state == "suspended"
    assert path.read_bytes() == before
    require_suspended(engine, signer, kept)


def lost(api: httpx.Client, engine: Engine, signer: Signer) -> tuple[Part, Part]:
    """What was signed of two steps, and of five, of which the database has but two."""
    setup(api)
    for step in range(2):
        append(api, event(step, 1))
    short = part_of(engine, signer)
    before = taken(engine)
    append(api, event(2, 3))
    long = part_of(engine, signer)
    put_back(engine, before)
    return short, long


def made_whole(api: httpx.Client, engine: Engine, signer: Signer) -> None:
    with transaction(engine) as connection:
        recover(connection, reason="x", by=None)
    append(api, event(2, 3))
    with transaction(engine) as connection:
        reconcile(connection, Reconciled(reason="the disk"), by=None, signer=signer)


def acts_of(engine: Engine) -> list[Json]:
    with snapshot(engine) as connection:
        state = connection.exec_driver_sql(
            "SELECT content FROM acts WHERE kind = 'reconciled' ORDER BY position"
        )
        return [json.loads(content) for (content,) in state]


def test_a_reconciliation_is_signed_over_what_it_says(
    api: httpx.Client, engine: Engine, signer: Signer
) -> None:
    _short, long = lost(api, engine, signer)
    require_suspended(engine, signer, long)
    made_whole(api, engine, signer)
    (content,) = acts_of(engine)
    said = {name: content[name] for name in content if name not in ("key_id", "public_key")}
    signature = said.pop("signature")
    message = b"dpledger reconciliation 1\n" + canonical(said).encode()
    assert signer.sign(message) == signature  # Ed25519 signs the same bytes the same way
    assert content["abandoned"] == [long.head.model_dump()]
    assert [head["dataset"] for head in content["continued"]] == [None, "data"]


def test_what_is_changed_after_a_reconciliation_is_not_what_it_abandoned(
    api: httpx.Client, engine: Engine, signer: Signer
) -> None:
    short, long = lost(api, engine, signer)
    require_suspended(engine, signer, long)
    made_whole(api, engine, signer)
    verdicts = [
        compare_checkpoint(engine, signer, one, by="viewer").verdict for one in (short, long)
    ]
    assert verdicts == ["extends", "abandoned"]
    rewrite(engine)
    require_suspended(engine, signer, short)
    with transaction(engine) as connection:
        connection.execute(update(installation).values(suspended=None))
    require_suspended(engine, signer, long)


def test_what_nobody_showed_to_the_service_cannot_be_abandoned(
    api: httpx.Client, engine: Engine, signer: Signer
) -> None:
    """Somebody adds to the list of what is lost while an admin thinks about it."""
    _short, long = lost(api, engine, signer)
    require_suspended(engine, signer, long)
    with transaction(engine) as connection:
        row = connection.execute(installation.select()).one()
        stored = json.loads(row.suspended)
        stored["lost"][0]["size"] = 10**6
        connection.execute(update(installation).values(suspended=canonical(stored)))
    made_whole(api, engine, signer)
    (content,) = acts_of(engine)
    assert content["abandoned"] == []
    require_suspended(engine, signer, long)  # so that whoever saw it is not told a lie


def test_a_list_that_was_changed_is_not_signed_again(
    api: httpx.Client, engine: Engine, signer: Signer
) -> None:
    short, long = lost(api, engine, signer)
    require_suspended(engine, signer, long)
    forged = ReportedHead(dataset="other", size=9, root="0" * 64, steps=0, generation=0)
    with transaction(engine) as connection:
        row = connection.execute(installation.select()).one()
        stored = Suspension.read(row.suspended)
        changed = stored.model_copy(update={"lost": [*stored.lost, forged]})
        connection.execute(update(installation).values(suspended=canonical(changed.model_dump())))
    require_suspended(engine, signer, long)
    assert [one.head for one in standing(engine).lost] == [long.head]
    assert short.head.size < long.head.size


@pytest.mark.parametrize("text", ["", "{", "[]", '{"state":"open"}'])
def test_a_suspension_that_cannot_be_read_suspends(engine: Engine, text: str) -> None:
    with transaction(engine) as connection:
        connection.execute(update(installation).values(suspended=text))
    found = standing(engine)
    assert (found.state, found.lost) == ("suspended", ())
    assert "cannot be read" in str(found.reason)


def test_of_what_was_lost_the_longest_is_known_and_the_most_steps() -> None:
    head = {"dataset": "data", "root": "0" * 64}
    one = ReportedHead(size=9, steps=5, generation=0, **head)
    other = ReportedHead(size=7, steps=6, generation=1, **head)
    (found,) = merge_reported_heads([one, other])
    assert (found.size, found.steps, found.generation) == (9, 6, 1)
    assert merge_reported_heads([other, one]) == [found]


def test_a_generation_begins_once_for_a_key_and_a_ledger(
    engine: Engine, signer: Signer, stranger: Signer
) -> None:
    def of(generation: int, by: Signer = signer, **given: Any) -> Reconciliation:
        return Reconciliation.signed(stated(engine, generation=generation, **given), by)

    own = of(1)
    others = [of(5, stranger), of(6, ledger_id=ELSEWHERE)]
    listed = [others[0], own, of(1, reason="again"), others[1], of(3), of(2)]
    found = list_effective(listed, ledger_id=own.ledger_id, public_key=signer.public_key)
    assert [(one.generation, one.reason) for one in found] == [(1, "the disk"), (3, "the disk")]


def test_a_generation_that_had_begun_before_is_broken(engine: Engine, signer: Signer) -> None:
    for _ in range(2):
        written(engine, Reconciliation.signed(stated(engine), signer).model_dump())
    with snapshot(engine) as connection:
        (found,) = verify(connection).broken
    assert (found.position, found.why[:34]) == (1, "begins a generation that had begun")


# ---- verify, which must be told of it


def verified(engine: Engine, kept: Any, *, generation: int) -> VerificationReport:
    with snapshot(engine) as connection:
        return verify(connection, kept, generation=generation)


def test_what_was_kept_before_a_generation_counts_until_who_verifies_says_to_know_of_it(
    api: httpx.Client, engine: Engine, follower: Follower, path: Path, signer: Signer,
    tmp_path: Path, database_url: str,
) -> None:  # fmt: skip
    setup(api)
    append(api, event(0, 1), event(1, 1))
    before = taken(engine)
    append(api, event(2, 3))
    follower.look()
    checkpoint = tmp_path / "checkpoint"
    checkpoint.write_text(canonical(part_of(engine, signer).model_dump()))
    put_back(engine, before)
    assert follower.look().state == "suspended"
    made_whole(api, engine, signer)
    assert follower.look().state == "open"
    seen = read_witness(path, signer.public_key)
    assert ([one.generation for one in seen.ended], seen.generation) == ([0], 1)
    for kept in (of_witness(path, signer.public_key), of_checkpoints(checkpoint, None)):
        unknown = verified(engine, kept, generation=0)
        assert len(unknown.broken) >= 1
        assert "say --generation 1" in unknown.notes[0]
        known = verified(engine, kept, generation=1)
        assert known.broken == []
        assert "Generation 1 was begun by the command line: the disk" in known.notes[0]

    def asked(*words: str) -> int:
        given = ["verify", database_url, "--witness", str(path), *words]
        code: int = CliRunner().invoke(app, given).exit_code
        return code

    assert (asked(), asked("--generation", "1", "--public-key", signer.public_key)) == (1, 0)
    rewrite(engine)
    assert verified(engine, of_checkpoints(checkpoint, None), generation=1).broken


def test_whether_it_is_suspended_is_what_the_acts_say(
    api: httpx.Client, engine: Engine, signer: Signer
) -> None:
    _short, long = lost(api, engine, signer)
    require_suspended(engine, signer, long)
    why = "dataset None"
    with transaction(engine) as connection:
        stored = connection.execute(installation.select()).one().suspended
        assert verify(connection).broken == []
    for changed in (None, stored.replace("suspended", "recovering"), '{"state":"suspended"}',
                    stored.replace('"size":', '"size":1')):  # fmt: skip
        with transaction(engine) as connection:
            connection.execute(update(installation).values(suspended=changed))
            found = [one.text for one in verify(connection).broken]
            connection.execute(update(installation).values(suspended=stored))
        (why,) = found
        assert why.startswith("installation, whether it is suspended, and what it has lost: ")
    with transaction(engine) as connection:
        recover(connection, reason="x", by=None)
        assert verify(connection).broken == []
    append(api, event(2, 3))
    with transaction(engine) as connection:
        reconcile(connection, Reconciled(reason="x"), by=None, signer=signer)
        assert verify(connection).broken == []
        connection.execute(update(installation).values(suspended=stored))
        assert len(verify(connection).broken) == 1
        connection.execute(update(installation).values(suspended=None))


def test_a_second_loss_that_is_shown_while_suspended_is_told_as_well(
    api: httpx.Client, engine: Engine, signer: Signer
) -> None:
    setup(api)
    before = taken(engine)
    api.post("/v1/datasets", json=dataset("another"))
    with snapshot(engine) as connection:
        other = LogHeads.of(connection).part(signer, "another")
    append(api, event(0, 1))
    long = part_of(engine, signer)
    put_back(engine, before)
    for kept in (long, other, long):
        require_suspended(engine, signer, kept)
    with snapshot(engine) as connection:
        assert verify(connection).broken == []
    assert [one.head.dataset for one in standing(engine).lost] == ["data", "another"]
