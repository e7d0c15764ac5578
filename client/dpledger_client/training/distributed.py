"""Jobs of several processes: rank 0 reports, all stop at the same step, and none may differ."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from threading import Thread
from time import sleep
from typing import Any, Final

from dpledger_client.errors import BudgetExhausted, DPLedgerError, NotFound, Unavailable
from dpledger_client.recording.branch_writer import EVERY_STEP, Mode, require_open
from dpledger_client.recording.event_buffer import Span
from dpledger_client.recording.outbox import LOG, Opening
from dpledger_client.transport import Transport

Broadcast = Callable[[int], int]

EXHAUSTED: Final = -1  # what rank 0 says instead of a step
STOPPED: Final = -2
TRIES: Final = 20  # to send a fingerprint: rank 0 may register the run later
TRY_SECONDS: Final = 3.0


def place(rank: int | None, world_size: int | None, broadcast: Broadcast | None) -> tuple[int, int]:
    """Which process of how many this is: as given, else as torchrun says, else the only one.

    Raises:
        ValueError: there is no such rank; or only the environment says that another rank reports.
    """
    if rank is None:
        rank = int(os.environ.get("RANK", "0"))
        if rank and broadcast is None:
            raise ValueError(
                f"The environment says RANK={rank}, and such a rank reports nothing. Give "
                "broadcast= or rank= if it belongs to a job, rank=0 and world_size=1 if not."
            )
    if world_size is None:
        world_size = int(os.environ.get("WORLD_SIZE", str(rank + 1)))
    if not 0 <= rank < world_size:
        raise ValueError("rank must be at least 0 and below world_size.")
    return rank, world_size


def agree(broadcast: Broadcast | None, rank: int, admit: Callable[[], int]) -> int:
    """Ask once for all ranks; return the step up to which, exclusive, no rank needs to ask.

    Args:
        broadcast: a collective that gives every rank the number of rank 0; without one, each asks.
        rank: of this process.
        admit: asks; on the other ranks that admits all, and rank 0 is listened to.

    Raises:
        BudgetExhausted: on all ranks, if it was on rank 0.
        DPLedgerError: rank 0 stopped for another reason.
    """
    if broadcast is None:
        return admit()
    if rank:
        admit()
        return _heard(broadcast(0))
    said = STOPPED
    try:
        said = admit()
    except BudgetExhausted:
        said = EXHAUSTED
        raise
    finally:
        broadcast(said)
    return said


def _heard(said: int) -> int:
    if said == EXHAUSTED:
        raise BudgetExhausted({"title": "Rank 0 was refused the next step"}, 0)
    if said == STOPPED:
        raise DPLedgerError({"title": "Rank 0 could not get the next step admitted"}, 0)
    return said


def same_branch(broadcast: Broadcast, opening: Opening) -> Opening:
    """On all ranks the branch of rank 0: each of them drew the end of its name for itself."""
    if opening.branch is None:
        return opening
    stem, _, drawn = opening.branch_name.rpartition("-")
    name = f"{stem}-{broadcast(int(drawn, 16)):08x}"
    return replace(opening, branch={**opening.branch, "name": name})


class Follower:
    """A rank that counts steps and reports none; it only says how it was configured.

    It has the methods of a Journal, for a Run that need not tell them apart.
    """

    path: Path | None = None
    trouble: Exception | None = None
    earlier_end: str | None = None  # rank 0 closes the run

    def __init__(self, transport: Transport, opening: Opening, mode: Mode) -> None:
        self.mode: Final = mode
        self.next_step = opening.first_step
        self.reply: dict[str, Any] = {}
        self.ended: str | None = None
        self.opening = opening
        self._transport = transport
        self._teller: Thread | None = None

    def open(self) -> None:
        """Nothing is registered by this rank."""

    def admit(self, content: str, steps: int) -> int:
        """Rank 0 asks; without a collective to hear it, this rank trusts that it is stopped."""
        return EVERY_STEP

    def take(self, content: str, steps: int) -> None:
        """Count steps."""
        require_open(self.ended)
        self.next_step += steps

    def take_next(self, content: str, horizon: int) -> bool:
        """Count one more step, if it is below the horizon."""
        if self.ended is not None or self.next_step >= horizon:
            return False
        self.next_step += 1
        return True

    def tell(self, what: str, body: Mapping[str, Any]) -> None:
        """Send a finding in the background, however long rank 0 takes to register the run."""
        path = f"/v1/runs/{self.opening.run_name}/{what}"
        note = {"branch": self.opening.branch_name, **body}
        self._teller = Thread(target=self._send, args=(path, note), name="dpledger", daemon=True)
        self._teller.start()

    def unsent(self) -> list[Span]:
        """Rank 0 sends the steps."""
        return []

    def flush(self) -> None:
        """Nothing waits."""

    def end(self, state: str) -> None:
        """Count no more; a finding that is on its way may arrive."""
        self.ended = self.ended or state
        if self._teller is not None:
            self._teller.join(TRY_SECONDS)

    def finish(self, state: str) -> None:
        """Rank 0 closes the run."""

    def leave(self, state: str) -> None:
        """Count no more."""
        self.end(state)

    def close(self, *, complete: bool) -> None:
        """Nothing is open."""

    def _send(self, path: str, note: Mapping[str, Any]) -> None:
        for _ in range(TRIES):
            try:
                self._transport.post(path, note, retries=0)
            except (Unavailable, NotFound):
                sleep(TRY_SECONDS)
            except DPLedgerError as error:
                LOG.warning("dpledger: the configuration of a rank was refused: %s", error)
                return
            else:
                return
