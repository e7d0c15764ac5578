"""Following the logs with a witness: when the service starts, every minute, and when it stops."""

import logging
import threading
import time
from pathlib import Path
from typing import Final

from sqlalchemy import Engine

from service.errors import LedgerError, StartupError
from service.settings import Settings
from service.storage.engine import snapshot
from service.transparency.checkpoint_comparison import find_contradicted_heads
from service.transparency.checkpoints import LogHeads
from service.transparency.recovery import LedgerStatus, ledger_status, suspend
from service.transparency.signing import Signer
from service.transparency.witness import WitnessError, WitnessFile, next_line

_LOGGER = logging.getLogger("dpledger.witness")
BY: Final = "witness"  # who showed what suspended the ledger


def follower_of(settings: Settings, engine: Engine, signer: Signer | None) -> "Follower | None":
    """What keeps the witness that the settings name, after its first look; None without one.

    Raises:
        StartupError: it cannot be believed or written, or there is no key to sign for it.
    """
    if settings.witness_file is None:
        return None
    if signer is None:
        raise StartupError(
            "DPLEDGER_WITNESS_FILE: nothing signs for it; set DPLEDGER_SIGNING_KEY_FILE too."
        )
    found = Follower(engine, signer, settings.witness_file, seconds=settings.witness_seconds)
    found.begin()
    return found


class Follower:
    """Keeps a witness file up to date. Of several processes one writes; the others wait for it."""

    def __init__(self, engine: Engine, signer: Signer, path: Path, *, seconds: float) -> None:
        self._engine = engine
        self._signer = signer
        self._path = path
        self._seconds = seconds
        self._file: WitnessFile | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="dpledger-witness", daemon=True)
        self.trouble: str | None = None  # why the last look failed
        self.agreed_at: float | None = None  # seconds since the epoch, of this process's last look

    @property
    def writing(self) -> bool:
        """Whether this process is the one that writes."""
        return self._file is not None

    @property
    def signed_at(self) -> str | None:
        """When the last checkpoint was signed that the witness has."""
        last = None if self._file is None else self._file.seen.last
        return None if last is None else last.signed.checkpoint.issued_at

    def look(self) -> LedgerStatus:
        """Compare the logs with what the witness has seen, and let it see what is new.

        Returns:
            Where the ledger stands: a contradiction suspends it.

        Raises:
            WitnessError: the witness cannot be believed, or is of another ledger.
            OSError: it cannot be read or written.
            UnavailableError: the database does not answer.
        """
        if self._file is None:
            self._file = WitnessFile.open(self._path, self._signer.public_key)
        file = self._file
        with snapshot(self._engine) as connection:
            found = ledger_status(connection)
            if file is None:
                return found
            present, seen = LogHeads.of(connection), file.seen
            if seen.last and seen.last.signed.checkpoint.ledger_id != present.ledger_id:
                raise WitnessError(f"{self._path} is of another ledger than this one.")
            heads, key = list(seen.heads.values()), self._signer.public_key
            if not find_contradicted_heads(
                connection, present, heads, generation=seen.generation, public_key=key
            ):
                # While it recovers, the ledger is not what it will be: the witness waits.
                line = next_line(connection, present, self._signer, seen)
                if line is not None and found.state == "open":
                    file.append(line)
                self.agreed_at = time.time()
                return found
        return suspend(self._engine, heads, generation=seen.generation, by=BY, signer=self._signer)

    def begin(self) -> None:
        """Look for the first time.

        Raises:
            StartupError: the witness cannot be believed, or cannot be written.
            LedgerError: the database does not answer.
        """
        try:
            self.look()
        except (WitnessError, OSError) as error:
            self.close()
            raise StartupError(f"DPLEDGER_WITNESS_FILE: {error}") from None

    def start(self) -> None:
        """Go on looking in the background."""
        self._thread.start()

    def stop(self) -> None:
        """Look a last time."""
        self._stop.set()
        self._thread.join()
        self._try()
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _work(self) -> None:
        while not self._stop.wait(self._seconds):
            self._try()

    def _try(self) -> None:
        try:
            self.look()
        except (LedgerError, WitnessError, OSError) as error:  # it is tried again
            if str(error) != self.trouble:
                _LOGGER.error("the witness could not follow", extra={"reason": str(error)})
            self.trouble = str(error)
        else:
            self.trouble = None
