"""The last signed head of a dataset's log that this machine saw, kept beside the spools.

It is shown to the service again when a run starts and ends, every ten minutes between, and by
`dpledger-client sync`. A service whose database was put back to an earlier state, or changed,
cannot continue it: then this machine says so, and the service refuses to write. Nothing here ever
stops training.
"""

import fcntl
import hashlib
import json
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any, Final

from dpledger_client.errors import (
    Conflict,
    DPLedgerError,
    InvalidRequest,
    LedgerSuspended,
    NotFound,
    Unavailable,
)
from dpledger_client.merkle import begins, includes, leaf_hash
from dpledger_client.recording.outbox import LOG
from dpledger_client.signatures import holds
from dpledger_client.transport import Transport

FORMAT: Final = "dpledger-log-head/1"
SUFFIX: Final = ".log_head"
LOCK: Final = "log_heads.lock"  # held while a head is replaced, by whatever process
SECONDS: Final = 600.0  # between two comparisons while a run is open
PRIVATE: Final = 0o600
ATTEMPTS: Final = 3  # where other processes keep heads of the same log meanwhile
_PART: Final = ("checkpoint", "key_id", "public_key", "signature", "head", "index", "path")
_ANOTHER_KEY: Final = (
    "the service signs with another key than before, so it is not known that this is the ledger "
    "that this machine saw. If a new ledger or a new key was begun on purpose, delete the file "
    "that is named here. If not, tell the operator of the service."
)


class LedgerRewritten(UserWarning):
    """The service's ledger does not continue what it signed before, or what it says is no proof."""


