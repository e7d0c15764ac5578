"""Machines of one's own on this machine: network namespaces whose cables can be pulled out.

Everything is in a network namespace of the campaign, so nothing outside sees it. Users without
rights get a user namespace as well, so none is needed; root lets such a user run the machines. A
machine has two cables: `back` to the other machines, and `front` to the service.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from benchmarks.servers import ServerError

INSIDE: Final = "DPLEDGER_CAMPAIGN_INSIDE"
UNPRIVILEGED: Final = 65534  # a user without rights: PostgreSQL does not run as root
NETS: Final = {"back": "10.77.0", "front": "10.78.0"}
ENDS_SECONDS: Final = 20.0
TOOLS: Final = ("unshare", "nsenter", "setpriv", "ip", "nice")

Net = Literal["back", "front"]


def enter(module: str, words: Sequence[str]) -> None:
    """Begin again in namespaces of one's own.

    Raises:
        ServerError: a tool that is needed is missing.
    """
    if INSIDE in os.environ:
        return
    if missing := [name for name in TOOLS if shutil.which(name) is None]:
        raise ServerError(f"Install util-linux and iproute2: {', '.join(missing)} not found.")
    as_user = [] if os.geteuid() == 0 else ["--user", "--map-current-user", "--keep-caps"]
    command = ["unshare", *as_user, "--net", "nice", "-n", "1", sys.executable, "-m", module]
    os.execvpe(command[0], [*command, *words], os.environ | {INSIDE: "1"})  # noqa: S606


def unprivileged(*command: str) -> list[str]:
    """The same, run by a user without rights: PostgreSQL refuses root."""
    if os.geteuid() != 0:
        return list(command)
    user, group = f"--reuid={UNPRIVILEGED}", f"--regid={UNPRIVILEGED}"
    return ["setpriv", user, group, "--clear-groups", "env", "-u", "HOME", *command]


def own_folder(folder: Path) -> None:
    """Make a folder that the unprivileged user may write to."""
    folder.mkdir()
    if os.geteuid() == 0:
        os.chown(folder, UNPRIVILEGED, UNPRIVILEGED)


def lay_cables() -> None:
    """The switches to which machines are connected, in the campaign's own namespace."""
    run("ip", "link", "set", "lo", "up")
    for net, prefix in NETS.items():
        run("ip", "link", "add", net, "type", "bridge")
        run("ip", "addr", "add", f"{prefix}.254/24", "dev", net)
        run("ip", "link", "set", net, "up")


@dataclass(slots=True)
class Machine:
    """A network namespace with everything that runs in it."""

    number: int
    log: Path
    _holder: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """As the cluster knows it."""
        return f"node{self.number}"

    def address(self, net: Net) -> str:
        """Where it is reached."""
        return f"{NETS[net]}.{self.number}"

    def connect(self) -> None:
        """Make the namespace and put both cables in."""
        command = ["unshare", "--net", "sleep", "infinity"]
        self._holder = subprocess.Popen(command)
        while self._namespace() == os.readlink("/proc/self/ns/net"):
            time.sleep(0.01)
        self._inside("ip", "link", "set", "lo", "up")
        for net in NETS:
            end = f"{net}{self.number}"
            run("ip", "link", "add", end, "type", "veth", "peer", "name", net,
                "netns", str(self._holder.pid))  # fmt: skip
            run("ip", "link", "set", end, "master", net, "up")
            self._inside("ip", "addr", "add", f"{NETS[net]}.{self.number}/24", "dev", net)
            self._inside("ip", "link", "set", net, "up")

    def plug(self, *nets: Net, into: bool = True) -> None:
        """Put cables in or pull them out; what is sent is swallowed then."""
        for net in nets:
            to = ["master", net] if into else ["nomaster"]
            run("ip", "link", "set", f"{net}{self.number}", *to)

    def start(self, *command: str) -> None:
        """Start a process that writes to the machine's log."""
        with self.log.open("ab") as log:
            subprocess.Popen(
                self._within(*unprivileged(*command)),
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
            )

    def signal(self, number: signal.Signals, name: str = "") -> None:
        """Send a signal to every process of the machine, or to those of a name."""
        for pid in self.processes(name):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        """End everything at once, as a power cut does.

        Raises:
            ServerError: something does not end.
        """
        deadline = time.monotonic() + ENDS_SECONDS
        while self.processes():
            self.signal(signal.SIGKILL)
            if time.monotonic() > deadline:
                raise ServerError(f"{self.name} does not end.")
            time.sleep(0.02)

    def processes(self, name: str = "") -> list[int]:
        """The processes that run or are stopped, all or those of a name; never the holder."""
        holder, mine = self._holder, self._namespace()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if os.readlink(folder / "ns" / "net") != mine:
                    continue
                state = (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
                same = name in ("", (folder / "comm").read_text(encoding="utf-8").strip())
                if state not in "ZX" and same and holder and int(folder.name) != holder.pid:
                    found.append(int(folder.name))
        return found

    def close(self) -> None:
        """End everything and let go of the namespace."""
        if self._holder is not None:
            self.signal(signal.SIGCONT)
            self.kill()
            self._holder.kill()
            self._holder.wait()

    def _namespace(self) -> str:
        if self._holder is None:
            raise ServerError(f"{self.name} is not connected.")
        return os.readlink(f"/proc/{self._holder.pid}/ns/net")

    def _within(self, *command: str) -> list[str]:
        if self._holder is None:
            raise ServerError(f"{self.name} is not connected.")
        return ["nsenter", f"--net=/proc/{self._holder.pid}/ns/net", "--", *command]

    def _inside(self, *command: str) -> None:
        run(*self._within(*command))


def run(*command: str) -> str:
    """What a command says.

    Raises:
        ServerError: it failed.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    if done.returncode:
        raise ServerError(f"{' '.join(command)}: {done.stderr or done.stdout}")
    return done.stdout
