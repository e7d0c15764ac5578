"""Files that hold a secret: made whole or not at all, and readable by their owner alone."""

import os
import stat
from pathlib import Path
from typing import Final

_PRIVATE: Final = 0o600
OTHERS: Final = 0o077  # bits of group and others


class SecretFileError(Exception):
    """The file cannot be trusted with a secret; the text says why."""


def create(path: Path, text: str) -> None:
    """Write a line to a file that did not exist.

    Raises:
        FileExistsError: there is one; two processes may begin at once, and one reads the other's.
        OSError: it cannot be written.
    """
    written = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _PRIVATE)
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(descriptor)
        os.link(written, path)
    finally:
        written.unlink(missing_ok=True)


def read_secret(path: Path, *, bytes_max: int) -> str:
    """Return the line of a file that belongs to this user and that no other user can open.

    Raises:
        SecretFileError: it is another user's, others can open it, or it is too long or no file.
        OSError: it cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise SecretFileError(f"{path} is not a regular file")
        if found.st_uid != os.geteuid():
            raise SecretFileError(f"{path} belongs to another user")
        if found.st_mode & OTHERS:
            raise SecretFileError(f"{path} can be opened by other users; it needs mode 600")
        data = file.read(bytes_max + 1)
    if len(data) > bytes_max or not data.isascii():
        raise SecretFileError(f"{path} holds no line of at most {bytes_max} ASCII characters")
    return data.decode("ascii").strip()
