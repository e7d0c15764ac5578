"""Webhooks: incidents, told to the addresses of the settings until each has taken them.

At least once, in no promised order, and never while a transaction is open. An attempt is claimed by
moving the next one into the future: two processes do not send the same at once, and one that is
killed before it can say that it sent leaves the rest to the others.
"""

import base64
import hashlib
import hmac
import http.client
import logging
import ssl
import threading
import time
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from sqlalchemy import Engine, Row

import accounting
from service.clock import now
from service.errors import LedgerError, StartupError
from service.ledger.incidents import Kind, incident_answer
from service.operations import webhook_queue
from service.operations.webhook_queue import Wants
from service.settings import Settings, is_loopback
from service.storage.engine import snapshot, transaction

SECRET_LENGTH_MIN: Final = 32  # characters
KEY_BYTES_MIN: Final = 24  # behind whsec_, as the Standard Webhooks ask
ENCODED: Final = "whsec_"  # begins a secret that is the base64 of its key
TARGETS_MAX: Final = 16  # each has a thread
POLL_SECONDS: Final = 1.0
TIMEOUT_SECONDS: Final = 5.0  # to connect, and again for each part of an answer
PAUSE_SECONDS_MAX: Final = 60.0  # between attempts at an address that takes nothing
SETTLE_SECONDS: Final = 60.0  # between two looks for how far all is over
_STOP_SECONDS: Final = 2 * TIMEOUT_SECONDS
_LOGGER = logging.getLogger("dpledger.webhooks")


@dataclass(frozen=True, slots=True)
class Webhooks:
    """What the settings say of webhooks."""

    targets: tuple[SplitResult, ...]
    kinds: frozenset[Kind]
    key: bytes


NO_WEBHOOKS: Final = Webhooks((), frozenset(), b"")


def webhooks_of(settings: Settings) -> Webhooks:
    """The targets, checked, with the key that signs what they are sent.

    Raises:
        StartupError: an address, a kind or the secret is not fit.
    """
    targets = tuple(dict.fromkeys(_target(address) for address in settings.webhooks))
    if len(targets) > TARGETS_MAX:
        raise StartupError(f"DPLEDGER_WEBHOOKS: {TARGETS_MAX} addresses at most.")
    if unknown := set(settings.webhook_kinds) - set(Kind):
        raise StartupError(
            f"DPLEDGER_WEBHOOK_KINDS: {sorted(unknown)[0]!r} is none of {', '.join(Kind)}."
        )
    kinds = frozenset(Kind(kind) for kind in settings.webhook_kinds or Kind)
    return Webhooks(targets, kinds, _signing_key(settings) if targets else b"")


def _target(address: str) -> SplitResult:
    # Addresses are not repeated in a refusal: some hold a secret in their path.
    if not address.isascii() or not address.isprintable() or " " in address:
        raise StartupError("DPLEDGER_WEBHOOKS: an address has only printable ASCII characters.")
    try:
        target = urlsplit(address)
        host, _ = target.hostname, target.port
    except ValueError:
        raise StartupError("DPLEDGER_WEBHOOKS: an address is not a URL.") from None
    if not host:
        raise StartupError("DPLEDGER_WEBHOOKS: an address names no host.")
    if "@" in target.netloc:
        raise StartupError("DPLEDGER_WEBHOOKS: an address holds no user and no password.")
    if target.scheme != "https" and not (target.scheme == "http" and is_loopback(host)):
        raise StartupError(
            "DPLEDGER_WEBHOOKS: an address begins with https; on loopback also with http."
        )
    if target.fragment:
        raise StartupError("DPLEDGER_WEBHOOKS: an address has no fragment.")
    return target


def _signing_key(settings: Settings) -> bytes:
    if settings.webhook_secret_file is None:
        raise StartupError(
            "DPLEDGER_WEBHOOKS: name a file with their secret in DPLEDGER_WEBHOOK_SECRET_FILE."
        )
    try:
        secret = settings.webhook_secret_file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(f"DPLEDGER_WEBHOOK_SECRET_FILE: {error}") from None
    if len(secret) < SECRET_LENGTH_MIN:
        raise StartupError(
            f"DPLEDGER_WEBHOOK_SECRET_FILE: a secret has at least {SECRET_LENGTH_MIN} characters."
        )
    if not secret.startswith(ENCODED):
        return secret.encode()
    try:
        key = base64.b64decode(secret.removeprefix(ENCODED), validate=True)
    except ValueError:
        raise StartupError(f"DPLEDGER_WEBHOOK_SECRET_FILE: base64 follows {ENCODED}.") from None
    if len(key) < KEY_BYTES_MIN:
        raise StartupError(
            f"DPLEDGER_WEBHOOK_SECRET_FILE: a key has at least {KEY_BYTES_MIN} bytes."
        )
    return key


def signature(key: bytes, identifier: str, timestamp: int, body: bytes) -> str:
    """The header webhook-signature: HMAC-SHA-256 of id, timestamp and body, joined by dots."""
    signed = f"{identifier}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()


