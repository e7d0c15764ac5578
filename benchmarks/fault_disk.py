"""A disk that fills up, or takes no more writes, for real."""

import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

MEBIBYTE: Final = 1 << 20
_BLOCK: Final = 4096


class Disk(Protocol):
    """A folder whose disk can be broken and mended."""

    folder: Path
    kind: str

    def fail(self, room: int = 0) -> None:
        """Break it; one that is full may be left so many bytes."""

    def mend(self) -> None:
        """As it was; nobody may have a file of it open then, unless it was only full."""


@dataclass(slots=True)
class Mounted:
    """A small file system in memory, mounted for this."""

    folder: Path
    kind: str = "a mounted tmpfs"

    def fail(self, room: int = 0) -> None:
        """Leave not a block, or so many bytes."""
        with (self.folder / "filler").open("wb", buffering=0) as file:
            for size in (MEBIBYTE, _BLOCK, 1):
                try:
                    while True:
                        file.write(b"0" * size)
                except OSError:
                    continue
            if room:
                file.truncate(max(0, file.tell() - room))

    def mend(self) -> None:
        """Remove what fills it."""
        (self.folder / "filler").unlink(missing_ok=True)


@dataclass(slots=True)
class Ext4:
    """A file system in a file, which turns read-only as it does where a disk fails under it."""

    folder: Path
    image: Path
    kind: str = "an ext4 that remounts itself read-only"

    def mount(self) -> None:
        """Take it into use."""
        _run("mount", "-o", "loop,errors=remount-ro", str(self.image), str(self.folder))

    def fail(self, room: int = 0) -> None:
        """Let it find an error."""
        lines = Path("/proc/mounts").read_text(encoding="ascii").splitlines()
        (device,) = [line.split()[0] for line in lines if line.split()[1] == str(self.folder)]
        Path(f"/sys/fs/ext4/{Path(device).name}/trigger_fs_error").write_text("now")

    def mend(self) -> None:
        """Check it and mount it again."""
        _run("umount", str(self.folder))
        subprocess.run(["e2fsck", "-fy", str(self.image)], check=False, capture_output=True)  # noqa: S607
        self.mount()


@dataclass(slots=True)
class Limited:
    """Where nothing may be mounted: no file of a process may grow or be written beyond a point."""

    folder: Path
    pid: int
    full: bool  # or else it takes no writes
    kind: str = "RLIMIT_FSIZE"
    _before: tuple[int, int] = field(default=(-1, -1))

    def fail(self, room: int = 0) -> None:
        """Let no file grow beyond the longest that is there, or none be written at all."""
        longest = max((one.stat().st_size for one in self.folder.iterdir()), default=0)
        self._limit(longest + room if self.full else _BLOCK)

    def _limit(self, size: int) -> None:
        self._before = resource.prlimit(self.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (size, self._before[1]))

    def mend(self) -> None:
        """As it was."""
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, self._before)


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


@contextmanager
def small_disk(folder: Path, *, mebibytes: int = 4) -> Iterator[Disk]:
    """A disk that fills up: one of its own where this process may mount one, else limits.

    Both make SQLite fail in the write itself. Which it was stands in `kind`.
    """
    folder.mkdir()
    try:
        _run("mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "dpledger", str(folder))
    except (OSError, subprocess.CalledProcessError):
        yield Limited(folder, os.getpid(), full=True)
        return
    try:
        yield Mounted(folder)
    finally:
        _run("umount", "-l", str(folder))


@contextmanager
def failing_disk(folder: Path, *, mebibytes: int = 8) -> Iterator[Disk]:
    """A disk that takes no more writes: a file system that fails, where one may be mounted."""
    folder.mkdir()
    disk = Ext4(folder, folder.with_suffix(".image"))
    try:
        with disk.image.open("wb") as file:
            file.truncate(mebibytes * MEBIBYTE)
        _run("mkfs.ext4", "-q", "-O", "^has_journal", str(disk.image))
        disk.mount()
    except (OSError, subprocess.CalledProcessError):
        yield Limited(folder, os.getpid(), full=False)
        return
    try:
        yield disk
    finally:
        _run("umount", "-l", str(folder))
