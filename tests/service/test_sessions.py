"""Sessions: begun with a key, kept as hashes, over at their time and with their key."""

from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine, func, insert, select, update

from service.clock import now
from service.identity import sessions
from service.identity.keys import digest_of
from service.operations import backup
from service.storage.engine import connect, snapshot, transaction
from service.storage.migrations import upgrade
from service.storage.tables import sessions as table
from service.transparency import signing
from service.transparency.signing import Signer
from tests.service.dumps import dump

KEY = digest_of("dpl_one")
SECRET = b"s" * 32


def begin(engine: Engine, key: str = KEY) -> str:
    with transaction(engine) as connection:
        return sessions.begin_session(connection, SECRET, key)


def key_of(engine: Engine, secret: bytes, token: str) -> str | None:
    session = sessions.session_of(engine, secret, token)
    return None if session is None else session.key_digest


def count(engine: Engine) -> int:
    with snapshot(engine) as connection:
        return connection.scalar(select(func.count()).select_from(table)) or 0


def later(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    moment = now() + timedelta(seconds=seconds)
    monkeypatch.setattr(sessions, "now", lambda: moment)


def test_a_session_leads_to_the_key_that_began_it(engine: Engine) -> None:
    tokens = [begin(engine), begin(engine, digest_of("dpl_two"))]
    found = [key_of(engine, SECRET, token) for token in tokens]
    assert found == [KEY, digest_of("dpl_two")]


def test_nothing_that_opens_a_session_is_kept(engine: Engine) -> None:
    token = begin(engine)
    kept = dump(engine)["sessions"]
    assert token not in repr(kept)
    assert digest_of(token) in repr(kept)
    assert key_of(engine, SECRET, digest_of(token)) is None


@pytest.mark.parametrize("token", ["", "a", "a" * 87, "a" * 10_000, "é" * 87, "\0" * 87])
def test_what_was_never_given_out_opens_nothing(engine: Engine, token: str) -> None:
    begin(engine)
    assert key_of(engine, SECRET, token) is None


def test_who_can_write_rows_alone_signs_in_as_nobody(engine: Engine) -> None:
    own, forged = begin(engine), "f" * sessions.TOKEN_LENGTH
    with transaction(engine) as connection:
        row = connection.execute(select(table)).one()._asdict()
        connection.execute(insert(table).values(row | {"digest": digest_of(forged)}))
    assert key_of(engine, SECRET, forged) is None  # a row for a token of their own
    assert key_of(engine, SECRET, own) == KEY
    other = signing.secret_of(None)
    assert key_of(engine, other, own) is None
    with transaction(engine) as connection:  # their own session, turned into the admin's
        connection.execute(update(table).values(key_digest=digest_of("dpl_two")))
    assert key_of(engine, SECRET, own) is None
    with transaction(engine) as connection:
        later = now() + timedelta(days=99)
        connection.execute(update(table).values(key_digest=KEY, expires_at=later))
    assert key_of(engine, SECRET, own) is None


def test_every_process_with_the_signing_key_knows_the_same_sessions(tmp_path: Path) -> None:
    signer = Signer.create(tmp_path / "one")
    again = Signer.load(tmp_path / "one")
    assert signing.secret_of(signer) == signing.secret_of(again)
    assert signing.secret_of(signer) != signing.secret_of(Signer.create(tmp_path / "other"))
    assert signing.secret_of(None) != signing.secret_of(None)


def test_a_session_is_over_at_its_time(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    token = begin(engine)
    later(monkeypatch, sessions.SESSION_SECONDS - 60)
    assert key_of(engine, SECRET, token) == KEY
    later(monkeypatch, sessions.SESSION_SECONDS + 1)
    assert key_of(engine, SECRET, token) is None


def test_an_ended_session_is_over_and_others_are_not(engine: Engine) -> None:
    ended, other = begin(engine), begin(engine)
    with transaction(engine) as connection:
        sessions.end(connection, ended)
    assert key_of(engine, SECRET, ended) is None
    assert key_of(engine, SECRET, other) == KEY


def test_old_sessions_make_room(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "SESSIONS_MAX", 3)
    other = begin(engine, digest_of("dpl_two"))
    tokens = []
    for second in range(5):
        later(monkeypatch, second)
        tokens.append(begin(engine))
    there = [key_of(engine, SECRET, token) is not None for token in (other, *tokens)]
    assert there == [True, False, False, True, True, True]
    later(monkeypatch, 2 * sessions.SESSION_SECONDS)
    begin(engine)
    assert count(engine) == 1


def test_forms_of_two_sessions_differ_and_tell_no_token() -> None:
    token = "a" * sessions.TOKEN_LENGTH
    form = sessions.csrf_token(token)
    assert form == sessions.csrf_token(token)
    assert form != sessions.csrf_token("b" * sessions.TOKEN_LENGTH)
    assert form != digest_of(token)


def test_nobody_is_signed_in_after_a_restore(engine: Engine, tmp_path: Path) -> None:
    begin(engine)
    summary = backup.take_backup(engine, tmp_path / "backup")
    assert summary.rows["sessions"] == 0
    assert count(engine) == 1  # who is signed in here still is
    other = connect(f"sqlite:///{tmp_path / 'other.db'}")
    upgrade(other, new=True)
    backup.restore(other, tmp_path / "backup", by="tests")
    assert count(other) == 0
    other.dispose()
