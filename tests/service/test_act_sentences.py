"""The audit log says each act in a sentence."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, insert, select

from service.clock import now
from service.identity.keys import Role, create_key, revoke_key, rotate_key
from service.ledger.log.leaves import KINDS
from service.storage import migrations
from service.storage.engine import connect, snapshot, transaction
from service.storage.tables import acts
from service.web.dashboard.pages.act_sentences import act_sentence
from tests.service.certifying import signer_of, signing
from tests.service.samples import BUDGET, FULL, SAMPLING, WRITER, Json, append, dataset, event, run
from tests.service.test_listing import page, words

LOST: Json = {
    "suspended": {"reason": "the log is shorter than the one that was signed", "lost": []},
    "recovering": {"reason": "a disk was lost"},
    "reconciled": {"statement": {}, "signature": "", "public_key": ""},
    "copied": {"from": "7f3a", "to": "91bc", "reason": "a trial"},
    "restored": {
        "core_version": "0.1.0",
        "entries": 12400,
        "schema_revision": "1",
        "sha256": "ab",
        "taken_at": "2026-05-04T14:20:00+00:00",
    },
    "restatement": {
        "about": {"kind": "run", "name": "run"},
        "core_version": "0.2.0",
        "changes": [],
    },
}
SAID = {
    "appends": "Key start-token records the steps of run from here on.",
    "branch": "run, branch again: continues main from step 4, in the same order of the records.",
    "certificate": "Issued for the run run, by version ",
    "certificate_facts": "Facts that certificates name by their digest, ",
    "change_decision": "The change that start-token asked for (limit) was withdrawn by ",
    "change_request": "start-token asks for a change (limit), because: a larger model",
    "copied": "A copy of ledger 7f3a got an identity of its own, because: a trial",
    "correction": "run: step 0 ran as gaussian, full, because: the log says so",
    "dataset": "data was registered with 60,000 records; the privacy unit is example.",
    "finding": "A finding about the sampling of run: declared.",
    "incident_note": "Overdraft of ",
    "key_created": "lab, trainer, of lab, for every dataset.",
    "key_revoked": "lab works no more, because: lost",
    "key_rotated": "lab has a new secret; the one before works until ",
    "lineage": "Made from data: each of its records has exactly one row here.",
    "overdraft": "The limit of the dataset data is exceeded by run run: ε ",
    "reconciled": "Recovery ended: the ledger accepts every write again.",
    "recovering": "Steps that were lost may be sent again, because: a disk was lost",
    "release": "The parameters of run after step 3 were shown.",
    "reservation": "held holds steps 0 to 1 of quiet until ",
    "reservation_end": "held of quiet is released from step 1 on.",
    "restatement": "Version 0.2.0 recomputed a certificate of the run run.",
    "restored": "Restored from the backup of 2026-05-04 14:20 UTC, which has 12,400 entries.",
    "run": "run was registered, with a budget of ε ",
    "run_end_reason": "quiet was closed as finished, because: it is done",
    "run_state": "quiet is finished.",
    "settings": "Limit ε 5 at δ = 1e-5, frozen, because: a pause",
    "suspended": "The ledger accepts no writes, because: the log is shorter than",
}


def post(api: httpx.Client, path: str, body: Json) -> Json:
    answer = api.post(f"/v1{path}", json=body)
    assert answer.is_success, answer.text
    found: Json = answer.json()
    return found


def live(api: httpx.Client, engine: Engine) -> None:
    """Do what makes an act of every kind, but for those in LOST."""
    post(api, "/datasets", dataset(budget=BUDGET))
    child = {"parents": ["data"], "rows_per_parent_record": "exactly_one"}
    post(api, "/datasets", dataset("made", **child))
    post(api, "/runs", run(budget=BUDGET))
    post(api, "/runs", run("quiet", dataset="made"))
    quiet = {"mechanism": {"kind": "gaussian", "noise_multiplier": 900.0}, "sampling": FULL}
    asked = {"name": "held", "event": {"steps": 2, **quiet}, "ttl_seconds": 60}
    post(api, "/runs/quiet/reservations", asked)
    post(api, "/reservations/held:release", {"last_step": 0})
    post(api, "/runs/quiet:finish", {"state": "finished", "reason": "it is done"})
    assert append(api, event(0, 5, sampling=FULL)).status_code == 201
    further = {"name": "again", "writer": WRITER, "from_step": 4, "order": "continued"}
    post(api, "/runs/run/branches", further)
    post(api, "/runs/run/corrections", event(0, 1, sampling=FULL) | {"reason": "the log says so"})
    post(api, "/runs/run/releases", {"step": 3})
    post(api, "/runs/run/findings", SAMPLING)
    found = api.get("/v1/incidents", params={"kind": "overdraft"}).json()["incidents"]
    post(api, f"/incidents/{found[0]['id']}/notes", {"action": "comment", "text": "seen"})
    wanted = {"reason": "a larger model", "budget": {"epsilon": 5.0, "delta": 1e-5}}
    number = post(api, "/datasets/data/requests", wanted)["id"]
    post(api, f"/requests/{number}:withdraw", {"reason": "no"})
    paused = wanted | {"reason": "a pause", "frozen": True}
    changed = api.patch("/v1/datasets/data", json=paused, headers={"If-Match": '"1"'})
    assert changed.is_success, changed.text
    certified = api.get("/v1/runs/run/certificate")
    assert certified.is_success, certified.text
    with transaction(engine) as connection:
        create_key(connection, name="lab", scope=Role.TRAINER)
        rotate_key(connection, "lab")
        revoke_key(connection, "lab", reason="lost")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A ledger on SQLite: a page is the same on any database."""
    folder = tmp_path_factory.mktemp("acts")
    found = connect(f"sqlite:///{folder / 'ledger.db'}")
    migrations.upgrade(found)
    yield found
    found.dispose()


@pytest.fixture(scope="module")
def lived(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    signer = signer_of(tmp_path_factory.mktemp("key"))
    with signing(engine.url.render_as_string(hide_password=False), signer) as api:
        live(api, engine)
        yield api


@pytest.mark.usefixtures("lived")
def test_every_kind_of_act_is_a_sentence(engine: Engine) -> None:
    with snapshot(engine) as connection:
        rows = connection.execute(select(acts.c.kind, acts.c.content).order_by(acts.c.id)).all()
    kept = [(row.kind, json.loads(row.content)) for row in rows] + list(LOST.items())
    assert {kind for kind, _ in kept} == set(KINDS) == set(SAID)
    told = {
        kind: [act_sentence(kind, said) for name, said in kept if name == kind] for kind in SAID
    }
    for kind, beginning in SAID.items():
        assert any((one or "").startswith(beginning) for one in told[kind]), (kind, told[kind])
        assert None not in told[kind]


def test_an_act_that_was_tampered_with_is_shown(lived: httpx.Client, engine: Engine) -> None:
    odds: list[Any] = [{}, [], None, {"run": 3, "state": 5, "reopened": "x"}, {"name": "r"}]
    for said in odds:
        for kind in KINDS:
            assert isinstance(act_sentence(kind, said), str | None)
    assert act_sentence("unknown", {}) is None
    odd = {"kind": "run", "content": "{}", "acted_at": now(), "leaf": b"", "after_sequence": 0}
    with transaction(engine) as connection:
        connection.execute(insert(acts).values(odd | {"dataset_id": None, "position": 10**6}))
    assert "Not readable as an act of its kind." in words(page(lived, "/log", {"kind": "run"}))