def post(target: SplitResult, key: bytes, identifier: str, body: bytes) -> str:
    """Send a message; what went wrong, or nothing. No redirect is followed, no proxy asked.

    Of the answer no more than the head is read.
    """
    timestamp = int(time.time())
    headers = {
        "content-type": "application/json",
        "user-agent": f"dpledger/{accounting.__version__}",
        "webhook-id": identifier,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": signature(key, identifier, timestamp, body),
    }
    path = (target.path or "/") + (f"?{target.query}" if target.query else "")
    connection = _connection(target)
    try:
        connection.request("POST", path, body, headers)
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return type(error).__name__
    finally:
        connection.close()
    return "" if 200 <= status < 300 else f"status {status}"


def _connection(target: SplitResult) -> http.client.HTTPConnection:
    host = target.hostname or ""
    if target.scheme == "http":
        return http.client.HTTPConnection(host, target.port, timeout=TIMEOUT_SECONDS)
    context = ssl.create_default_context()
    return http.client.HTTPSConnection(host, target.port, timeout=TIMEOUT_SECONDS, context=context)


class WebhookSender:
    """The thread that tells one address; a dead address delays no other."""

    def __init__(self, engine: Engine, target: SplitResult, webhooks: Webhooks) -> None:
        self.delivered = 0  # since this process started, as is failed
        self.failed = 0
        self._engine = engine
        self._target = target
        self._key = webhooks.key
        self._wants = Wants(
            target=hashlib.sha256(target.geturl().encode()).hexdigest(),
            kinds=tuple(webhooks.kinds),
            after=0,
        )
        self._begun = False
        self._failures = 0  # in a row
        self._settled_at = time.monotonic()
        self._stopping = threading.Event()
        name = f"dpledger-webhook-{self._wants.target[:8]}"
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def stop(self) -> None:
        """Send nothing more."""
        self._stopping.set()

    def join(self) -> None:
        """Wait for the attempt that is being made; it is made again if that takes too long."""
        self._thread.join(_STOP_SECONDS)

    def waiting(self) -> int:
        """How many incidents the address has not taken yet."""
        with snapshot(self._engine) as connection:
            return webhook_queue.waiting(connection, self._wants, now())

    def _work(self) -> None:
        pause = 0.0
        while not self._stopping.wait(pause):
            try:
                pause = self._turn()
            except LedgerError:  # the database does not answer
                pause = POLL_SECONDS
            except Exception:
                # A defect that one incident finds must not silence all that follow.
                _LOGGER.exception("webhook failed", extra={"target": self._wants.target})
                pause = PAUSE_SECONDS_MAX

    def _turn(self) -> float:
        """Make one attempt, if one is due; how long to wait before the next turn."""
        if not self._begun:
            self._begin()
        incident, attempts = self._claim()
        if incident is None:
            self._settle()
            return POLL_SECONDS
        return self._attempt(incident, attempts) if attempts else 0.0

    def _begin(self) -> None:
        with transaction(self._engine) as connection:
            after = webhook_queue.begin_target(connection, self._wants.target, now())
        self._wants = replace(self._wants, after=after)
        self._begun = True

    def _claim(self) -> tuple[Row[Any] | None, int | None]:
        with snapshot(self._engine) as connection:
            incident = webhook_queue.due(connection, self._wants, now())
        if incident is None:
            return None, None
        with transaction(self._engine) as connection:
            return incident, webhook_queue.claim(connection, incident.id, self._wants.target, now())

    def _attempt(self, incident: Row[Any], attempts: int) -> float:
        answer = incident_answer(incident)
        fault = post(self._target, self._key, answer.id, answer.model_dump_json().encode())
        again = True
        with transaction(self._engine) as connection:
            if not fault:
                webhook_queue.record_delivery(connection, incident.id, self._wants.target, now())
            else:
                again = webhook_queue.postpone(
                    connection, incident, self._wants.target, attempts, now()
                )
        if not fault:
            self.delivered, self._failures = self.delivered + 1, 0
            return 0.0
        self.failed, self._failures = self.failed + 1, self._failures + 1
        _LOGGER.warning(
            "webhook not taken" if again else "webhook given up",
            extra={"target": self._wants.target, "webhook_id": answer.id, "fault": fault},
        )
        return min(2.0 ** min(self._failures, 30), PAUSE_SECONDS_MAX)

    def _settle(self) -> None:
        """Look now and then for how far all is over, so that what is long past is not searched."""
        if time.monotonic() - self._settled_at < SETTLE_SECONDS:
            return
        self._settled_at = time.monotonic()
        with snapshot(self._engine) as connection:
            after = webhook_queue.find_settled_row(connection, self._wants, now())
        self._wants = replace(self._wants, after=after)


class Dispatcher:
    """The couriers of a process; none where the settings name no address."""

    def __init__(self, engine: Engine, webhooks: Webhooks) -> None:
        self._couriers = [WebhookSender(engine, target, webhooks) for target in webhooks.targets]

    @property
    def delivered(self) -> int:
        """Attempts that were taken, since this process started."""
        return sum(courier.delivered for courier in self._couriers)

    @property
    def failed(self) -> int:
        """Attempts that were not, since this process started."""
        return sum(courier.failed for courier in self._couriers)

    def waiting(self) -> int:
        """Deliveries that are still to be made, by whichever process."""
        return sum(courier.waiting() for courier in self._couriers)

    def start(self) -> None:
        """Begin to send."""
        for courier in self._couriers:
            courier.start()

    def stop(self) -> None:
        """Send nothing more, and end."""
        for courier in self._couriers:
            courier.stop()
        for courier in self._couriers:
            courier.join()
