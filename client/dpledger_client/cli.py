"""The command line `dpledger-client`: what a training machine needs, without the service's code."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dpledger_client.client import Client
from dpledger_client.errors import DPLedgerError
from dpledger_client.recording.sync import Synced, spools
from dpledger_client.recording.write_ahead_file import SpoolError, folder, is_locked, read

FAILED: Final = 1
BAD_INPUT: Final = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; its exit status: 0, 1 if something is left to do, 2 on bad input."""
    given = _parser().parse_args(arguments)
    try:
        return int(given.command(given))
    except (ValueError, DPLedgerError, OSError) as error:
        _complain(str(error))
        return BAD_INPUT


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dpledger-client",
        description="Send the spools of trainers, and import records of other tools.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    sync = commands.add_parser(
        "sync",
        help="send spools whose trainers have ended",
        description="Send the steps in spools. Sending a spool twice, or a copy, is harmless.",
    )
    sync.add_argument(
        "spools", nargs="*", type=Path, metavar="SPOOL",
        help="files or folders; default: the folder of spools",
    )  # fmt: skip
    sync.add_argument("--url", help="address of the service; default: DPLEDGER_URL")
    sync.add_argument(
        "--ended", action="store_true",
        help="the trainers have certainly ended: return unused leases (for copied spools)",
    )  # fmt: skip
    sync.add_argument(
        "--again", action="store_true",
        help="also send confirmed steps again: the database was restored to an earlier state",
    )  # fmt: skip
    sync.set_defaults(command=_sync)
    show = commands.add_parser("show", help="show the contents of spools without sending them")
    show.add_argument("spools", nargs="*", type=Path, metavar="SPOOL")
    show.set_defaults(command=_show)
    from dpledger_client.importers import command  # its readers are many

    command.add_command(commands)
    return parser


def _sync(given: argparse.Namespace) -> int:
    status = 0
    with Client(given.url) as client:
        for result in client.sync(*_paths(given), ended=given.ended, again=given.again):
            if isinstance(result, Synced):
                _say(_told(result))
            else:
                _complain(_named(*result))
                status = FAILED
    return status


def _show(given: argparse.Namespace) -> int:
    status = 0
    for path in spools(_paths(given)):
        try:
            held = read(path)
        except (SpoolError, OSError) as error:
            _complain(_named(path, error))
            status = FAILED
            continue
        steps = held.next_step - int(held.header["first_step"])
        state = "sent" if held.closed else "its trainer runs" if is_locked(path) else "to be sent"
        _say(f"{path}: run {held.header['run']['name']}, {steps} steps, {state}")
    return status


def _paths(given: argparse.Namespace) -> list[Path]:
    usual = folder(None)
    return list(given.spools) or ([usual] if usual.exists() else [])  # no run was trained here


def _told(result: Synced) -> str:
    text = f"{result.path}: run {result.run}, branch {result.branch}: {result.steps} steps"
    if result.ended:
        return text
    return f"{text}; leases are kept, for its trainer may still run (--ended returns them)"


def _named(path: Path, error: Exception) -> str:
    text = str(error)
    return text if str(path) in text else f"{path}: {text}"


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _complain(text: str) -> None:
    sys.stderr.write(f"dpledger-client: {text}\n")


if __name__ == "__main__":
    sys.exit(main())
