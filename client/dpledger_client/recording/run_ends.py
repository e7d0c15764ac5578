"""How a run ends: as its trainer says, or as the error says that ended its process."""

from typing import Any, Final, Literal, Protocol

from dpledger_client.errors import BudgetExhausted, Unavailable
from dpledger_client.recording.outbox import LOG

End = Literal["finished", "stopped_at_budget", "aborted", "interrupted"]
ENDS: Final = ("finished", "stopped_at_budget", "aborted", "interrupted")


class Writer(Protocol):
    """What writes the steps of a run."""

    @property
    def path(self) -> Any:
        """Of its spool."""

    def end(self, state: str) -> None:
        """Send what is left."""

    def finish(self, state: str) -> dict[str, Any] | None:
        """Close the run at the service."""

    def close(self, *, complete: bool) -> None:
        """Let go of the spool."""


def end_of(error: BaseException | None, *, refused: bool, earlier: str | None) -> str:
    """Return the state in which a run ends, unless its trainer names one.

    Args:
        error: that ended its block.
        refused: whether a budget refused the last step.
        earlier: the end that the run had before it was resumed, if no step was taken since: then
            it stays.
    """
    if earlier is not None:
        return earlier
    if refused and (error is None or isinstance(error, BudgetExhausted)):
        return "stopped_at_budget"
    return "finished" if error is None else "interrupted"


def close(writer: Writer, state: str) -> dict[str, Any] | None:
    """End a run; what cannot be sent now is left to its spool, and told.

    Raises:
        DPLedgerError: something was refused; the spool keeps it.
    """
    try:
        writer.end(state)
        ended = writer.finish(state)
    except Unavailable as error:
        LOG.warning("dpledger: `dpledger-client sync %s` is to do: %s", writer.path, error)
        writer.close(complete=False)
        return None
    writer.close(complete=True)
    return ended
