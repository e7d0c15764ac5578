"""Wiring: settings in, application out. Nothing is created at import."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from fastapi import FastAPI
from sqlalchemy import Engine

import accounting
from accounting.math_library import InaccurateLibraryError, require_accurate_library
from service.errors import StartupError
from service.guarantees.known_histories import KnownHistories
from service.identity.authentication import KeyRing
from service.identity.directory import Directory
from service.identity.first_key import first_key
from service.identity.keys import KEY_FILE, Role, any_key, create_key
from service.identity.rate_limit import Buckets, Pace
from service.identity.start_token import StartToken
from service.ledger.append.unit_of_work import THRESHOLDS_OPTION
from service.ledger.append.writer import PATIENCE, Writer
from service.ledger.budgets.strategies import Sensitivities
from service.operations.budgets import Budgets
from service.operations.certified_epsilons import CertifiedEpsilons
from service.operations.event_feed import Feed
from service.operations.health import Readiness
from service.operations.metrics import Ledger
from service.operations.overview import Boards
from service.operations.webhooks import NO_WEBHOOKS, Dispatcher, Webhooks, webhooks_of
from service.schemas.responses import build_messages
from service.settings import Settings
from service.storage import migrations
from service.storage.engine import connect, snapshot, transaction
from service.storage.engine_probe import require_reliable
from service.telemetry import Measures
from service.transparency import signing
from service.transparency.checkpoints import is_in_use
from service.transparency.head_tree import HeadTree
from service.transparency.signing import Signer
from service.transparency.witness_follower import Follower, follower_of
from service.web import openapi, problems
from service.web.api import (
    activity,
    append_events,
    audits,
    certificates,
    change_requests,
    corrections,
    datasets,
    event_streams,
    findings,
    health,
    metrics,
    plans,
    reservations,
    runs,
    strategies,
    transparency_log,
)
from service.web.api import keys as key_routes
from service.web.concurrency_limit import ConcurrencyLimiter
from service.web.dashboard import error_pages
from service.web.direct_appends import Application
from service.web.middleware import (
    Arrivals,
    BodyLimit,
    OneHost,
    PageLoader,
    RequestLog,
    StateHeader,
    SuspensionState,
)
from service.web.process_role import RoleFilter
from service.web.routers import add_routes
from service.web.tracing import UNTRACED, Tracing, tracing_of

_LOGGER = logging.getLogger("dpledger.app")
_KEY_GONE: Final = (
    "the ledger is in use and its signing key %s is not there: nothing is signed; bring it back or "
    "name it in DPLEDGER_SIGNING_KEY_FILE; if it is lost, `dpledger signing-key create` makes "
    "another, and what the old one signed is then refused"
)
_NO_KEY_YET: Final = (
    "no API key was created yet: the start token in %s acts as an admin's key until one is"
)
FIRST_KEY: Final = "first-admin"
# Telemetry of newer FastAPIs tells queries, in which secrets stand; `web.open_telemetry` does not.
_UNTOLD: Final[Any] = {"tracing": False, "metrics": False, "logs": False}


def create_app(settings: Settings) -> Application:
    """The application for these settings.

    Raises:
        StartupError: the database is not at this version or lacks what the ledger relies on, the
            environment asks for telemetry that cannot be, the service would be open to others, or
            this machine's mathematical library is not as accurate as bounds need.
    """
    _require_accurate_library()
    webhooks = webhooks_of(settings)
    engine = connect(
        settings.database_address,
        busy_timeout_seconds=settings.busy_timeout_seconds,
        serving=True,
    )
    try:
        migrations.require_current(engine)
        require_reliable(engine)
        keys = KeyRing(
            engine,
            start_token=_required_key(engine, settings),
            requests_per_second=settings.requests_per_second,
            viewer_requests_per_second=settings.viewer_requests_per_second,
            body_bytes_max=settings.key_body_bytes_max,
        )
        keys.directory = _directory(settings, keys)
        keys.refresh()
        signer = _signer(settings, engine)
        reads = settings.role == "reader"
        witness = None if reads else follower_of(settings, engine, signer)
        tracing = tracing_of(os.environ, engine)
    except Exception:
        engine.dispose()
        raise
    return wire(engine, keys, settings, webhooks, signer=signer, witness=witness, tracing=tracing)


def _signer(settings: Settings, engine: Engine) -> Signer | None:
    """Return the signing key; None without a setting and without a SQLite file.

    A ledger in use gets no new key by itself, because clients would refuse it.
    """
    if settings.signing_key_file is not None:
        return Signer.load(settings.signing_key_file)
    path = settings.signing_key_path
    if path is None:
        return None
    with snapshot(engine) as connection:  # looked at first: another process may begin it now
        used = is_in_use(connection)
    return None if used and not path.exists() else Signer.load_or_create(path)


def wire(
    engine: Engine,
    keys: KeyRing,
    settings: Settings,
    webhooks: Webhooks = NO_WEBHOOKS,
    *,
    signer: Signer | None = None,
    witness: Follower | None = None,
    tracing: Tracing = UNTRACED,
) -> Application:
    """The application on a database that is ready."""
    build_messages()
    # The other half is for short requests.
    streams_max = max(1, settings.connections_max // 2)
    feed = Feed(engine, keys.refresh, streams_max=streams_max)
    engine.update_execution_options(**{THRESHOLDS_OPTION: settings.budget_thresholds})
    wait, measures = settings.busy_timeout_seconds, Measures()
    measures.expect(problems.PROBLEMS)
    writer = Writer(
        engine,
        moved=feed.moved,
        patience_seconds=PATIENCE * wait,
        measures=measures,
        committing=tracing.committing,
    )
    dispatcher = Dispatcher(engine, webhooks)
    background = _background(settings, keys.uses, dispatcher, writer, witness)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        if keys.start_token is not None:
            _LOGGER.warning(_NO_KEY_YET, keys.start_token.path)
        if signer is None and settings.signing_key_path is not None:
            _LOGGER.warning(_KEY_GONE, settings.signing_key_path)
        for thread in background:
            thread.start()
        yield
        await feed.stop()
        for thread in background:  # requests have been answered by now
            thread.stop()
        # An abandoned query holds its connection until it ends.
        await asyncio.get_running_loop().shutdown_default_executor()
        tracing.stop()
        engine.dispose()

    app = Application(
        routes=[append_events.ROUTE],  # first: most requests are of it
        title=openapi.TITLE,
        version=accounting.__version__,
        description=openapi.DESCRIPTION,
        license_info=openapi.LICENCE,
        servers=openapi.SERVERS,
        openapi_tags=openapi.TAGS,
        docs_url=None,  # the page would load its scripts from elsewhere
        redoc_url=None,
        openapi_url="/v1/openapi.json",
        telemetry=_UNTOLD,
        redirect_slashes=False,  # a path that is not one is 404, not somewhere else
        lifespan=lifespan,
    )
    app.state.engine = engine
    app.state.methods = {append_events.EVENTS_PATH: {"POST"}}
    app.state.keys = keys
    app.state.signer = signer
    app.state.session_secret = signing.secret_of(signer)
    app.state.writer = writer
    app.state.feed = feed
    app.state.draining = False
    app.state.approvals = frozenset(settings.approvals)
    app.state.refusals = Pace(problems.REFUSALS_PER_SECOND)
    app.state.seats = ConcurrencyLimiter()
    app.state.sensitivities = Sensitivities(engine)
    app.state.certificates = Buckets(settings.certificates_per_hour)
    app.state.readiness = Readiness(
        engine, writing=lambda: writer.working or writer not in background
    )
    app.state.dispatcher = dispatcher
    app.state.witness = witness
    app.state.measures = measures
    app.state.heads = HeadTree()
    app.state.expositions = metrics.Expositions()
    app.state.budgets = Budgets()
    app.state.certified = CertifiedEpsilons()
    app.state.histories = KnownHistories()
    app.state.boards = Boards(app.state.budgets, app.state.certified)
    app.state.ledger = Ledger(engine, dispatcher.waiting, app.state.budgets, app.state.certified)
    app.state.gate = gate = SuspensionState(engine)
    modules = (
        datasets,
        runs,
        corrections,
        change_requests,
        findings,
        audits,
        reservations,
        certificates,
        event_streams,
        plans,
        strategies,
        activity,
        key_routes,
        transparency_log,
        health,
        metrics,
    )
    _surround(app, settings, keys, gate, measures)
    app.add_middleware(tracing.around)  # outermost: an answer ends its span
    problems.install_problems(app)
    error_pages.install_errors(app)
    for module in modules:
        add_routes(app, module.router)
    openapi.complete(app)
    app.answer_appends(settings, traced=tracing is not UNTRACED)
    return app


def _surround(
    app: FastAPI, settings: Settings, keys: KeyRing, gate: SuspensionState, measures: Measures
) -> None:
    """Add what happens to each request before and after its endpoint, from the inside outwards."""
    app.add_middleware(PageLoader, single_sign_on=keys.directory is not None)
    if settings.role != "all":
        app.add_middleware(RoleFilter, role=settings.role)
    app.add_middleware(StateHeader, gate=gate)
    app.add_middleware(
        BodyLimit, bytes_max=settings.body_bytes_max, seconds_max=settings.body_seconds
    )
    app.add_middleware(OneHost)
    app.add_middleware(Arrivals, keys=keys, per_second=settings.keyless_requests_per_second)
    app.add_middleware(RequestLog, measures=measures)  # every answer has an id


def _background(settings: Settings, *threads: Any) -> list[Any]:
    """The threads of a process, in the order in which they end; a reader has the first alone."""
    kept = threads[:1] if settings.role == "reader" else threads
    return [one for one in kept if one is not None]


def _require_accurate_library() -> None:
    try:
        require_accurate_library()
    except InaccurateLibraryError as error:
        raise StartupError(str(error)) from None


def _directory(settings: Settings, keys: KeyRing) -> Directory | None:
    """Callers by tokens of identity providers; None where the settings name no identity file.

    Raises:
        StartupError: the file cannot be read, or says something that cannot be.
    """
    if settings.identity_file is None:
        return None
    # Their libraries take long to load.
    from service.identity.single_sign_on import configuration, directory

    return directory.TokenDirectory(
        configuration.read_configuration(settings.identity_file),
        bucket=keys.new_bucket,
        body_bytes_max=settings.key_body_bytes_max,
    )


def _required_key(engine: Engine, settings: Settings) -> StartToken | None:
    """Store the first key from its file; without one return the start token, on loopback only."""
    with transaction(engine) as connection:
        if any_key(connection):
            return None
        key = first_key(settings)
        if key is not None:
            # Any person may have read the file: its key decides nothing.
            create_key(
                connection, name=FIRST_KEY, scope=Role.ADMIN, person=KEY_FILE, key=key, by=KEY_FILE
            )
            return None
    if settings.identity_file is not None:  # it grants what a start token would
        return None
    return StartToken.load_or_create(settings.start_token_path)


def openapi_document() -> dict[str, Any]:
    """The OpenAPI document; no database is opened for it."""
    engine = connect("sqlite:///never-opened.db")
    keys = KeyRing(engine)
    return wire(engine, keys, Settings()).openapi()
