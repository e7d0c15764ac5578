"""The certified epsilon of a run: a number for a script, and the guarantee at the run's end."""

import math
from collections.abc import Mapping
from typing import Any, Protocol

from dpledger_client.answers.guarantees import Guarantee
from dpledger_client.errors import Unavailable
from dpledger_client.recording.outbox import LOG
from dpledger_client.transport import Transport


class Readable(Protocol):
    """A run that can be asked for its guarantee."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def _transport(self) -> Transport:
        """The service's address."""

    @property
    def rank(self) -> int:
        """Which process of the job it is in."""

    @property
    def last_guarantee(self) -> Guarantee | None:
        """The guarantee in the last reply."""

    def flush(self) -> None:
        """Send everything so far."""

    def guarantee(self) -> Guarantee:
        """Ask for the guarantee."""


def certified_epsilon(run: Readable) -> float | None:
    """Return epsilon of all steps of a run: nats, upper, infinite if unbounded.

    Steps that wait are sent first. While the service is away, this is the epsilon of its last
    reply. None without a delta, before the first step, and on the ranks that do not report.

    Raises:
        DPLedgerError: steps or the question were refused.
    """
    if run.rank:
        return None
    found: Mapping[str, Any] | None
    try:
        run.flush()
        found = run.last_guarantee
        if found is not None:  # else there is no delta to ask at
            found = run.guarantee()
    except Unavailable:
        found = run.last_guarantee
    if found is None:
        return None
    return math.inf if found["epsilon"] is None else float(found["epsilon"])


def with_guarantee(run: Readable, ended: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return a run at its end with its certified guarantee.

    The run has ended whether or not the service can work it out now: then it is as it was answered.
    """
    if ended is None or ended.get("guarantee") is not None or run.last_guarantee is None:
        return ended
    try:
        path = f"/v1/runs/{run.name}/guarantee"  # once: training is over, and nothing waits for it
        return {**ended, "guarantee": run._transport.guarantee(path, retries=0)}
    except Exception as error:  # whatever it is, the run has ended
        LOG.warning("dpledger: the run ended; its guarantee is not known now: %s", error)
        return ended
