"""The pages of keys: an admin lists, creates, rotates and revokes them."""

from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Annotated, Any, ClassVar, Final, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import Field
from sqlalchemy import ColumnElement, Engine, Select, case, func, or_, select

from service.clock import now
from service.identity import key_administration
from service.identity.authentication import Caller, KeyRing
from service.identity.key_administration import KeyScope, KeySecret
from service.ledger.append.write_access import run_in_write_transaction
from service.storage.engine import snapshot
from service.storage.tables import api_keys
from service.transparency.activity import acts_of_key
from service.web.dashboard.forms import key_form
from service.web.dashboard.forms.shown_form import FORM_REFUSALS, ShownForm, refusal_status
from service.web.dashboard.listing import Listed, part_of
from service.web.dashboard.rendering import PageRoute, render
from service.web.dashboard.viewer import PageAdmin, PostedForm
from service.web.four_eyes import only_person
from service.web.parameters import Database, KeyName
from service.web.strict_requests import expensive

router = APIRouter(route_class=PageRoute, include_in_schema=False)
_ORDERS: Final = {
    "name": api_keys.c.name,
    "scope": api_keys.c.scope,
    "person": func.coalesce(api_keys.c.person, api_keys.c.name),
}
_STATES: Final = (("", "any"), ("active", "active"), ("ended", "expired or revoked"))


class _Keys(Listed):
    path: ClassVar[str] = "/keys"

    name: str | None = Field(default=None, max_length=63)
    scope: KeyScope | None = None
    state: Literal["active", "ended"] | None = None
    sort: Literal[
        "ended", "-ended", "newest", "oldest", "created", "-created", "name", "-name", "scope",
        "-scope", "person", "-person",
    ] = "ended"  # fmt: skip

    def rows(self) -> Select[Any]:
        """The keys that are asked for."""
        query = select(api_keys)
        if self.name is not None:
            named = self.name.strip().lower()
            found = (api_keys.c.name, func.lower(api_keys.c.person))
            query = query.where(or_(*(one.contains(named, autoescape=True) for one in found)))
        if self.scope is not None:
            query = query.where(api_keys.c.scope == self.scope)
        if self.state is not None:
            query = query.where(_ended_last() == int(self.state == "ended"))
        return query


def _ended_last() -> ColumnElement[int]:
    """One for a key that was revoked or has expired, zero for the others."""
    expired = api_keys.c.expires_at <= now()
    return case((or_(api_keys.c.revoked_at.is_not(None), expired), 1), else_=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """What the page of a key says beside its facts."""

    secret: KeySecret | None = None
    rotation: ShownForm = field(default_factory=lambda: ShownForm(key_form.ROTATED))
    revocation: ShownForm = field(default_factory=ShownForm)


@router.get("/keys")
@expensive
def keys_page(
    request: Request, database: Database, viewer: PageAdmin, asked: Annotated[_Keys, Query()]
) -> Response:
    """Keys, those that work first, and the form of a new one."""
    blank = _blank_key(request, viewer)
    if request.app.state.keys.start_token is not None:
        blank = blank | key_form.FIRST_ADMIN_KEY
    return _list(request, database, viewer, ShownForm(blank), asked=asked)


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
    except FORM_REFUSALS as error:
        shown = ShownForm.refused(form, error, key_form.NEW_KEY_FIELDS)
        return _list(request, database, viewer, shown, status=refusal_status(error))
    request.app.state.keys.changed()  # the first key ends the start token, also on this page
    blank = ShownForm(_blank_key(request, viewer))
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
    except FORM_REFUSALS as error:
        told = _Told(rotation=ShownForm.refused(form, error, key_form.KEY_FIELDS))
        return _one(key, request, database, viewer, told, status=refusal_status(error))
    request.app.state.keys.changed()
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
    except FORM_REFUSALS as error:
        told = _Told(revocation=ShownForm.refused(form, error, key_form.KEY_FIELDS))
        return _one(key, request, database, viewer, told, status=refusal_status(error))
    request.app.state.keys.changed()
    return RedirectResponse(f"/keys/{key}", HTTPStatus.SEE_OTHER)


def _blank_key(request: Request, viewer: Caller) -> dict[str, str]:
    """The form of a new key, for the only person whose keys the viewer may create."""
    return key_form.BLANK_KEY | {"person": only_person(request, viewer) or ""}


def _list(
    request: Request,
    database: Engine,
    viewer: Caller,
    form: ShownForm,
    *,
    asked: _Keys = _Keys(),  # noqa: B008 (frozen)
    secret: KeySecret | None = None,
    first: bool = False,
    status: HTTPStatus = HTTPStatus.OK,
) -> Response:
    ring: KeyRing = request.app.state.keys
    with snapshot(database) as connection:
        uses = ring.uses.latest(connection)
        part = part_of(
            connection, asked.rows(), api_keys, asked, _ORDERS | {"ended": _ended_last()}
        )
        found = key_administration.key_answers(part.rows, uses)
    return render(
        request,
        "keys.html",
        viewer=viewer,
        status_code=status,
        keys=found,
        part=part,
        asked=asked,
        states=_STATES,
        form=form,
        secret=secret,
        first=first,
        own_person=only_person(request, viewer),
    )


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
        rotated_by_operator=only_person(request, viewer) not in (None, found.person),
        revocation=told.revocation,
    )