class LogHead:
    """The head of one dataset's log of one service. Safe to share between threads."""

    def __init__(self, transport: Transport, dataset: str, folder: Path) -> None:
        self.path: Final = folder / _file_name(transport.base_url, dataset)
        self._transport = transport
        self._dataset = dataset
        self._route = f"/v1/datasets/{dataset}/checkpoint"
        self._comparing = Lock()
        self._compared_at = -SECONDS
        self._told: set[str] = set()

    @property
    def is_due(self) -> bool:
        """Whether the last comparison is long enough ago."""
        return monotonic() - self._compared_at >= SECONDS

    def compare(self) -> None:
        """Show the service what it signed, and keep what it signs now if that continues it.

        Warns:
            LedgerRewritten: it does not. A service that is away, or older than logs, is no matter.
        """
        with self._comparing:
            self._compared_at = monotonic()
            try:
                answer = self._follow()
            except (Conflict, InvalidRequest, LedgerSuspended, _UnprovenError) as error:
                self._warn(str(error))
            except (NotFound, Unavailable) as error:  # not now, or never: an older service
                LOG.debug("dpledger: the log could not be compared: %s", error)
            except (DPLedgerError, OSError) as error:
                LOG.info("dpledger: the log could not be compared: %s", error)
            else:
                if answer.get("verdict") == "abandoned":
                    self._warn(f"what this machine saw was abandoned. {answer.get('reason')}")

    def _follow(self) -> dict[str, Any]:
        """What the service says to what is kept; then that is kept, unless another process did."""
        for _ in range(ATTEMPTS):
            kept = self._read()
            answer = self._ask(kept)
            if self._keep(_checked(answer, kept, self._dataset), instead_of=kept):
                break
        return answer

    def _ask(self, kept: Mapping[str, Any] | None) -> dict[str, Any]:
        if kept is None:
            return self._transport.get(self._route, retries=0)
        try:
            return self._transport.post(f"{self._route}:compare", kept, retries=0)
        except InvalidRequest:  # it is not signed with the key of this service
            now = self._transport.get(self._route, retries=0)
            if now.get("public_key") == kept.get("public_key"):
                raise
        raise _UnprovenError(_ANOTHER_KEY)

    def _warn(self, text: str) -> None:
        if text in self._told:  # once, however often it is compared
            return
        self._told.add(text)
        said = f"dpledger: the ledger of dataset {self._dataset}: {text} (seen: {self.path})"
        warnings.warn(said, LedgerRewritten, stacklevel=2)

    def _read(self) -> dict[str, Any] | None:
        try:
            found = json.loads(self.path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            LOG.warning("dpledger: %s cannot be read, and is begun anew: %s", self.path, error)
            return None
        match found:
            case {"format": "dpledger-log-head/1", "kept": dict(kept)}:
                return kept
        LOG.warning("dpledger: %s is of no form that is known here", self.path)
        return None

    def _keep(self, part: Mapping[str, Any], *, instead_of: Mapping[str, Any] | None) -> bool:
        """Replace the file as a whole: a reader finds the old one or the new one.

        Returns:
            False where the file is not what was shown to the service any more: another process
            keeps something else, which may be longer, and which this does not continue for certain.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        text = json.dumps({"format": FORMAT, "url": self._transport.base_url, "kept": part})
        with _locked(self.path.with_name(LOCK)):
            if self._read() != instead_of:
                return False
            try:
                descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE)
                with open(descriptor, "w") as file:
                    file.write(text)
                    file.flush()
                    os.fsync(file.fileno())
                fresh.replace(self.path)
            except OSError:
                fresh.unlink(missing_ok=True)
                raise
        return True


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock that other processes and threads wait for; its holder makes no request."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, PRIVATE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        # A process that was forked meanwhile has the file, too, and would go on holding its lock.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


class _UnprovenError(Exception):
    """An answer that proves nothing, or the contrary."""


def _file_name(url: str, dataset: str) -> str:
    return f"{dataset}.{hashlib.sha256(url.encode()).hexdigest()[:8]}{SUFFIX}"


def _checked(
    answer: Mapping[str, Any], kept: Mapping[str, Any] | None, dataset: str
) -> dict[str, Any]:
    """The part of an answer that is worth keeping.

    Raises:
        _UnprovenError: its head is not in what it signs, its signature does not hold, or it does
            not continue what was kept.
    """
    try:
        part = {name: answer[name] for name in _PART}
        if not _is_of(part, dataset):
            raise _UnprovenError("the head in the answer is not in what is signed.")
        if not holds(part["checkpoint"], part["public_key"], part["signature"]):
            raise _UnprovenError("the signature of the head is not that of the key it names.")
        if kept is not None and not _goes_on(answer, kept):
            raise _UnprovenError("the log does not begin with what this machine saw of it.")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _UnprovenError(f"an answer that cannot be checked ({error!r}).") from error
    return part


def _is_of(part: Mapping[str, Any], dataset: str) -> bool:
    head, signed = part["head"], part["checkpoint"]
    path = [bytes.fromhex(node) for node in part["path"]]
    root = bytes.fromhex(signed["root"])
    inside = includes(root, signed["logs"], leaf_hash(head), part["index"], path)
    return inside and head["dataset"] == dataset


def _goes_on(answer: Mapping[str, Any], kept: Mapping[str, Any]) -> bool:
    """Whether it is the ledger and the key that are known here, which says how it goes on.

    That an admin signed what was abandoned is checked by the service, and by `dpledger verify`.
    Here it is known that a later generation was begun for it.
    """
    before, now = kept["checkpoint"], answer["checkpoint"]
    known = (kept["public_key"], before["ledger_id"])
    if (answer["public_key"], now["ledger_id"]) != known or now["generation"] < before[
        "generation"
    ]:
        return False
    if answer["verdict"] == "abandoned":
        return bool(now["generation"] > before["generation"])
    return _follows(answer, kept)


def _follows(answer: Mapping[str, Any], kept: Mapping[str, Any]) -> bool:
    old, new = kept["head"], answer["head"]
    path = [bytes.fromhex(node) for node in answer["consistency"]]
    roots = bytes.fromhex(old["root"]), bytes.fromhex(new["root"])
    return begins(old["size"], roots[0], new["size"], roots[1], path)
