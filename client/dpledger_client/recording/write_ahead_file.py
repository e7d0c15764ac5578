"""The spool: a file that knows every step before it is taken, whatever becomes of the process.

One line of JSON a fact, only ever appended. A line is handed to the operating system before the
step is taken, so that it survives the death of the process, though not that of the machine: then
the lease of the step, held at the service, is what still counts it.

    {"format": "dpledger-spool/1", "run": {...}, "branch": {...}, ...}   what was opened
    {"what": {"mechanism": {...}, "sampling": {...}}}                    what the next steps are
    17  or  [18, 100]                                                    step 17; steps 18 to 117
    {"lease": "lease-..."}                                               a lease was asked for
    {"sent": 118}                                                        the service has the steps below
    {"tell": ["releases", {...}]}                                        something else to be told
    {"end": "finished"}                                                  no later step ran
    {"closed": true}                                                     the service has it all

A step that comes twice in a row was interrupted the first time, before it was counted.
"""  # noqa: E501 - a table of lines is not broken.

import errno
import fcntl
import json
import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, Final, Self

from dpledger_client.recording.event_buffer import Span

FORMAT: Final = "dpledger-spool/1"
ENDS: Final = ("finished", "stopped_at_budget", "aborted", "interrupted", "rewound", "left")
SUFFIX: Final = ".spool"
CLOSED: Final = -1  # instead of the number of a file
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")  # another one after each start of Linux


class SpoolError(ValueError):
    """A spool that cannot be read, or whose trainer may still be running."""


class EmptySpoolError(SpoolError):
    """A spool whose process was killed before its first line: no step was taken."""


