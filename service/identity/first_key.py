"""The key that a ledger begins with, from a file that an operator names."""

from pathlib import Path
from typing import Final

from service.errors import StartupError
from service.settings import Settings

KEY_LENGTH_MIN: Final = 32


def first_key(settings: Settings) -> str | None:
    """The key that a ledger without any begins with; None where a start token is enough.

    Raises:
        StartupError: others can reach the service and no key is named, or its file holds none.
    """
    if settings.admin_key_file is not None:
        return _read_key(settings.admin_key_file)
    if not settings.loopback and settings.identity_file is None:
        raise StartupError(
            f"host {settings.host} can be reached by others and there is no key. Create one "
            "with `dpledger keys create --scope admin --name admin`, or name a file with one "
            "in DPLEDGER_ADMIN_KEY_FILE, or identity providers in DPLEDGER_IDENTITY_FILE."
        )
    return None


def _read_key(file: Path) -> str:
    try:
        key = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(f"DPLEDGER_ADMIN_KEY_FILE: {error}") from None
    if len(key) < KEY_LENGTH_MIN:
        raise StartupError(
            f"DPLEDGER_ADMIN_KEY_FILE: a key has at least {KEY_LENGTH_MIN} characters."
        )
    return key
