"""What others check the ledger by: the key that signs, and the witness."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from service.clock import stamp, utc
from service.errors import StartupError
from service.operations.diagnostics.host import secret
from service.operations.diagnostics.result import Finding, fail, ok, warn
from service.settings import Settings
from service.transparency.signing import Signer
from service.transparency.witness import WitnessError, read_witness

LATE: Final = 5  # times that a witness may have missed its turn
_CREATE: Final = "run `dpledger signing-key create FILE` and set DPLEDGER_SIGNING_KEY_FILE"
_BACK: Final = "bring it back; if it is lost, run `dpledger signing-key create FILE`"
_NO_WITNESS: Final = "none: DPLEDGER_WITNESS_FILE may name one, on another disk"
_BEHIND: Final = "see its disk, and what the service says of it in its log"


def trust(settings: Settings, newest: datetime | None, *, used: bool) -> Iterator[Finding]:
    """Look at the signing key and, where there is one, at the witness.

    Args:
        settings: that name them.
        newest: when the ledger was written to last.
        used: whether it has a dataset; then the service makes no key.
    """
    path, public_key = settings.signing_key_path, None
    if path is None:
        yield warn("signing_key", "none: checkpoints and certificates are refused", _CREATE)
    elif not (used or path.exists() or settings.signing_key_file):
        yield ok("signing_key", f"{path} is made when the service is started first")
    else:
        yield secret("signing_key", path)
        try:
            public_key = Signer.load(path).public_key
        except StartupError as error:
            yield fail("signing_key_content", str(error), _BACK)
    if settings.witness_file is not None:
        late = LATE * timedelta(seconds=settings.witness_seconds)
        yield _witness(settings.witness_file, public_key, newest, late)
    else:
        yield ok("witness", _NO_WITNESS)


def _witness(
    path: Path, public_key: str | None, newest: datetime | None, late: timedelta
) -> Finding:
    try:
        seen = read_witness(path, public_key)
    except (OSError, WitnessError) as error:
        remedy = "look at its disk; the service says in its log why it does not follow"
        return fail("witness", f"{path}: {error}", remedy)
    if seen.last is None:
        return fail("witness", f"{path} has seen nothing", "is the service running?")
    last = utc(datetime.fromisoformat(seen.last.signed.checkpoint.issued_at))
    said = f"{path} has seen the ledger of {stamp(last)}"
    if newest is not None and newest - last > late:
        return fail("witness", f"{said}; the newest row is of {stamp(newest)}", _BEHIND)
    return ok("witness", said)