class Spool:
    """A spool that is being written, locked until it is closed."""

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path: Final = path
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        # Only its owner can read it: names of runs and datasets are private.
        self._file = os.open(path, flags, 0o600)
        self._writing = Lock()
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX)  # only who asks is_locked may hold it already
            self.write({"format": FORMAT, **header, "where": _place(os.fstat(self._file))})
        except BaseException:
            self.discard()  # a spool without its first line would be told as damaged for ever
            raise

    def write(self, line: Any) -> None:
        """Append a fact: all of it, or none and an error.

        Raises:
            OSError: it could not be written, for instance because the disk is full.
            TypeError, ValueError: it is not JSON.
        """
        self.append(json.dumps(line, allow_nan=False).encode() + b"\n")

    def append(self, line: bytes) -> None:
        """Append a line; see `write`."""
        with self._writing:
            if self._file == CLOSED:  # its number may belong to another file by now
                raise OSError(errno.EBADF, "the spool is closed", str(self.path))
            written = os.write(self._file, line)
            if written != len(line):  # the disk is full; a line that is cut would spoil the next
                os.ftruncate(self._file, os.fstat(self._file).st_size - written)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be written any more."""
        return self._file == CLOSED

    def close(self) -> None:
        """Let go of the file."""
        with self._writing:
            file, self._file = self._file, CLOSED
        if file != CLOSED:
            # Forks of the trainer have the file, too, and would go on holding its lock.
            fcntl.flock(file, fcntl.LOCK_UN)
            os.close(file)

    def discard(self) -> None:
        """Close and remove a spool that knows of no step."""
        self.close()
        self.path.unlink(missing_ok=True)


@dataclass(slots=True)
class Contents:
    """What a spool says."""

    header: dict[str, Any]
    spans: list[Span] = field(default_factory=list)
    leases: list[str] = field(default_factory=list)
    told: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    next_step: int = 0  # after the last step
    end: str | None = None
    closed: bool = False
    _what: str | None = None
    _last_step: int | None = None  # the first step of the last line that had steps

    @classmethod
    def of(cls, header: Any) -> Self:
        """Nothing yet.

        Raises:
            SpoolError: this is not the first line of a spool.
        """
        if not isinstance(header, dict) or header.get("format") != FORMAT:
            raise SpoolError(f"it is not a spool: its first line has no format {FORMAT}")
        match header:
            case {
                "run": {"name": str(), "writer": str()},
                "branch": None,
                "first_step": int(first_step),
            } | {
                "run": {"name": str()},
                "branch": {"name": str(), "writer": str(), "from_step": int()},
                "first_step": int(first_step),
            }:
                return cls(header=header, next_step=first_step)
            case _:
                raise SpoolError("line 1 lacks the run, its branch or the first step")

    def take(self, line: Any) -> None:
        """Take in the next line."""
        match line:
            case int() if line is not True and line is not False:
                self._count(line, 1)
            case [int(first), int(steps)]:
                self._count(first, steps)
            case dict() if len(line) == 1:
                self._take_fact(*line.popitem())
            case _:
                raise SpoolError("a line of an unknown kind")

    def _take_fact(self, kind: str, fact: Any) -> None:
        match kind, fact:
            case "what", {"mechanism": dict(), "sampling": dict()}:
                self._what = json.dumps(fact, sort_keys=True)
            case "lease", str():
                self.leases.append(fact)
            case "tell", [str(what), dict(body)]:
                self.told.append((what, body))
            case "end", str() if fact in ENDS:
                self.end = fact
            case "closed", True:
                self.closed = True
            case "sent", int():
                pass  # sending again is harmless, and the service is who knows
            case _:
                raise SpoolError(f"{kind} of an unknown kind")

    def _count(self, first: int, steps: int) -> None:
        if first == self._last_step:
            self._forget_from(first)
        if first != self.next_step or steps < 1:
            raise SpoolError(f"step {self.next_step} is missing")
        if self._what is None:
            raise SpoolError("a step without an event")
        last = self.spans[-1] if self.spans else None
        if last is not None and last.takes(self._what, steps):
            self.spans[-1] = Span(last.first_step, last.steps + steps, self._what)
        else:
            self.spans.append(Span(first, steps, self._what))
        self._last_step = first
        self.next_step += steps

    def _forget_from(self, first: int) -> None:
        """The last line comes again: an interrupt came between it and its count, so it raised."""
        last = self.spans.pop()
        if last.first_step < first:
            self.spans.append(Span(last.first_step, first - last.first_step, last.content))
        self.next_step = first


def read(path: Path) -> Contents:
    """Read a spool. A last line that was cut belongs to a step that was not taken.

    Raises:
        SpoolError: a line is damaged; the message names it.
        OSError: the file cannot be read.
    """
    contents: Contents | None = None
    for number, line in enumerate(_whole_lines(path), start=1):
        try:
            value = json.loads(line)
            if contents is None:
                contents = Contents.of(value)
            else:
                contents.take(value)
        except (ValueError, RecursionError) as error:
            raise SpoolError(f"{path}, line {number}: {error}") from error
    if contents is None:
        raise EmptySpoolError(f"{path} is empty: no step was taken")
    return contents


def _whole_lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield line


def has_ended(path: Path, contents: Contents) -> bool:
    """Whether it is certain that no process writes to this spool any more.

    A copy of a spool says nothing about that, unless the end is in it; nor does a spool that its
    machine left behind when it died.
    """
    return contents.end is not None or (_is_original(path, contents) and not is_locked(path))


def is_locked(path: Path) -> bool:
    """Whether a process of this machine has the spool open for writing."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(file, fcntl.LOCK_UN)  # or who was forked meanwhile would go on holding it
    return False


def _is_original(path: Path, contents: Contents) -> bool:
    here = _place(path.stat())
    return here["boot"] is not None and bool(contents.header.get("where") == here)


def _place(file: os.stat_result) -> dict[str, Any]:
    """What tells a file from its copies, and from what a dead machine left of it.

    After a start of the machine the last lines may be lost: then a spool is no better than a copy.
    """
    try:
        boot = _BOOT.read_text().strip()
    except OSError:
        boot = None
    return {"host": platform.node(), "boot": boot, "device": file.st_dev, "inode": file.st_ino}


def folder(given: str | os.PathLike[str] | None) -> Path:
    """Where spools are kept: as given, else DPLEDGER_SPOOL, else the user's state folder."""
    if given is not None:
        return Path(given)
    if named := os.environ.get("DPLEDGER_SPOOL"):
        return Path(named)
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "dpledger"
