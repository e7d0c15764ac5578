"""Keys: an admin lists, creates, rotates and revokes them."""

from fastapi import Request

from service.identity import key_administration
from service.identity.authentication import Admin, KeyRing
from service.identity.key_administration import (
    KeyAnswer,
    KeyPage,
    KeyRevocation,
    KeyRotation,
    KeySecret,
    NewKey,
)
from service.ledger.append.write_access import run_in_write_transaction
from service.storage.engine import snapshot
from service.web.four_eyes import only_person
from service.web.parameters import Database, KeyName, Pages, continuation_token
from service.web.routers import api_router
from service.web.strict_requests import expensive

router = api_router("/v1/keys", tag="keys")


@router.get("")
@expensive
def list_keys(query: Pages, database: Database, _caller: Admin, request: Request) -> KeyPage:
    """Every key ever created, without its secret, the oldest first."""
    ring: KeyRing = request.app.state.keys
    with snapshot(database) as connection:
        uses = ring.uses.latest(connection)
        found, after = key_administration.keys_page(
            connection, uses, after=query.after, size=query.page_size
        )
    return KeyPage(keys=found, next_page_token=continuation_token(after))


@router.post("", status_code=201)
def create_key(new: NewKey, database: Database, caller: Admin, request: Request) -> KeySecret:
    """Create a key; its secret is in this answer and never told again."""
    own = only_person(request, caller)
    secret = run_in_write_transaction(
        database,
        lambda connection: key_administration.issue_key(
            connection, new, by=caller.name, own_person=own
        ),
    )
    request.app.state.keys.changed()
    return secret


@router.post("/{key}:rotate")
def rotate_key(
    key: KeyName, asked: KeyRotation, database: Database, caller: Admin, request: Request
) -> KeySecret:
    """Give a key a new secret; the old one works until the grace has passed."""
    own = only_person(request, caller)
    secret = run_in_write_transaction(
        database,
        lambda connection: key_administration.renew_key(
            connection, key, asked, by=caller.name, own_person=own
        ),
    )
    request.app.state.keys.changed()
    return secret


@router.post("/{key}:revoke")
def revoke_key(
    key: KeyName, asked: KeyRevocation, database: Database, caller: Admin, request: Request
) -> KeyAnswer:
    """End every secret of a key for a reason; the last admin key only if its name confirms it."""
    ended = run_in_write_transaction(
        database,
        lambda connection: key_administration.withdraw_key(connection, key, asked, by=caller.name),
    )
    request.app.state.keys.changed()
    return ended
