"""Build the Dockerfile on a small Debian, and run it as an engine would, with this kernel alone.

Debian's debootstrap makes the base; buildah builds with `--isolation chroot`. A container has mount
and process namespaces of its own, a read-only root, no capability and the image's user; it shares
this machine's network.
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
BUILD_SECONDS: Final = 1800
DEBIAN: Final = "bookworm"
PACKAGES: Final = "ca-certificates,python3,python3-pip,python3-venv"
# How pip of this machine finds an index, where that is set.
SETTINGS: Final = ("/etc/pip.conf", "/etc/ssl/certs", "~/.config/pip/pip.conf")


def missing() -> str | None:
    """Why an image cannot be built here, or None."""
    if os.geteuid() != 0:
        return "needs root: a root file system is made and mounted"
    for tool in ("buildah", "debootstrap", "unshare", "setpriv"):
        if shutil.which(tool) is None:
            return f"needs Debian's {tool}"
    if subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], check=False).returncode:  # noqa: S607
        return "needs namespaces of its own, which this machine refuses"
    return None


def done(*words: str | Path, seconds: float = BUILD_SECONDS) -> str:
    result = subprocess.run(
        [str(one) for one in words], capture_output=True, text=True, timeout=seconds, check=False
    )
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    return result.stdout


@dataclass(frozen=True)
class Image:
    """A built image: its settings, and the folder with its files."""

    settings: dict[str, Any]
    root: Path

    def size(self) -> int:
        """Bytes that the image adds to its base."""
        added = (self.root / "opt" / "dpledger").rglob("*")
        return sum(one.lstat().st_size for one in added if not one.is_dir())

    def words(self, *given: str) -> list[str]:
        """The command that runs the image; without words of one's own, its default command."""
        settings = self.settings
        user, group = settings["User"].split(":")
        inside = [
            "set -e",
            f"mount --bind {self.root} {self.root}",
            f"mount -o remount,ro,bind {self.root}",
            f"mount -t tmpfs -o mode=1777 none {self.root}/tmp",  # noqa: S108
            f"mount --bind $DATA {self.root}/data",
            f"mount -t proc none {self.root}/proc",
            f"mount --bind /dev {self.root}/dev",
            f"cd {self.root}/{settings['WorkingDir']}",
            f"exec chroot {self.root} /usr/bin/setpriv --reuid {user} --regid {group} "
            "--clear-groups --bounding-set=-all --no-new-privs -- "
            f'env -i -C {settings["WorkingDir"]} $VARIABLES "$@"',
        ]
        command = given or tuple(settings["Cmd"])
        return [
            "unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c",
            "\n".join(inside), "sh", *settings["Entrypoint"], *command,
        ]  # fmt: skip


def built(folder: Path) -> Iterator[Image]:
    """Build the Dockerfile of this tree in a folder; its files are mounted until the end."""
    base = folder / "base"
    done("debootstrap", "--variant=minbase", f"--include={PACKAGES}", DEBIAN, base)
    (base / "usr" / "bin" / "python").symlink_to("python3")
    buildah = ("buildah", "--root", folder / "store", "--runroot", folder / "run")
    empty = done(*buildah, "from", "scratch").strip()
    done(*buildah, "add", "--quiet", empty, base, "/")
    done(*buildah, "commit", "--quiet", "--rm", empty, "localhost/base")
    given: list[str] = []
    for one in SETTINGS:
        if (found := Path(one).expanduser()).exists():
            given += ["--volume", f"{found}:{found}:ro"]
    if file := os.environ.get("PIP_CERT"):
        given += ["--volume", f"{file}:{file}:ro", "--env", f"PIP_CERT={file}"]
    words = ("--isolation", "chroot", "--format", "docker", "--build-arg", "BASE=localhost/base")
    done(*buildah, "build", "--quiet", *words, *given, "--tag", "dpledger", ROOT)
    settings = json.loads(done(*buildah, "inspect", "--type", "image", "dpledger"))["Docker"]
    container = done(*buildah, "from", "dpledger").strip()
    root = Path(done(*buildah, "mount", container).strip())
    try:
        yield Image(settings["config"], root)
    finally:
        done(*buildah, "umount", container)
        done(*buildah, "rm", container)


@dataclass
class Container:
    """A volume with the image's user as owner, and what is run on it."""

    image: Image
    volume: Path

    def variables(self, **given: str) -> dict[str, str]:
        """What the shell that sets up a container reads."""
        pairs = [*self.image.settings["Env"], *(f"{name}={value}" for name, value in given.items())]
        return {"PATH": os.environ["PATH"], "DATA": str(self.volume), "VARIABLES": " ".join(pairs)}

    def run(self, *words: str, **given: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the image to its end."""
        return subprocess.run(
            self.image.words(*words),
            env=self.variables(**given),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def script(self) -> str:
        """A shell script in place of the command `dpledger`: it runs the image with its words."""
        variables = [f"{name}={value}" for name, value in self.variables().items()]
        words = ["env", *variables, *self.image.words("")[:-1]]
        return f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n'

    @contextmanager
    def started(self, **given: str) -> Iterator[subprocess.Popen[str]]:
        """Start the image as it is; killed at the end, if it still runs."""
        process = subprocess.Popen(
            self.image.words(), env=self.variables(**given), stderr=subprocess.PIPE, text=True
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def first_child(process: subprocess.Popen[str]) -> int:
    """The process that an engine would send a signal to: the first of the container."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        file = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        if found := file.read_text(encoding="ascii").split():
            return int(found[0])
        time.sleep(0.05)
    raise AssertionError("the container has no process")


def stop(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Send SIGTERM as `docker stop` does; the status and what was logged."""
    os.kill(first_child(process), signal.SIGTERM)
    _, logged = process.communicate(timeout=60)
    return process.returncode, logged
