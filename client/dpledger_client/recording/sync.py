"""Sending a spool whose trainer is gone, from where it was written or from a copy."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dpledger_client.errors import DPLedgerError, NotFound, OutOfSequence
from dpledger_client.recording.checkpoint_pins import LogHead
from dpledger_client.recording.outbox import Opening, Outbox
from dpledger_client.recording.reservations import Leases
from dpledger_client.recording.write_ahead_file import (
    SUFFIX,
    Contents,
    EmptySpoolError,
    SpoolError,
    has_ended,
    is_locked,
    read,
)
from dpledger_client.transport import Transport


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """What became of one spool."""

    path: Path
    run: str
    branch: str
    steps: int  # that the spool knows
    ended: bool  # whether its leases could be returned: no later step ran


def spools(paths: list[Path]) -> Iterator[Path]:
    """The spools that are named, and those in the folders that are."""
    for path in paths:
        if path.is_dir():
            yield from sorted(path.glob(f"*{SUFFIX}"))
        else:
            yield path


def sync(transport: Transport, path: Path, *, ended: bool = False) -> Synced:
    """Send all that a spool knows; sending it again changes nothing.

    Args:
        transport: to the service.
        path: of a spool.
        ended: its trainer is known to be gone, though neither the spool nor this machine tells.

    Raises:
        SpoolError: the spool is damaged, or its trainer runs and sends it itself.
        DPLedgerError: the service refused something or is away; what it took, it keeps.
    """
    if path.exists() and is_locked(path):
        raise SpoolError(f"{path}: its trainer still runs and will send it")
    contents = read(path)
    ended = ended or has_ended(path, contents)
    dataset = str(contents.header["run"]["dataset"])
    transport = transport.of_dataset(dataset)
    outbox = _outbox(transport, contents)
    head = LogHead(transport, dataset, path.parent)
    head.compare()  # what is sent here may be what the service has lost
    with outbox.sending:
        outbox.send_held()
        if ended:
            _end(outbox, contents)
    head.compare()
    if ended:
        _mark(path)
    opening = outbox.opening
    steps = contents.next_step - opening.first_step
    return Synced(
        path=path, run=opening.run_name, branch=opening.branch_name, steps=steps, ended=ended
    )


def _outbox(transport: Transport, contents: Contents) -> Outbox:
    outbox = Outbox(transport, Opening.of(contents.header))
    for span in contents.spans:
        outbox.append(span.content, span.steps)
    for what, body in contents.told:
        outbox.tell(what, body)
    return outbox


def _end(outbox: Outbox, contents: Contents) -> None:
    leases = Leases(outbox, None)
    for name in reversed(contents.leases):
        leases.release(name, contents.next_step - 1, retries=None)
    if contents.end != "rewound":  # then the run went on in the same process
        outbox.finish("interrupted" if contents.end in (None, "left") else contents.end)


def _mark(path: Path) -> None:
    """Leave a word that everything was sent; a spool that cannot be written is sent again."""
    try:
        with path.open("rb+") as file:
            file.seek(-1, os.SEEK_END)
            if file.read() == b"\n":  # a line that was cut stays one
                file.write(b'{"closed": true}\n')
    except OSError:
        return


def sync_all(
    transport: Transport, paths: list[Path], *, ended: bool = False, again: bool = False
) -> Iterator[Synced | tuple[Path, Exception]]:
    """Sync each spool; one that cannot be sent does not hold up the others.

    Args:
        transport: to the service.
        paths: of spools, or of folders with spools.
        ended: their trainers are known to be gone.
        again: send also those that the service had whole, for it may have lost what it had.
    """
    early: list[Path] = []
    for path in spools(paths):
        try:
            if again or not read(path).closed:
                yield sync(transport, path, ended=ended)
        except EmptySpoolError:
            continue
        except (NotFound, OutOfSequence):
            early.append(path)  # a branch before the spool of its run, or its parent
        except (SpoolError, DPLedgerError, OSError) as error:
            yield path, error
    yield from _sync_again(transport, early, ended)


def _sync_again(
    transport: Transport, early: list[Path], ended: bool
) -> Iterator[Synced | tuple[Path, Exception]]:
    """Sync what came too early, as long as that makes room for more of it."""
    while early:
        failed: list[tuple[Path, Exception]] = []
        for path in early:
            try:
                yield sync(transport, path, ended=ended)
            except (SpoolError, DPLedgerError, OSError) as error:
                failed.append((path, error))
        if len(failed) == len(early):
            yield from failed
            return
        early = [path for path, _ in failed]
