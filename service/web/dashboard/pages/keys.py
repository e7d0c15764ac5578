"""The pages of keys: an admin lists, creates, rotates and revokes them."""

from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from sqlalchemy import Engine

from service.errors import AnotherPersonError, ConflictError, InvalidRequestError, LedgerError
from service.identity import key_administration
from service.identity.authentication import Caller, KeyRing
from service.identity.key_administration import KeyAnswer, KeySecret
from service.ledger.append.write_access import run_in_write_transaction
from service.storage.engine import snapshot
from service.transparency.activity import acts_of_key
from service.web.dashboard.forms import key_form
from service.web.dashboard.forms.shown_form import ShownForm
from service.web.dashboard.rendering import PageRoute, render
from service.web.dashboard.viewer import PageAdmin, PostedForm
from service.web.four_eyes import only_person
from service.web.parameters import Database, KeyName
from service.web.strict_requests import expensive

router = APIRouter(route_class=PageRoute, include_in_schema=False)
SHOWN_KEYS_MAX: Final = 2000
_REFUSALS: Final = (InvalidRequestError, ConflictError, AnotherPersonError)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """What the page of a key says beside its facts."""

    secret: KeySecret | None = None
    rotation: ShownForm = field(default_factory=lambda: ShownForm(key_form.ROTATED))
    revocation: ShownForm = field(default_factory=ShownForm)


@router.get("/keys")
@expensive
def keys_page(request: Request, database: Database, viewer: PageAdmin) -> Response:
    """Every key, and the form of a new one."""
    return _list(request, database, viewer, ShownForm(key_form.BLANK_KEY))


@router.post("/keys")
@expensive
def create_key(
    request: Request, database: Database, viewer: PageAdmin, form: PostedForm
) -> Response:
    """Create a key; its secret is on the page that answers, and on no other."""
    first = request.app.state.keys.start_token is not None
    try:
        new = key_form.key_of(form)
        secret = run_in_write_transaction(
            database,
            lambda connection: key_administration.issue_key(
                connection, new, by=viewer.name, own_person=only_person(request, viewer)
            ),
        )
    except _REFUSALS as error:
        shown = ShownForm.refused(form, error, key_form.NEW_KEY_FIELDS)
        return _list(request, database, viewer, shown, status=_status(error))
    blank = ShownForm(key_form.BLANK_KEY)
    return _list(request, database, viewer, blank, secret=secret, first=first)


@router.get("/keys/{key}")
def key_page(key: KeyName, request: Request, database: Database, viewer: PageAdmin) -> Response:
    """One key: what it may do, how it was changed, and the forms that change it."""
    return _one(key, request, database, viewer, _Told())


@router.get("/keys/{key}/rotate")
@router.get("/keys/{key}/revoke")
def key_forms(key: KeyName, _viewer: PageAdmin) -> Response:
    """Where the forms are, for a reader who loads the answer to one again."""
    return RedirectResponse(f"/keys/{key}", HTTPStatus.SEE_OTHER)


@router.post("/keys/{key}/rotate")
def rotate_key(
    key: KeyName, request: Request, database: Database, viewer: PageAdmin, form: PostedForm
) -> Response:
    """Give a key a new secret, which is on the page that answers, and on no other."""
    try:
        asked = key_form.rotation_of(form)
        secret = run_in_write_transaction(
            database,
            lambda connection: key_administration.renew_key(
                connection, key, asked, by=viewer.name, own_person=only_person(request, viewer)
            ),
        )
    except _REFUSALS as error:
        told = _Told(rotation=ShownForm.refused(form, error, key_form.KEY_FIELDS))
        return _one(key, request, database, viewer, told, status=_status(error))
    return _one(key, request, database, viewer, _Told(secret=secret))


@router.post("/keys/{key}/revoke")
def revoke_key(
    key: KeyName, request: Request, database: Database, viewer: PageAdmin, form: PostedForm
) -> Response:
    """End a key for a reason."""
    try:
        asked = key_form.revocation_of(form)
        run_in_write_transaction(
            database,
            lambda connection: key_administration.withdraw_key(
                connection, key, asked, by=viewer.name
            ),
        )
    except _REFUSALS as error:
        told = _Told(revocation=ShownForm.refused(form, error, key_form.KEY_FIELDS))
        return _one(key, request, database, viewer, told, status=_status(error))
    return RedirectResponse(f"/keys/{key}", HTTPStatus.SEE_OTHER)


def _status(error: LedgerError) -> HTTPStatus:
    wrong = isinstance(error, InvalidRequestError)
    return HTTPStatus.UNPROCESSABLE_ENTITY if wrong else HTTPStatus.CONFLICT


def _list(
    request: Request,
    database: Engine,
    viewer: Caller,
    form: ShownForm,
    *,
    secret: KeySecret | None = None,
    first: bool = False,
    status: HTTPStatus = HTTPStatus.OK,
) -> Response:
    ring: KeyRing = request.app.state.keys
    with snapshot(database) as connection:
        uses = ring.uses.latest(connection)
        found, more = key_administration.keys_page(connection, uses, after=0, size=SHOWN_KEYS_MAX)
    told = {"form": form, "secret": secret, "first": first, "more": more is not None}
    return render(
        request, "keys.html", viewer=viewer, status_code=status, keys=_in_order(found), **told
    )


def _in_order(found: list[KeyAnswer]) -> list[KeyAnswer]:
    """Those that work first, each group in the order of creation."""
    return sorted(found, key=lambda one: one.state != "active")


def _one(
    name: str,
    request: Request,
    database: Engine,
    viewer: Caller,
    told: _Told,
    *,
    status: HTTPStatus = HTTPStatus.OK,
) -> Response:
    ring: KeyRing = request.app.state.keys
    with snapshot(database) as connection:
        found = key_administration.find_key(connection, name, ring.uses.latest(connection))
        acts = acts_of_key(connection, name)
        last = key_administration.is_last_admin(connection, name)
    return render(
        request,
        "key.html",
        viewer=viewer,
        status_code=status,
        key=found,
        acts=acts[::-1],
        is_last_admin=last,
        secret=told.secret,
        first=False,
        rotation=told.rotation,
        revocation=told.revocation,
    )
