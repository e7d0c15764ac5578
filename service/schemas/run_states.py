"""The states of a run: what its trainer said of its end, and whether it went on after that."""

from typing import Final, Literal, get_args

RunStateName = Literal[
    "active",  # registered, or continued on a new branch
    "interrupted",  # its process ended before the run did: it may go on, as if it were active
    "finished",
    "stopped_at_budget",
    "aborted",
    "reopened",  # steps were recorded after its end, which is an incident
]
End = Literal["finished", "stopped_at_budget", "aborted", "interrupted"]

STATES: Final[tuple[str, ...]] = get_args(RunStateName)
# No step follows: one that is recorded is an incident, and none is admitted.
CLOSED: Final = ("finished", "stopped_at_budget", "aborted")
